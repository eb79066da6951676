"""COCONUT: the model's last hidden states, fed back as inputs, take the place of the chain's steps (Hao et al., 2024).

The curriculum replaces the chain's lines by latent thoughts from the left, `THOUGHTS` of them a line, more lines with
every stage (one more where there are epochs enough), and the optimiser starts anew with every stage. What is fed back
is the state behind the final norm, and gradients pass through all of it. Nothing says what a thought should hold:
unlike CCoT's tokens, it is learned from the words that follow alone.

Dimensions: B batch, K latent thoughts, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise

from torch import Tensor

from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.base.blocks import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.method import ChainReasoner, Traits, answer_positions
from ccot_cli.models.training.psi import PsiExample, PsiTraining, QueryContext, Read
from ccot_cli.models.training.queries import encode_query
from ccot_cli.models.training.recipes.base import Baseline, Course, Trained, usual_most
from ccot_cli.models.training.recipes.chain import written
from ccot_cli.tensors.masks import first_columns

THOUGHTS = 2
"""Latents that replace one step (the published c)."""


def add_thoughts(theta: Theta, sequence: CachedSequence, last_BD: Tensor, counts: Sequence[int]) -> None:
    """Append a number of latent thoughts to every row, one by one, under the weights in use.

    Args:
        last_BD: The state at index L of the token before them.
        counts: How many, by row; none at all leaves the sequence as it is.
    """
    if not max(counts):
        return
    mask_BK = first_columns(counts, device=theta.device)
    norm: Callable[[Tensor], Tensor] = theta.blocks.norm
    theta.blocks.feed_back(
        sequence, norm(last_BD), mask_BK, layer=theta.num_layers, instead=lambda column, state_BD: norm(state_BD)
    )


@dataclass(frozen=True)
class CoconutContext(QueryContext):
    """What ψ learns to write from: the query and latent thoughts, gradients through both."""

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Read:
        queries, depth = [example.query for example in batch], self.theta.num_layers
        sequence, last_BD = encode_query(self.theta, self.adapters, queries, layer=depth, adapter=PSI)
        add_thoughts(self.theta, sequence, last_BD, [example.num_tokens for example in batch])
        return Read(sequence)


@dataclass
class CoconutReasoner(ChainReasoner):
    """Query, as many latent thoughts as in the last stage, and what is then written."""

    reserved: int = 1
    """Positions to leave for what is written, where the model has a last one."""

    def think(self, sequence: CachedSequence, last_BD: Tensor) -> list[int]:
        self.adapters.use(self.adapter)
        counts: list[int] = (
            self.theta.blocks.free_positions(sequence, self.reserved).clamp_max(self.num_thoughts).tolist()
        )
        add_thoughts(self.theta, sequence, last_BD, counts)
        return counts


class Coconut(Baseline):
    """The first epoch asks for whole chains, the last quarter for the answer after latents alone."""

    name = "coconut"
    traits = Traits("yes", "continuous", "fixed length, autoregressive")
    ratio = Decimal(0)

    def training(self, course: Course) -> PsiTraining:
        lines = [course.theta.encoder.lines(each.chain) for each in course.problems]
        self._most = usual_most([1 + each[-1] for each in lines])

        def lessons(epoch: int) -> list[PsiExample]:
            # Every chain gets as many thoughts: how many steps a question takes is not known when it is asked.
            number = self.stage(course, epoch)
            chains = [
                _from_line(problem.chain, each, number) if number < self._most else []
                for problem, each in zip(course.problems, lines, strict=True)
            ]
            return [
                replace(written(course, problem, chain), num_tokens=THOUGHTS * number)
                for problem, chain in zip(course.problems, chains, strict=True)
            ]

        numbers = [self.stage(course, epoch) for epoch in range(course.chosen.epochs)]
        stages = [epoch for epoch, (before, number) in enumerate(pairwise(numbers), start=1) if number != before]
        return course.training(lessons, self.context(course), stages=stages)

    def context(self, course: Course) -> CoconutContext:
        return CoconutContext(course.theta, course.adapters)

    def stage(self, course: Course, epoch: int) -> int:
        """How many lines are thoughts in an epoch."""
        return course.num_removed(epoch, self._most)

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
            reserved=1 + answer_positions(trained.theta, trained.decoding),
        )


def _from_line(chain: list[int], lines: list[int], first: int) -> list[int]:
    return [token for token, line in zip(chain, lines, strict=True) if line >= first]
