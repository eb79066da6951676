"""A method answers questions: what all methods share, and the base class of those that decode an answer under ψ.

A trained method is a folder: `method.json`, PEFT adapters in `phi/` and `psi/`, `calibration.json` if its confidence is
calibrated, and further files such as the stop classifier in `end.safetensors`. All methods decode greedily, in batches.

Dimensions: B batch.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import reduce
from operator import add
from pathlib import Path
from typing import Protocol, get_args

import torch
from torch import Tensor

from ccot_cli.config import DecodingConfig
from ccot_cli.data.answers import read_after_marker
from ccot_cli.errors import CorruptError, retrain_hint
from ccot_cli.files import strict_json, write_json
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.history import History
from ccot_cli.models.base.memory import in_parts
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.psi import decode
from ccot_cli.models.decoding.thoughts import Thought
from ccot_cli.models.methods.calibration import Calibration
from ccot_cli.names import MethodName, QueryUnder, parse_ratio

METHOD_FILE = "method.json"


@dataclass(frozen=True)
class Reply:
    """The reply to one question."""

    answer: str
    """Empty if the text has none."""
    text: str
    """All decoded text: the answer, with the chain if one was written."""
    num_contemplation: int
    """Tokens between query and answer; for `cot`, those of the explicit chain."""
    num_answer: int
    """Tokens of the answer."""
    is_truncated: bool
    """True if a cap ended the contemplation or the text."""
    confidence: float = field(compare=False)
    """How probable it is that the answer is right, if the method is calibrated.

    Else the least probability that the model gave to a token with a digit. 0 if there is no such token.
    """
    thoughts: list[Thought] | None = field(default=None, compare=False)
    """What the contemplation tokens say; None if they were not to be read."""
    is_fallback: bool = False
    """Whether the second method of a cascade gave it."""
    explanation: str | None = field(default=None, compare=False)
    """The chain that the decoder reads from the contemplation tokens; None if it was not to."""


@dataclass(frozen=True)
class Seconds:
    """Wall-clock time of one batch, by phase."""

    prefill: float
    contemplation: float
    answer: float

    @property
    def total(self) -> float:
        return self.prefill + self.contemplation + self.answer

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(
            self.prefill + other.prefill, self.contemplation + other.contemplation, self.answer + other.answer
        )


def confidence(
    theta: Theta, ids: Sequence[int], chances: Sequence[float], calibration: Calibration | None = None
) -> float:
    """Return the least probability of a token with a digit, calibrated: wording may vary, numbers may not.

    Returns:
        0 if there is no such token.
    """
    pairs = zip(ids, chances, strict=True)
    score = min((chance for token, chance in pairs if theta.encoder.has_digit(token)), default=0.0)
    return score if calibration is None else calibration(score)


class Method(Protocol):
    """Answers questions."""

    calibration: Calibration | None
    """What makes its confidence a probability; None if that was not fitted."""

    @property
    def name(self) -> str: ...

    @property
    def ratio(self) -> Decimal: ...

    @property
    def training(self) -> dict[str, History | None]:
        """The training behind each adapter that it computes with, as long as no other method is loaded."""
        ...

    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        """Answer a batch of questions.

        Raises:
            UsageError: if a question is longer than the model's positions.
        """
        ...


def reply_in_parts(method: Method, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
    """Answer a batch. If memory does not suffice, answer its halves instead, which gives the same answers.

    Raises:
        ResourceError: if a single question does not fit.
    """
    parts = list(in_parts(questions, method.reply))
    return [reply for replies, _ in parts for reply in replies], reduce(add, (spent for _, spent in parts))


@dataclass(frozen=True)
class MethodInfo:
    """What `method.json` says about a trained folder."""

    name: MethodName
    ratio: str
    """r, as text."""
    autoregressive_layer: int = 0
    """l; 0 without a φ."""
    num_tokens: int = 0
    """Tokens between query and answer if their number is fixed, else 0."""
    query_under: QueryUnder = "theta"
    """Whose weights read the query before contemplation tokens."""

    def save(self, folder: Path) -> None:
        write_json(folder / METHOD_FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "MethodInfo":
        """Read `method.json` of a trained folder.

        Raises:
            CorruptError: if the file is missing or damaged, or names no method or no ratio.
        """
        try:
            info = cls(**strict_json((folder / METHOD_FILE).read_bytes()))
            parse_ratio(info.ratio)
            if info.name not in get_args(MethodName):
                raise ValueError(f"there is no method {info.name!r}")
            if not all(type(count) is int and count >= 0 for count in (info.autoregressive_layer, info.num_tokens)):
                raise ValueError("a number of layers or tokens is none")
            if info.query_under not in get_args(QueryUnder):
                raise ValueError(f"there are no weights {info.query_under!r}")
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise CorruptError(f"{folder / METHOD_FILE} cannot be read: {error}", fix=retrain_hint(folder)) from error
        return info


class Clock:
    """Measures seconds between laps, waiting for the device's queued work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._now()

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap, or since the start."""
        before, self._last = self._last, self._now()
        return self._last - before


@dataclass(frozen=True)
class Prepared:
    """What the answers of a batch are decoded from."""

    sequence: CachedSequence
    num_tokens: list[int]
    """Tokens between query and answer."""
    is_capped: list[bool]
    """True if a cap ended these tokens."""
    prefill: float
    """Seconds."""
    contemplation: float
    """Seconds."""
    draft_B: Tensor | None = None
    """Guesses of the answers' first tokens; they save time and change no answer."""
    read_thoughts: Callable[[], list[list[Thought]]] | None = None
    """Reads each row's contemplation tokens; called once the answers are there, so that their time does not count."""
    explain: Callable[[], list[str]] | None = None
    """Writes each row's chain out; called after that, likewise."""


def answer_positions(theta: Theta, decoding: DecodingConfig) -> int:
    """Count the positions that <ANS> and the longest answer take."""
    return len(theta.encoder.answer_marker) + decoding.max_answer_tokens


@dataclass
class AnswerMethod(ABC):
    """Decodes the answer under ψ from a sequence that the subclass prepares."""

    adapters: Adapters
    info: MethodInfo
    decoding: DecodingConfig
    calibration: Calibration | None = field(default=None, kw_only=True)

    @property
    def theta(self) -> Theta:
        return self.adapters.theta

    @property
    def ratio(self) -> Decimal:
        return Decimal(self.info.ratio)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def training(self) -> dict[str, History | None]:
        return self.adapters.histories(PSI)

    @property
    def reserved(self) -> int:
        """Positions to leave for <ANS> and the longest answer."""
        return answer_positions(self.theta, self.decoding)

    @abstractmethod
    def prepare(self, queries: list[list[int]]) -> Prepared:
        """Run the queries, and what comes between them and the answers.

        Raises:
            UsageError: if a query is longer than the model's positions.
        """

    @torch.no_grad()
    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        queries = [self.theta.encoder.query(question) for question in questions]
        prepared = self.prepare(queries)
        clock = Clock(self.theta.device)
        text = decode(
            self.adapters,
            prepared.sequence,
            [self.theta.encoder.answer_marker] * len(queries),
            max_tokens=self.decoding.max_answer_tokens,
            draft_B=prepared.draft_B,
        )
        seconds = Seconds(prepared.prefill, prepared.contemplation, clock.lap())
        thoughts: Sequence[list[Thought] | None] = [None] * len(queries)
        if prepared.read_thoughts:
            thoughts = prepared.read_thoughts()
        explanations: Sequence[str | None] = prepared.explain() if prepared.explain else [None] * len(queries)
        replies = [
            Reply(
                answer=read_after_marker(decoded) or "",
                text=decoded,
                num_contemplation=count,
                num_answer=len(ids),
                is_truncated=is_contemplation_capped or is_text_capped,
                confidence=confidence(self.theta, ids, chances, self.calibration),
                thoughts=row_thoughts,
                explanation=explanation,
            )
            for ids, chances, decoded, count, is_contemplation_capped, is_text_capped, row_thoughts, explanation in zip(
                text.ids,
                text.chances,
                map(self.theta.encoder.decode, text.ids),
                prepared.num_tokens,
                prepared.is_capped,
                text.is_capped,
                thoughts,
                explanations,
                strict=True,
            )
        ]
        return replies, seconds
