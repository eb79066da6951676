"""COCONUT: the model's last hidden states, fed back as inputs, take the place of the chain's steps (Hao et al., 2024).

The curriculum replaces the chain's lines by latent thoughts from the left, one more with every stage, `THOUGHTS` of
them a line, and the optimiser starts anew with every stage. What is fed back is the state behind the final norm, and
gradients pass through all of it. Nothing says what a thought should hold: unlike CCoT's tokens, it is learned from the
words that follow alone.

Dimensions: B batch, K latent thoughts, D width.
"""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from decimal import Decimal

from torch import Tensor

from ccot_cli.models.adapters import PSI
from ccot_cli.models.baselines.base import Baseline, Course, Trained
from ccot_cli.models.baselines.chain import written
from ccot_cli.models.blocks import Sequence
from ccot_cli.models.phi import feed_back
from ccot_cli.models.psi_training import PsiExample, PsiTraining, QueryContext
from ccot_cli.models.reasoner import ChainReasoner, Traits
from ccot_cli.models.theta import Theta
from ccot_cli.tensors.masks import first_columns

THOUGHTS = 2
"""Latents that replace one step (the published c)."""


def add_thoughts(theta: Theta, sequence: Sequence, last_BD: Tensor, counts: Rows[int]) -> None:
    """Append a number of latent thoughts to every row, one by one, under the weights in use.

    Args:
        last_BD: The state at index L of the token before them.
        counts: How many, by row; none at all leaves the sequence as it is.
    """
    if not max(counts):
        return
    mask_BK = first_columns(counts, device=theta.device)
    norm: Callable[[Tensor], Tensor] = theta.blocks.norm
    feed_back(
        theta, sequence, norm(last_BD), mask_BK, layer=theta.num_layers, instead=lambda column, state_BD: norm(state_BD)
    )


@dataclass(frozen=True)
class CoconutContext(QueryContext):
    """What ψ learns to write from: the query and latent thoughts, gradients through both."""

    def append(self, sequence: Sequence, last_BD: Tensor, counts: Rows[int]) -> None:
        add_thoughts(self.theta, sequence, last_BD, counts)


@dataclass
class CoconutReasoner(ChainReasoner):
    """Query, as many latent thoughts as in the last stage, and what is then written."""

    def think(self, sequence: Sequence, last_BD: Tensor) -> None:
        self.adapters.use(self.adapter)
        add_thoughts(self.theta, sequence, last_BD, [self.num_thoughts] * len(last_BD))


class Coconut(Baseline):
    """The first epoch asks for whole chains, the last quarter for the answer after latents alone."""

    name = "coconut"
    traits = Traits("yes", "continuous", "fixed length, autoregressive")
    ratio = Decimal(0)

    def __init__(self, *, is_staged: bool = True) -> None:
        """Begin at the first stage, or, to see what the curriculum is good for, at the last."""
        self._is_staged = is_staged

    def training(self, course: Course) -> PsiTraining:
        lines = [course.theta.encoder.lines(each.chain) for each in course.problems]
        self._most = 1 + max(each[-1] for each in lines)

        def stage(epoch: int) -> int:
            return course.num_removed(epoch, self._most) if self._is_staged else self._most

        def lessons(epoch: int) -> list[PsiExample]:
            # A shorter chain gets as many thoughts as the longest: how many steps a question takes is not known when it
            # is asked.
            number = stage(epoch)
            return [
                replace(written(course, problem, _from_line(problem.chain, each, number)), num_tokens=THOUGHTS * number)
                for problem, each in zip(course.problems, lines, strict=True)
            ]

        stages = [epoch for epoch in range(1, course.chosen.epochs) if stage(epoch) != stage(epoch - 1)]
        return course.training(lessons, CoconutContext(course.theta, course.adapters), stages=stages)

    def num_tokens(self, course: Course) -> int:
        return THOUGHTS * self._most

    @classmethod
    def load(cls, trained: Trained) -> CoconutReasoner:
        return CoconutReasoner(
            trained.theta,
            trained.adapters,
            trained.decoding.max_chain_tokens,
            adapter=PSI,
            name=cls.name,
            ratio=Decimal(trained.method.ratio),
            num_thoughts=trained.method.num_tokens,
        )


def _from_line(chain: list[int], lines: list[int], first: int) -> list[int]:
    return [token for token, line in zip(chain, lines, strict=True) if line >= first]
