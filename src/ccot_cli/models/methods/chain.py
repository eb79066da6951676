"""Answer by writing a chain, under θ or under a ψ trained to write one (paper, Algorithm 1).

Dimensions: B batch, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import torch
from torch import Tensor

from ccot_cli.config import DecodingConfig
from ccot_cli.data.answers import read_after_marker, read_answer, read_last_number
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.history import History
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.psi import decode
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.calibration import Calibration
from ccot_cli.models.methods.method import Clock, MethodInfo, Reply, Seconds, confidence


@dataclass
class ChainMethod:
    """Writes an explicit chain and its answer (r = 1), under θ itself or an adapter trained on chains."""

    adapters: Adapters
    max_chain_tokens: int
    adapter: str | None = None
    name: str = "cot"
    ratio: Decimal = Decimal(1)
    num_thoughts: int = 0
    """Latent tokens between query and text; 0 unless a subclass implements `think`."""
    is_done: Callable[[list[int]], bool] | None = None
    """Whether a row that has written these ids ends there, for a model that would go on."""
    calibration: Calibration | None = None

    @classmethod
    def load(cls, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path) -> "ChainMethod":
        """Make a method that writes under ψ, which must be loaded already."""
        return cls(adapters, decoding.max_chain_tokens, adapter=PSI, name=info.name, ratio=Decimal(info.ratio))

    @property
    def theta(self) -> Theta:
        return self.adapters.theta

    @property
    def training(self) -> dict[str, History | None]:
        """None if θ itself writes the chain."""
        return self.adapters.histories(self.adapter) if self.adapter else {}

    @torch.no_grad()
    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        queries = [self.theta.encoder.query(self.phrase(question)) for question in questions]
        clock = Clock(self.theta.device)
        # The query's last token opens the chain, as <COT> does in the paper: it is fed with the text.
        prefixes = [query[:-1] for query in queries]
        # Latent tokens start from the last token's state at index L. Text needs only the cache: without latent tokens,
        # the top layer stops after its keys and values.
        layer = self.theta.num_layers - (self.num_thoughts == 0)
        sequence, last_BD = encode_query(self.adapters, prefixes, layer=layer, adapter=self.adapter)
        prefill = clock.lap()
        counts = self.think(sequence, last_BD) if self.num_thoughts else [0] * len(queries)
        text = decode(
            self.adapters,
            sequence,
            [query[-1:] for query in queries],
            max_tokens=self.max_chain_tokens,
            adapter=self.adapter,
            is_done=self.is_done,
        )
        contemplation = clock.lap()
        replies = [self._read(*each) for each in zip(text.ids, text.chances, text.is_capped, counts, strict=True)]
        return replies, Seconds(prefill, contemplation, clock.lap())

    def phrase(self, question: str) -> str:
        """Phrase the question for the model."""
        return question

    def think(self, sequence: CachedSequence, last_BD: Tensor) -> list[int]:
        """Append the latent tokens to the query.

        Args:
            sequence: The query; extended.
            last_BD: The state of its last token at index L.

        Returns:
            How many latent tokens each row has.
        """
        raise NotImplementedError

    def _read(self, ids: list[int], chances: list[float], is_capped: bool, num_thoughts: int) -> Reply:
        text = self.theta.encoder.decode(ids)
        marker = self.theta.encoder.answer_marker
        starts = [start for start in range(len(ids)) if ids[start : start + len(marker)] == marker]
        num_chain = starts[-1] if starts else len(ids)
        after_marker = self.theta.encoder.decode(ids[num_chain + len(marker) :])
        answer = read_after_marker(after_marker) or read_answer(text)
        if not answer and not is_capped:
            # The model may not have been taught the marker. If the text came to an end, its last number counts.
            answer = read_last_number(text)
        return Reply(
            answer=answer or "",
            text=text,
            num_contemplation=num_thoughts + num_chain,
            num_answer=max(0, len(ids) - num_chain - len(marker)),
            is_truncated=is_capped or num_thoughts < self.num_thoughts,
            confidence=confidence(self.theta, ids, chances, self.calibration),
        )
