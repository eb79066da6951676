"""Answer by writing a chain: θ's own, or that of a ψ trained to write one (paper, Algorithm 1).

Dimensions: B batch, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import torch
from torch import Tensor

from ccot_cli.config import DecodingConfig
from ccot_cli.data.answers import read_answer, read_behind_marker, read_last_number
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.psi import decode
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.method import Clock, MethodInfo, Reply, Seconds


@dataclass
class ChainMethod:
    """The explicit chain and its answer (r = 1), by θ itself or by an adapter trained on chains."""

    adapters: Adapters
    max_chain_tokens: int
    adapter: str | None = None
    name: str = "cot"
    ratio: Decimal = Decimal(1)
    num_thoughts: int = 0
    """Latent tokens between query and text."""
    is_done: Callable[[list[int]], bool] | None = None
    """Whether a row that has written these tokens ends there, for a model that would go on."""

    @classmethod
    def load(cls, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path) -> "ChainMethod":
        """Write with the ψ that is loaded."""
        return cls(adapters, decoding.max_chain_tokens, adapter=PSI, name=info.name, ratio=Decimal(info.ratio))

    @property
    def theta(self) -> Theta:
        return self.adapters.theta

    @torch.no_grad()
    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        queries = [self.theta.encoder.query(self.put(question)) for question in questions]
        clock = Clock(self.theta.device)
        # The prompt's last token opens the chain, as <COT> does in the paper.
        opened = [query[:-1] for query in queries]
        # Latent tokens start from the last token's state at index L; text needs only the top layer's cache.
        layer = self.theta.num_layers - (self.num_thoughts == 0)
        sequence, last_BD = encode_query(self.adapters, opened, layer=layer, adapter=self.adapter)
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
        replies = [self._read(*each) for each in zip(text.ids, text.is_capped, counts, strict=True)]
        return replies, Seconds(prefill, contemplation, clock.lap())

    def put(self, question: str) -> str:
        """Phrase the question as the model is asked it."""
        return question

    def think(self, sequence: CachedSequence, last_BD: Tensor) -> list[int]:
        """Append the latent tokens to the query, given its last state at index L; returns how many each row has."""
        raise NotImplementedError

    def _read(self, ids: list[int], is_capped: bool, num_thoughts: int) -> Reply:
        text = self.theta.encoder.decode(ids)
        marker = self.theta.encoder.answer_marker
        starts = [at for at in range(len(ids)) if ids[at : at + len(marker)] == marker]
        num_chain = starts[-1] if starts else len(ids)
        behind = self.theta.encoder.decode(ids[num_chain + len(marker) :])
        return Reply(
            # If a model was not taught the marker, its last number counts, provided that it came to an end.
            answer=read_behind_marker(behind) or read_answer(text) or (not is_capped and read_last_number(text)) or "",
            text=text,
            num_contemplation=num_thoughts + num_chain,
            num_answer=max(0, len(ids) - num_chain - len(marker)),
            is_truncated=is_capped,
        )
