"""A recipe trains a method that CCoT is compared with: same base, same data, as many steps as ψ unless more are asked.

Each is one class: it says what ψ reads and is asked in every epoch (`training`), and what it keeps beside ψ (`save`).
Batches, steps and checkpoints are those of CCoT's ψ.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
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
from ccot_cli.models.training.psi import PsiTraining
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
class RecipeSetup:
    """What a baseline learns from, and how long."""

    adapters: Adapters
    """With a fresh ψ."""
    problems: Sequence[EncodedProblem]
    """Training problems."""
    ratio: Decimal
    config: TrainPsiConfig
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
        epochs = self.config.epochs
        if epochs < 2:
            raise UsageError("a curriculum needs two epochs at least: with the chain and without it", fix="--epochs 8")
        return min(epochs - 1, max(1, round((1 - LAST_SHARE) * epochs)))

    def num_removed(self, epoch: int, most: int) -> int:
        """How many of a chain's parts are gone in an epoch: none in the first, all when it has fallen."""
        return most if epoch >= self.num_falling else epoch * most // self.num_falling

    def answers(self, num_tokens: int) -> list[PsiExample]:
        """The answer, asked for with <ANS> after as many tokens of the method's own."""
        marker = self.adapters.theta.encoder.answer_marker
        return [PsiExample(each.query, marker, each.answer, num_tokens) for each in self.problems]

    def train_psi(
        self,
        examples: Sequence[PsiExample] | ExamplesByEpoch,
        context: Context | None = None,
        *,
        stages: Sequence[int] = (),
    ) -> PsiTraining:
        """Train ψ with the settings of `train_psi`; without a context, ψ reads the query itself."""
        return PsiTraining(self.adapters, examples, context or QueryContext(self.adapters), self.config, stages=stages)


class Recipe(ABC):
    """Trains one method; how that answers is in `models/methods`."""

    name: ClassVar[BaselineName]
    reads_gold: ClassVar[bool] = False
    """Whether it needs the gold states of the selected tokens."""

    @abstractmethod
    def training(self, setup: RecipeSetup) -> PsiTraining:
        """Say what is to be trained."""

    def num_tokens(self, setup: RecipeSetup) -> int:
        """Count the tokens between query and answer, if their number is fixed."""
        return 0

    def save(self, folder: Path) -> None:  # noqa: B027 (most methods learn nothing beside ψ)
        """Keep what was learned beside ψ."""
