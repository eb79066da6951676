"""`gold`: ψ answers from the gold states themselves, what a perfect φ would leave (paper, section 3.2).

An oracle, not a way of answering: it reads the chain of every problem. It tells apart two reasons to fail: what lies
below it φ could not imitate, what lies above it the selected tokens do not hold.

Dimensions: B batch, K contemplation tokens, M chain tokens, I all indices 0..L, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from ccot_cli.data.problems import Problem
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.errors import UsageError
from ccot_cli.models.methods.method import AnswerReasoner, Clock, Prepared, Traits
from ccot_cli.models.selection.gold import STORED_DTYPE, gold_states, place_gold, solution_ids
from ccot_cli.models.selection.selector import Selector
from ccot_cli.models.training.psi import GoldContext, PsiTraining
from ccot_cli.models.training.queries import FreshQueries, read_query
from ccot_cli.models.training.recipes.base import Baseline, Course, Trained

BATCH_TOKENS = 8192


@dataclass
class GoldReasoner(AnswerReasoner):
    """Query, the selected states of the problem's own chain, answer."""

    selector: Selector
    _known: dict[tuple[int, ...], EncodedProblem] = field(default_factory=dict)

    def show(self, problems: Sequence[Problem]) -> None:
        """Make known the chains of the questions that will be asked."""
        encoded = map(self.theta.encoder.problem, problems)
        self._known = {tuple(problem.query): problem for problem in encoded}

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock = Clock(self.theta.device)
        sequence = read_query(self.theta, self.adapters, queries)
        prefill = clock.lap()
        states = [self._selected(query) for query in queries]
        counts = [len(rows) for rows in states]
        place_gold(self.theta, self.adapters, sequence, states)
        return Prepared(sequence, counts, [False] * len(counts), prefill, clock.lap())

    def _selected(self, query: list[int]) -> Tensor:
        """The selected tokens' states at every index: K, I, D."""
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


class Gold(Baseline):
    name = "gold"
    traits = Traits("yes", "continuous", "oracle: reads the chain")
    reads_gold = True

    def training(self, course: Course) -> PsiTraining:
        assert course.selector is not None
        self._selector = course.selector
        lessons = [
            replace(lesson, num_tokens=len(states_JID) - 1)
            for lesson, states_JID in zip(course.answers(0), course.gold, strict=True)
        ]
        ids = [problem.query for problem in course.problems]
        queries = FreshQueries(course.theta, course.adapters, ids, course.theta.num_layers - 1)
        return course.training(lessons, GoldContext(course.theta, course.adapters, queries, course.gold))

    def save(self, folder: Path) -> None:
        self._selector.save(folder)

    @classmethod
    def load(cls, trained: Trained) -> GoldReasoner:
        selector = Selector.load(trained.theta, trained.folder)
        return GoldReasoner(trained.theta, trained.adapters, trained.method, trained.decoding, selector)
