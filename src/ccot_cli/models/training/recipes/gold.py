"""Train the gold ceiling: ψ learns to answer from the gold states of the selected tokens (paper, section 3.2)."""

from dataclasses import replace
from pathlib import Path

from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.training.contexts import GoldContext
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.queries import FreshQueries
from ccot_cli.models.training.recipes.base import Recipe, RecipeSetup
from ccot_cli.tensors.select import num_kept


class GoldRecipe(Recipe):
    """Fine-tuning on answers after gold states in the contemplation tokens' place."""

    name = "gold"
    reads_gold = True

    def training(self, setup: RecipeSetup) -> PsiTraining:
        assert setup.selector is not None
        self._selector = setup.selector
        return super().training(setup)

    def example(self, setup: RecipeSetup, problem: EncodedProblem) -> PsiExample:
        return replace(super().example(setup, problem), num_tokens=num_kept(setup.ratio, len(problem.chain)))

    def context(self, setup: RecipeSetup) -> GoldContext:
        ids = [problem.query for problem in setup.problems]
        # z_0 is not read. With the index before the last, the top layer stops after its keys and values.
        queries = FreshQueries(setup.adapters, ids, setup.adapters.theta.num_layers - 1)
        return GoldContext(setup.adapters, queries, setup.gold)

    def save(self, folder: Path) -> None:
        self._selector.save(folder)
