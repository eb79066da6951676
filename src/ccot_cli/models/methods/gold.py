"""`gold`: ψ answers from the gold states themselves, which a perfect φ would generate (paper, section 3.2).

An oracle, not a practical method: it reads the chain of every problem. It separates two causes of wrong answers. If it
is right and CCoT is wrong, φ failed to imitate the gold states. If it is wrong, the selected tokens do not hold enough.

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
from ccot_cli.models.selection.gold import gold_states, place_gold, solution_ids
from ccot_cli.models.selection.selector import Selector


@dataclass
class GoldMethod(AnswerMethod):
    """Reads the query under θ, takes the selected states of the problem's chain, and answers under ψ."""

    selector: Selector
    _problems: dict[tuple[int, ...], EncodedProblem] = field(default_factory=dict)
    """By the ids of their queries."""

    @classmethod
    def load(cls, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path) -> "GoldMethod":
        """Load the selector; ψ must be loaded already.

        Raises:
            CorruptError: if the selector is damaged or made for another model.
        """
        return cls(adapters, info, decoding, Selector.load(adapters.theta, folder))

    def show(self, problems: Sequence[Problem]) -> None:
        """Remember the chains of the problems whose questions will be asked."""
        encoded = map(self.theta.encoder.problem, problems)
        self._problems = {tuple(problem.query): problem for problem in encoded}

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock = Clock(self.theta.device)
        sequence = read_query(self.adapters, queries)
        prefill = clock.lap()
        states = [self._selected(query) for query in queries]
        counts = [len(rows) for rows in states]
        place_gold(self.adapters, sequence, states)
        return Prepared(sequence, counts, [False] * len(counts), prefill, clock.lap())

    def _selected(self, query: list[int]) -> Tensor:
        """Compute the selected tokens' states at every index: K, I, D.

        Raises:
            UsageError: if the question's chain is not known, or longer than the model's positions.
        """
        try:
            problem = self._problems[tuple(query)]
        except KeyError:
            raise UsageError(
                "gold needs the chain of a problem, and this question has none", fix="ccot eval --methods gold"
            ) from None
        num_tokens, num_positions = len(solution_ids(self.theta, problem)), self.theta.blocks.num_positions
        if num_positions is not None and num_tokens > num_positions:
            raise UsageError(
                f"a solution of {num_tokens:,} tokens is longer than the model's {num_positions:,} positions",
                fix="leave out gold, or this problem",
            )
        self.adapters.use(None)
        indices = range(self.theta.num_layers + 1)
        [(_, states_JID)] = gold_states(self.theta, [problem], indices=indices, batch_tokens=1)
        # The first gold row stands for z_0, the others for the chain.
        chain_MID = states_JID[1:]
        return chain_MID[self.selector.positions(problem, states_MD=chain_MID[:, self.selector.layer])]
