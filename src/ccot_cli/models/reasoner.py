"""The ways to answer a question: at once, after an explicit chain, or after contemplation tokens.

A trained method is a folder: `method.json`, PEFT adapters in `phi/` and `psi/`, the stop classifier in
`end.safetensors`. All answer greedily, in batches.
"""

import json
import time
from collections.abc import Sequence as Rows
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Protocol

import torch

from ccot_cli.config import DecodingConfig
from ccot_cli.data.answers import read_answer, read_last_number
from ccot_cli.errors import CorruptError
from ccot_cli.files import write_json
from ccot_cli.models.adapters import PHI, PSI, Adapters
from ccot_cli.models.controls import Control, Replacement
from ccot_cli.models.end import End
from ccot_cli.models.phi import contemplate, encode_query
from ccot_cli.models.psi import decode
from ccot_cli.models.theta import Theta
from ccot_cli.tensors.select import max_contemplation

METHOD_FILE = "method.json"


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


class Reasoner(Protocol):
    """One method of answering."""

    @property
    def name(self) -> str: ...

    @property
    def ratio(self) -> Decimal: ...

    def reply(self, questions: Rows[str]) -> tuple[list[Reply], Seconds]:
        """Answer a batch of questions."""
        ...


@dataclass(frozen=True)
class Method:
    """What a trained folder was trained for."""

    ratio: str
    autoregressive_layer: int

    def save(self, folder: Path) -> None:
        write_json(folder / METHOD_FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "Method":
        try:
            return cls(**json.loads((folder / METHOD_FILE).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise CorruptError(f"{folder / METHOD_FILE} cannot be read: {error}", fix="ccot train-psi") from error


class _Clock:
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


@dataclass
class CcotReasoner:
    """Contemplation tokens, then the answer (paper, Algorithm 2); none of them at ratio 0."""

    theta: Theta
    adapters: Adapters
    method: Method
    end: End | None
    decoding: DecodingConfig
    control: Control | None = None
    """What stands in the contemplation tokens' place."""

    @property
    def ratio(self) -> Decimal:
        return Decimal(self.method.ratio)

    @property
    def name(self) -> str:
        if not self.ratio:
            return "direct"
        return f"ccot, {self.control}" if self.control else "ccot"

    @torch.no_grad()
    def reply(self, questions: Rows[str]) -> tuple[list[Reply], Seconds]:
        clock = _Clock(self.theta.device)
        layer = self.method.autoregressive_layer
        queries = [self.theta.encoder.query(question) for question in questions]
        # At ratio 0 the query is ψ's too: the model as it is after plain fine-tuning.
        reader = None if self.ratio else PSI
        sequence, first_BD = encode_query(self.theta, self.adapters, queries, layer=layer, adapter=reader)
        prefill = clock.lap()
        counts, is_capped = [0] * len(queries), [False] * len(queries)
        if self.ratio:
            tokens = contemplate(
                self.theta,
                self.adapters,
                sequence,
                first_BD,
                layer=layer,
                max_tokens=max_contemplation(self.ratio, self.decoding.cap_tokens),
                is_end=self.end,
            )
            counts, is_capped = tokens.num_tokens_B.tolist(), tokens.is_capped_B.tolist()
            if self.control:
                sequence = Replacement(self.theta, self.adapters, layer, self.control)(queries, tokens)
        contemplation = clock.lap()
        marker = self.theta.encoder.answer_marker
        limit = self.decoding.max_answer_tokens
        text = decode(self.theta, self.adapters, sequence, [marker] * len(queries), max_tokens=limit)
        replies = [
            Reply(
                answer=decoded.strip(),
                text=decoded,
                num_contemplation=count,
                num_answer=len(ids),
                is_truncated=too_many or too_long,
            )
            for ids, decoded, count, too_many, too_long in zip(
                text.ids, map(self.theta.encoder.decode, text.ids), counts, is_capped, text.is_capped, strict=True
            )
        ]
        return replies, Seconds(prefill, contemplation, clock.lap())


@dataclass
class ChainReasoner:
    """The explicit chain and its answer (paper, Algorithm 1; r = 1), by θ itself or by an adapter trained on chains."""

    theta: Theta
    adapters: Adapters
    max_chain_tokens: int
    adapter: str | None = None
    name: str = "cot"
    ratio: Decimal = Decimal(1)

    @torch.no_grad()
    def reply(self, questions: Rows[str]) -> tuple[list[Reply], Seconds]:
        clock = _Clock(self.theta.device)
        queries = [self.theta.encoder.query(question) for question in questions]
        # The prompt's last token opens the chain, as <COT> does in the paper.
        opened = [query[:-1] for query in queries]
        depth = self.theta.num_layers
        sequence, _ = encode_query(self.theta, self.adapters, opened, layer=depth, adapter=self.adapter)
        prefill = clock.lap()
        text = decode(
            self.theta,
            self.adapters,
            sequence,
            [query[-1:] for query in queries],
            max_tokens=self.max_chain_tokens,
            adapter=self.adapter,
        )
        contemplation = clock.lap()
        replies = [self._read(ids, is_capped) for ids, is_capped in zip(text.ids, text.is_capped, strict=True)]
        return replies, Seconds(prefill, contemplation, clock.lap())

    def _read(self, ids: list[int], is_capped: bool) -> Reply:
        text = self.theta.encoder.decode(ids)
        marker = self.theta.encoder.answer_marker
        starts = [at for at in range(len(ids)) if ids[at : at + len(marker)] == marker]
        num_chain = starts[-1] if starts else len(ids)
        return Reply(
            # A model that was not taught to write #### has its last number read, if it came to an end.
            answer=read_answer(text) or (not is_capped and read_last_number(text)) or "",
            text=text,
            num_contemplation=num_chain,
            num_answer=max(0, len(ids) - num_chain - len(marker)),
            is_truncated=is_capped,
        )


def load_reasoner(theta: Theta, adapters: Adapters, folder: Path, *, decoding: DecodingConfig) -> Reasoner:
    """The method that was trained into `folder`; it takes the adapters' place of any loaded before.

    Raises:
        CorruptError: where a file is damaged or made for another model.
    """
    method = Method.load(folder)
    adapters.load(PSI, folder / PSI)
    if method.ratio == "1":
        return ChainReasoner(theta, adapters, decoding.max_chain_tokens, adapter=PSI)
    end = None
    if method.ratio != "0":
        adapters.load(PHI, folder / PHI)
        end = End.load(folder, theta.model.config.hidden_size).to(theta.device)
    return CcotReasoner(theta, adapters, method, end, decoding)
