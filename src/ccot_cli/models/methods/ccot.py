"""CCoT: contemplation tokens, then the answer (paper, Algorithm 2)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ccot_cli.config import DecodingConfig
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.history import History
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.explanation import KeptTokens, explain, hidden_columns, told_to_read
from ccot_cli.models.decoding.phi import Contemplation, contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.decoding.thoughts import GoldStates, read_thoughts
from ccot_cli.models.methods.controls import Control, replace_tokens, token_states
from ccot_cli.models.methods.method import AnswerMethod, Clock, MethodInfo, Prepared
from ccot_cli.tensors.select import max_contemplation


@dataclass
class CcotMethod(AnswerMethod):
    """Reads the query under θ, or φ, generates contemplation tokens under φ until END, and answers under ψ."""

    end: End
    draft: Draft
    control: Control | None = None
    """What replaces the contemplation tokens; None leaves them as they are."""
    reads_thoughts: bool = False
    """Whether replies say what the contemplation tokens say, before a control replaces them."""
    gold: GoldStates | None = None
    """What the contemplation tokens are compared to where they are read."""
    explains: bool = False
    """Whether replies have the chain that the decoder, which must be loaded, reads from the contemplation tokens."""

    @classmethod
    def load(cls, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path) -> "CcotMethod":
        """Load φ, END and the draft; ψ must be loaded already.

        Raises:
            CorruptError: if a file is damaged or made for another model.
        """
        adapters.load(PHI, folder / PHI)
        config, device = adapters.theta.model.config, adapters.theta.device
        end = End.load(folder, config.hidden_size).to(device)
        draft = Draft.load(folder, config.hidden_size, config.vocab_size).to(device)
        return cls(adapters, info, decoding, end, draft)

    @property
    def name(self) -> str:
        return f"{self.info.name}, {self.control}" if self.control else self.info.name

    @property
    def training(self) -> dict[str, History | None]:
        return self.adapters.histories(PHI, PSI)

    @property
    def reader(self) -> str | None:
        """Adapter that reads the query; None is θ."""
        return PHI if self.info.query_under == "phi" else None

    def read(self, queries: list[list[int]]) -> tuple[CachedSequence, Tensor]:
        """Read queries, and return their sequence and z_0, as `encode_query` does."""
        return encode_query(self.adapters, queries, layer=self.info.autoregressive_layer, adapter=self.reader)

    def token_states(self, queries: list[list[int]], tokens: Contemplation) -> Tensor:
        """Run generated tokens again, for their states at every index: B, I, K, D."""
        return token_states(self.adapters, queries, tokens, reader=self.reader)

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock = Clock(self.theta.device)
        sequence, first_BD = self.read(queries)
        prefill = clock.lap()
        tokens = self.generate(sequence, first_BD)
        # The reference engine takes no short cuts. Under a control, ψ does not read these tokens, so a draft made from
        # them would mostly be wrong.
        uses_draft = not (self._is_reference or self.control) and self.draft.pays(len(queries))
        draft_B = self.draft(tokens.final_BD) if uses_draft else None
        lower_BKD = tokens.lower_BKD
        if self.control:
            sequence, lower_BKD = replace_tokens(
                self.adapters, queries, tokens, self.control, layer=self.info.autoregressive_layer, reader=self.reader
            )
        counts, is_capped = tokens.num_tokens_B.tolist(), tokens.is_capped_B.tolist()
        contemplation = clock.lap()
        read = partial(read_thoughts, self.theta, self.end, tokens, self.gold) if self.reads_thoughts else None
        write = None
        if self.explains:
            # Hidden now, because the answer will be appended to the sequence.
            hidden = sequence.hiding(hidden_columns(self.theta.encoder, queries).to(self.theta.device))
            words = self._words(lower_BKD, counts)
            write = partial(explain, self.adapters, hidden, queries, words, max_tokens=self.decoding.max_chain_tokens)
        return Prepared(sequence, counts, is_capped, prefill, contemplation, draft_B, read, write)

    def _words(self, lower_BKD: Tensor, counts: list[int]) -> list[list[int]]:
        """Return what the decoder is told of each row before it reads the results."""
        return [told_to_read(self.theta, lower_KD[:count]) for lower_KD, count in zip(lower_BKD, counts, strict=True)]

    @torch.no_grad()
    def kept_tokens(self, queries: list[list[int]]) -> list[KeptTokens]:
        """Generate contemplation tokens, and return what a decoder learns to read results from, for each query."""
        sequence, first_BD = self.read(queries)
        num_query = sequence.mask_BS.shape[1]
        tokens = self.generate(sequence, first_BD)
        counts = tokens.num_tokens_B.tolist()
        both = sequence.kept()
        columns = [
            [num_query - len(query), *range(num_query, num_query + count)]
            for query, count in zip(queries, counts, strict=True)
        ]
        words = self._words(tokens.lower_BKD, counts)
        return [KeptTokens(both[:, row, :, each], words[row]) for row, each in enumerate(columns)]

    def generate(self, sequence: CachedSequence, first_BD: Tensor) -> Contemplation:
        """Generate the contemplation tokens until END.

        Args:
            sequence: The queries; extended.
            first_BD: z_0.
        """
        return contemplate(
            self.adapters,
            sequence,
            first_BD,
            layer=self.info.autoregressive_layer,
            max_tokens=max_contemplation(self.ratio, self.decoding.cap_tokens),
            is_end=self.end,
            chance=None if self._is_reference else self.end.chance,
            reserved=self.reserved,
        )

    @property
    def _is_reference(self) -> bool:
        return self.decoding.engine == "reference"
