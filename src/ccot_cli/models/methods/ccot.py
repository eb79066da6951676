"""CCoT: contemplation tokens, then the answer (paper, Algorithm 2)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ccot_cli.config import DecodingConfig
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.decoding.thoughts import read_thoughts
from ccot_cli.models.methods.controls import Control, Replacement
from ccot_cli.models.methods.method import AnswerMethod, Clock, MethodInfo, Prepared
from ccot_cli.tensors.select import max_contemplation


@dataclass
class CcotMethod(AnswerMethod):
    """Encodes the query under θ, generates contemplation tokens under φ until END, and answers under ψ."""

    end: End
    draft: Draft
    control: Control | None = None
    """What replaces the contemplation tokens; None leaves them as they are."""
    reads_thoughts: bool = False
    """Whether replies say what the contemplation tokens say, before a control replaces them."""

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

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock = Clock(self.theta.device)
        layer = self.info.autoregressive_layer
        sequence, first_BD = encode_query(self.adapters, queries, layer=layer)
        prefill = clock.lap()
        tokens = contemplate(
            self.adapters,
            sequence,
            first_BD,
            layer=layer,
            max_tokens=max_contemplation(self.ratio, self.decoding.cap_tokens),
            is_end=self.end,
            chance=None if self._is_reference else self.end.chance,
            reserved=self.reserved,
        )
        # The reference engine takes no short cuts. Under a control, ψ does not read these tokens, so a draft made from
        # them would mostly be wrong.
        uses_draft = not (self._is_reference or self.control) and self.draft.pays(len(queries))
        draft_B = self.draft(tokens.final_BD) if uses_draft else None
        if self.control:
            sequence = Replacement(self.adapters, layer, self.control)(queries, tokens)
        counts, is_capped = tokens.num_tokens_B.tolist(), tokens.is_capped_B.tolist()
        contemplation = clock.lap()
        read = partial(read_thoughts, self.theta, self.end, tokens) if self.reads_thoughts else None
        return Prepared(sequence, counts, is_capped, prefill, contemplation, draft_B, read)

    @property
    def _is_reference(self) -> bool:
        return self.decoding.engine == "reference"
