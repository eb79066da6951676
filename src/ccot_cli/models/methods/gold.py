"""`gold`: ψ answers from the gold states themselves, what a perfect φ would leave (paper, section 3.2).

An oracle, not a way of answering: it reads the chain of every problem. It separates two reasons to fail: what it gets
right and CCoT does not, φ failed to imitate; what it gets wrong, the selected tokens do not hold.

Dimensions: K contemplation tokens, M chain tokens, J = 1 + M gold rows, I all indices 0..L, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ccot_cli.config import DecodingConfig
from ccot_cli.data.problems import Problem
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.decoding.query import read_query
from ccot_cli.models.methods.method import AnswerMethod, Clock, MethodInfo, Prepared
from ccot_cli.models.selection.gold import STORED_DTYPE, gold_states, place_gold, solution_ids
from ccot_cli.models.selection.selector import Selector

BATCH_TOKENS = 8192


@dataclass
class GoldMethod(AnswerMethod):
    """Query, the selected states of the problem's own chain, answer."""

    selector: Selector
    _known: dict[tuple[int, ...], EncodedProblem] = field(default_factory=dict)

    @classmethod
    def load(cls, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path) -> "GoldMethod":
        """Read the selector; answer with the ψ that is loaded.

        Raises:
            CorruptError: if the selector is damaged or made for another model.
        """
        return cls(adapters, info, decoding, Selector.load(adapters.theta, folder))

    def show(self, problems: Sequence[Problem]) -> None:
        """Make known the chains of the questions that will be asked."""
        encoded = map(self.theta.encoder.problem, problems)
        self._known = {tuple(problem.query): problem for problem in encoded}

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock = Clock(self.theta.device)
        sequence = read_query(self.adapters, queries)
        prefill = clock.lap()
        states = [self._selected(query) for query in queries]
        counts = [len(rows) for rows in states]
        place_gold(self.adapters, sequence, states)
        return Prepared(sequence, counts, [False] * len(counts), prefill, clock.lap())

    def _selected(self, query: list[int]) -> Tensor:
        """Compute the selected tokens' states at every index: K, I, D."""
        try:
            problem = self._known[tuple(query)]
        except KeyError:
            raise UsageError(
                "gold answers from the chain of a problem, and this question has none", fix="ccot eval --methods gold"
            ) from None
        num_tokens, most = len(solution_ids(self.theta, problem)), self.theta.blocks.num_positions
        if most is not None and num_tokens > most:
            raise UsageError(
                f"a solution of {num_tokens:,} tokens is longer than the model's {most:,} positions",
                fix="leave gold out, or the problem",
            )
        self.adapters.use(None)
        indices = range(self.theta.num_layers + 1)
        [(_, states_JID)] = gold_states(
            self.theta, [problem], indices=indices, batch_tokens=BATCH_TOKENS, dtype=STORED_DTYPE
        )
        kept = self.selector.positions(problem, states_MD=states_JID[1:, self.selector.layer])
        return states_JID[1:][kept]
