"""A recipe trains a method that CCoT is compared with: same base, same data, ψ's number of steps unless more are asked.

Each recipe is one class. `training` determines what ψ reads and what it learns to write in every epoch; `save` writes
what was learned beside ψ. The training loop is that of CCoT's ψ.

Dimensions: D width.
"""

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import ceil
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from ccot_cli.config import TrainPsiConfig
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.selection.selector import Selector
from ccot_cli.models.training.contexts import Context, QueryContext
from ccot_cli.models.training.examples import ExamplesByEpoch, PsiExample
from ccot_cli.models.training.psi import HeldOut, PsiTraining
from ccot_cli.names import BaselineName
from ccot_cli.tensors.select import num_kept

ANSWER_ONLY_FRACTION = 0.25
"""Proportion of a curriculum's epochs in which nothing of the chain is left."""
USUAL_FRACTION = 0.95
"""Proportion of chains that a curriculum removes part by part; the longest chains lose their last parts all at once."""


def usual_length(lengths: Sequence[int]) -> int:
    """Return the length that 95 % of the chains do not exceed: how many parts a curriculum removes one by one.

    Args:
        lengths: Number of parts (tokens, or lines) of every chain.
    """
    return sorted(lengths)[ceil(USUAL_FRACTION * len(lengths)) - 1]


@dataclass(frozen=True)
class RecipeSetup:
    """What a method is trained from, and with which settings."""

    adapters: Adapters
    """With a fresh ψ."""
    problems: Sequence[EncodedProblem]
    """Training problems."""
    ratio: Decimal
    """r."""
    config: TrainPsiConfig
    gold: Sequence[Tensor] = ()
    """z_0 .. z_k of every problem at every index (1 + k, L + 1, D), if the recipe reads them."""
    selector: Selector | None = None
    """What selected the tokens of these states."""

    @property
    def num_tokens(self) -> int:
        """k = ceil(r m) for the mean length m of the chains: a question's own m is not known when it is asked."""
        mean = round(sum(len(each.chain) for each in self.problems) / len(self.problems))
        return num_kept(self.ratio, mean) if self.ratio else 0

    @property
    def num_falling(self) -> int:
        """Number of epochs until nothing of the chain is left; the last quarter, at least one, is without a chain."""
        epochs = self.config.epochs
        return min(epochs - 1, max(1, round((1 - ANSWER_ONLY_FRACTION) * epochs)))

    def num_removed(self, epoch: int, length: int) -> int:
        """Compute how many parts of a chain are removed in an epoch: none in the first, all after the curriculum.

        Args:
            epoch: Counted from 0.
            length: Number of parts that the curriculum removes, from `usual_length`.
        """
        return length if epoch >= self.num_falling else epoch * length // self.num_falling


def within_positions(setup: RecipeSetup, example: PsiExample) -> PsiExample:
    """Drop tokens between query and answer that the model has no positions for.

    The method drops more when it answers, because it reserves the longest answer that the settings allow.
    """
    most = setup.adapters.theta.blocks.num_positions
    if most is None:
        return example
    return replace(example, num_tokens=min(example.num_tokens, most - (example.length - example.num_tokens)))


class Recipe(ABC):
    """Trains one method; how the method answers is in `models/methods`. Call `training` first."""

    name: ClassVar[BaselineName]
    reads_gold: ClassVar[bool] = False
    """Whether it needs the gold states of selected tokens."""
    has_curriculum: ClassVar[bool] = False
    """Whether it removes the chain from epoch to epoch."""

    @classmethod
    def check(cls, config: TrainPsiConfig) -> None:
        """Refuse settings that it cannot be trained with.

        Raises:
            UsageError: if a curriculum has one epoch only, which would leave none without a chain.
        """
        if cls.has_curriculum and config.epochs < 2:
            raise UsageError(
                f"{cls.name} needs at least two epochs: with the chain and without it", fix="--epochs 8, for example"
            )

    def training(self, setup: RecipeSetup) -> PsiTraining:
        """Make the training of ψ, and of what learns with it."""
        return self._training(setup, [self.example(setup, each) for each in setup.problems])

    def _training(
        self, setup: RecipeSetup, examples: Sequence[PsiExample] | ExamplesByEpoch, *, stages: Sequence[int] = ()
    ) -> PsiTraining:
        """Make the training from what ψ learns from, the same in every epoch or a curriculum with its stages."""
        return PsiTraining(setup.adapters, examples, self.context(setup), setup.config, stages=stages)

    def example(self, setup: RecipeSetup, problem: EncodedProblem) -> PsiExample:
        """Make a problem's example as the method answers it; with a curriculum, that of the last epochs.

        By default: after the query and the method's tokens, <ANS> and then the answer.

        Args:
            problem: A training problem, or another one.
        """
        marker = setup.adapters.theta.encoder.answer_marker
        return within_positions(setup, PsiExample(problem.query, marker, problem.answer, self.num_tokens(setup)))

    def context(self, setup: RecipeSetup) -> Context:
        """Make what ψ reads of the problems before it answers; by default the query, under ψ itself."""
        return QueryContext(setup.adapters)

    def held_out(self, setup: RecipeSetup, problems: Sequence[EncodedProblem], gold: Sequence[Tensor] = ()) -> HeldOut:
        """Make what ψ is judged on from validation problems.

        Args:
            gold: Their gold states, as in the setup.
        """
        examples = [self.example(setup, each) for each in problems]
        return HeldOut(examples, self.context(replace(setup, problems=problems, gold=gold)))

    def num_tokens(self, setup: RecipeSetup) -> int:
        """Count the tokens between query and answer if their number is fixed; else return 0."""
        return 0

    def save(self, folder: Path) -> None:  # noqa: B027 (most recipes learn nothing beside ψ)
        """Write what was learned beside ψ into a trained folder."""
