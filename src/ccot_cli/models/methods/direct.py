"""Answer at once, with nothing between query and answer (r = 0)."""

from dataclasses import dataclass
from pathlib import Path

from ccot_cli.config import DecodingConfig
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.decoding.query import read_query
from ccot_cli.models.methods.method import AnswerMethod, Clock, MethodInfo, Prepared


@dataclass
class DirectMethod(AnswerMethod):
    """Reads the query and answers, both under ψ."""

    @classmethod
    def load(cls, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path) -> "DirectMethod":
        """Make the method; ψ must be loaded already."""
        return cls(adapters, info, decoding)

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock = Clock(self.theta.device)
        sequence = read_query(self.adapters, queries, adapter=PSI)
        return Prepared(sequence, [0] * len(queries), [False] * len(queries), clock.lap(), 0.0)
