"""What all ways to answer a question share, and the plainest of them, writing.

A trained method is a folder: `method.json`, PEFT adapters in `phi/` and `psi/`, the stop classifier in
`end.safetensors`, the answer's draft in `draft.safetensors`, or what else a method has. All answer greedily, in
batches.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import reduce
from operator import add
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ccot_cli.config import DecodingConfig
from ccot_cli.data.answers import read_answer, read_behind_marker, read_last_number
from ccot_cli.errors import CorruptError, anew
from ccot_cli.files import write_json
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.blocks import CachedSequence
from ccot_cli.models.base.memory import in_parts
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.psi import decode
from ccot_cli.models.training.queries import encode_query
from ccot_cli.names import MethodName

METHOD_FILE = "method.json"


@dataclass(frozen=True)
class Traits:
    """What a method puts between query and answer, in the terms of the paper's Table 1."""

    contentful: str
    """Whether its tokens hold content, or were distilled from what does: yes, no, or – where there are none."""
    format: str
    inference: str


NO_TOKENS = Traits("–", "–", "none: answers at once")
WRITTEN = Traits("yes", "discrete", "variable length, autoregressive")


@dataclass(frozen=True)
class Reply:
    """What came of one question."""

    answer: str
    text: str
    """All decoded text: the answer, or the chain with it."""
    num_contemplation: int
    """Contemplation tokens; an explicit chain's own tokens for `cot`."""
    num_answer: int
    is_truncated: bool
    """True where a cap ended the contemplation or the text."""


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


class Reasoner(Protocol):
    """One method of answering."""

    @property
    def name(self) -> str: ...

    @property
    def ratio(self) -> Decimal: ...

    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        """Answer a batch of questions."""
        ...


def reply_in_parts(reasoner: Reasoner, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
    """Answer a batch; where memory does not suffice, in halves, which gives the same answers.

    Raises:
        ResourceError: where a single question does not fit.
    """
    parts = list(in_parts(questions, reasoner.reply))
    return [reply for replies, _ in parts for reply in replies], reduce(add, (spent for _, spent in parts))


@dataclass(frozen=True)
class Method:
    """What a trained folder was trained for."""

    name: MethodName
    ratio: str
    autoregressive_layer: int = 0
    """l, where there is a φ."""
    num_tokens: int = 0
    """Tokens between query and answer, where their number is fixed."""

    def save(self, folder: Path) -> None:
        write_json(folder / METHOD_FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "Method":
        try:
            return cls(**json.loads((folder / METHOD_FILE).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise CorruptError(f"{folder / METHOD_FILE} cannot be read: {error}", fix=anew(folder)) from error


class Clock:
    """Seconds between looks, with the device's queue emptied first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._now()

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def lap(self) -> float:
        before, self._last = self._last, self._now()
        return self._last - before


@dataclass(frozen=True)
class Prepared:
    """What the answers of a batch are decoded from."""

    sequence: CachedSequence
    num_tokens: list[int]
    """Tokens between query and answer."""
    is_capped: list[bool]
    prefill: float
    """Seconds."""
    contemplation: float
    draft_B: Tensor | None = None
    """What the answers may begin with."""


def answer_positions(theta: Theta, decoding: DecodingConfig) -> int:
    """Positions that <ANS> and the longest answer take."""
    return len(theta.encoder.answer_marker) + decoding.max_answer_tokens


@dataclass
class AnswerReasoner(ABC):
    """Prepares a sequence somehow, and decodes the answer under ψ."""

    theta: Theta
    adapters: Adapters
    method: Method
    decoding: DecodingConfig

    @property
    def ratio(self) -> Decimal:
        return Decimal(self.method.ratio)

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def reserved(self) -> int:
        """Positions that <ANS> and the longest answer take."""
        return answer_positions(self.theta, self.decoding)

    @abstractmethod
    def prepare(self, queries: list[list[int]]) -> Prepared:
        """The queries, and what comes between them and the answers."""

    @torch.no_grad()
    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        queries = [self.theta.encoder.query(question) for question in questions]
        prepared = self.prepare(queries)
        clock = Clock(self.theta.device)
        marker = self.theta.encoder.answer_marker
        limit = self.decoding.max_answer_tokens
        text = decode(
            self.theta,
            self.adapters,
            prepared.sequence,
            [marker] * len(queries),
            max_tokens=limit,
            draft_B=prepared.draft_B,
        )
        replies = [
            Reply(
                answer=read_behind_marker(decoded) or "",
                text=decoded,
                num_contemplation=count,
                num_answer=len(ids),
                is_truncated=too_many or too_long,
            )
            for ids, decoded, count, too_many, too_long in zip(
                text.ids,
                map(self.theta.encoder.decode, text.ids),
                prepared.num_tokens,
                prepared.is_capped,
                text.is_capped,
                strict=True,
            )
        ]
        return replies, Seconds(prepared.prefill, prepared.contemplation, clock.lap())


@dataclass
class ChainReasoner:
    """The explicit chain and its answer (paper, Algorithm 1; r = 1), by θ itself or by an adapter trained on chains."""

    theta: Theta
    adapters: Adapters
    max_chain_tokens: int
    adapter: str | None = None
    name: str = "cot"
    ratio: Decimal = Decimal(1)
    num_thoughts: int = 0
    """Latent tokens between query and text."""
    is_done: Callable[[list[int]], bool] | None = None
    """Whether what was written is all, for a model that would go on."""

    @torch.no_grad()
    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        queries = [self.theta.encoder.query(self.put(question)) for question in questions]
        clock = Clock(self.theta.device)
        # The prompt's last token opens the chain, as <COT> does in the paper.
        opened = [query[:-1] for query in queries]
        # Latent tokens start from the last token's state at index L; text asks for nothing above the top layer's cache.
        layer = self.theta.num_layers - (self.num_thoughts == 0)
        sequence, last_BD = encode_query(self.theta, self.adapters, opened, layer=layer, adapter=self.adapter)
        prefill = clock.lap()
        counts = self.think(sequence, last_BD) if self.num_thoughts else [0] * len(queries)
        text = decode(
            self.theta,
            self.adapters,
            sequence,
            [query[-1:] for query in queries],
            max_tokens=self.max_chain_tokens,
            adapter=self.adapter,
            is_done=self.is_done,
        )
        contemplation = clock.lap()
        replies = [self._read(*each) for each in zip(text.ids, text.is_capped, counts, strict=True)]
        return replies, Seconds(prefill, contemplation, clock.lap())

    def put(self, question: str) -> str:
        """The question as the model is asked it."""
        return question

    def think(self, sequence: CachedSequence, last_BD: Tensor) -> list[int]:
        """Append the latent tokens to the query, whose last state at index L is given; how many each row has."""
        raise NotImplementedError

    def _read(self, ids: list[int], is_capped: bool, num_thoughts: int) -> Reply:
        text = self.theta.encoder.decode(ids)
        marker = self.theta.encoder.answer_marker
        starts = [at for at in range(len(ids)) if ids[at : at + len(marker)] == marker]
        num_chain = starts[-1] if starts else len(ids)
        behind = self.theta.encoder.decode(ids[num_chain + len(marker) :])
        return Reply(
            # A model that was not taught to write the marker has its last number read, if it came to an end.
            answer=read_behind_marker(behind) or read_answer(text) or (not is_capped and read_last_number(text)) or "",
            text=text,
            num_contemplation=num_thoughts + num_chain,
            num_answer=max(0, len(ids) - num_chain - len(marker)),
            is_truncated=is_capped,
        )
