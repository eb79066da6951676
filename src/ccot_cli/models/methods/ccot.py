"""CCoT as a way of answering: contemplation tokens, then the answer (paper, Algorithm 2)."""

from dataclasses import dataclass

from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.methods.controls import Control, Replacement
from ccot_cli.models.methods.method import AnswerReasoner, Clock, Prepared, Traits
from ccot_cli.models.training.queries import encode_query
from ccot_cli.tensors.select import max_contemplation

TRAITS = Traits("yes", "continuous", "variable length, autoregressive")


@dataclass
class CcotReasoner(AnswerReasoner):
    """Contemplation tokens, then the answer (paper, Algorithm 2)."""

    end: End
    draft: Draft
    control: Control | None = None
    """What stands in the contemplation tokens' place."""

    @property
    def name(self) -> str:
        return f"{self.method.name}, {self.control}" if self.control else self.method.name

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock = Clock(self.theta.device)
        layer = self.method.autoregressive_layer
        sequence, first_BD = encode_query(self.theta, self.adapters, queries, layer=layer)
        prefill = clock.lap()
        most = max_contemplation(self.ratio, self.decoding.cap_tokens)
        tokens = contemplate(
            self.theta,
            self.adapters,
            sequence,
            first_BD,
            layer=layer,
            max_tokens=most,
            is_end=self.end,
            chance=None if self._is_reference else self.end.chance,
            reserved=self.reserved,
        )
        drafts = not (self._is_reference or self.control) and self.draft.pays(len(queries))
        draft_B = self.draft(tokens.final_BD) if drafts else None
        if self.control:
            sequence = Replacement(self.theta, self.adapters, layer, self.control)(queries, tokens)
        counts, is_capped = tokens.num_tokens_B.tolist(), tokens.is_capped_B.tolist()
        return Prepared(sequence, counts, is_capped, prefill, clock.lap(), draft_B)

    @property
    def _is_reference(self) -> bool:
        return self.decoding.engine == "reference"
