"""The methods that CCoT is compared with: same base, same data, as many steps as ψ unless more are asked for, same
clock.

Each is one class. It says what ψ reads and is asked in every epoch (`training`), what it keeps
beside ψ (`save`), and how it answers (`load`). Batches, steps, checkpoints and decoding are those of CCoT.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from ccot_cli.config import DecodingConfig, TrainPsiConfig
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.method import Method, Reasoner, Traits
from ccot_cli.models.selection.selector import Selector
from ccot_cli.models.training.psi import Context, Lessons, PsiExample, PsiTraining, QueryContext
from ccot_cli.names import BaselineName
from ccot_cli.tensors.select import num_kept

LAST_SHARE = 0.25
"""Share of a curriculum's epochs in which nothing of the chain is left."""


USUAL_SHARE = 0.95
"""Share of chains that a curriculum shortens part by part; a few very long ones lose their rest at once."""


def usual_most(counts: Sequence[int]) -> int:
    """How many parts a curriculum takes away: as many as all chains but the longest have."""
    return sorted(counts)[ceil(USUAL_SHARE * len(counts)) - 1]


@dataclass(frozen=True)
class Course:
    """What a baseline learns from, and how long."""

    theta: Theta
    adapters: Adapters
    """With a fresh ψ."""
    problems: Sequence[EncodedProblem]
    """Training problems."""
    ratio: Decimal
    chosen: TrainPsiConfig
    gold: Sequence[Tensor] = ()
    """z_0 .. z_k of every problem at every index, for a method that reads them: 1 + k, L + 1, D."""
    selector: Selector | None = None
    """What chose them."""

    @property
    def num_tokens(self) -> int:
        """k = ceil(r m) of the mean chain: how long a question's own would have been is not known when it is asked."""
        mean = round(sum(len(each.chain) for each in self.problems) / len(self.problems))
        return num_kept(self.ratio, mean) if self.ratio else 0

    @property
    def num_falling(self) -> int:
        """Epochs of a curriculum until nothing of the chain is left; the last quarter of them all, and one at least, is
        left for that.

        Raises:
            UsageError: where there is one epoch only, so that the curriculum would never come to its end.
        """
        epochs = self.chosen.epochs
        if epochs < 2:
            raise UsageError("a curriculum needs two epochs at least: with the chain and without it", fix="--epochs 8")
        return min(epochs - 1, max(1, round((1 - LAST_SHARE) * epochs)))

    def num_removed(self, epoch: int, most: int) -> int:
        """How many of a chain's parts are gone in an epoch: none in the first, all when it has fallen."""
        return most if epoch >= self.num_falling else epoch * most // self.num_falling

    def answers(self, num_tokens: int) -> list[PsiExample]:
        """The answer, asked for with <ANS> after as many tokens of the method's own."""
        marker = self.theta.encoder.answer_marker
        return [PsiExample(each.query, marker, each.answer, num_tokens) for each in self.problems]

    def training(
        self, lessons: Sequence[PsiExample] | Lessons, context: Context | None = None, *, stages: Sequence[int] = ()
    ) -> PsiTraining:
        """The steps of `train_psi`'s settings; without a context, ψ reads the query itself."""
        return PsiTraining(
            self.theta,
            self.adapters,
            lessons,
            context or QueryContext(self.theta, self.adapters),
            epochs=self.chosen.epochs,
            batch_size=self.chosen.batch_size,
            learning_rate=self.chosen.learning_rate,
            optimiser=self.chosen.optimiser,
            micro_batch_size=self.chosen.micro_batch_size,
            seed=self.chosen.seed,
            stages=stages,
        )


@dataclass(frozen=True)
class Trained:
    """A trained folder, its ψ loaded."""

    theta: Theta
    adapters: Adapters
    method: Method
    decoding: DecodingConfig
    folder: Path


class Baseline(ABC):
    """One method."""

    name: ClassVar[BaselineName]
    traits: ClassVar[Traits]
    ratio: ClassVar[Decimal | None] = None
    """Where the method has one of its own; None where it gets CCoT's."""
    reads_gold: ClassVar[bool] = False
    """Whether it needs the gold states of the selected tokens."""

    @abstractmethod
    def training(self, course: Course) -> PsiTraining:
        """What is to be trained."""

    def num_tokens(self, course: Course) -> int:
        """Tokens between query and answer, where their number is fixed."""
        return 0

    def save(self, folder: Path) -> None:  # noqa: B027 (most methods learn nothing beside ψ)
        """Keep what was learned beside ψ."""

    @classmethod
    @abstractmethod
    def load(cls, trained: Trained) -> Reasoner:
        """How it answers.

        Raises:
            CorruptError: where a file is damaged or made for another model.
        """
