"""Train the gold ceiling: ψ learns to answer from the gold states of the selected tokens (paper, section 3.2)."""

from dataclasses import replace
from pathlib import Path

from ccot_cli.models.training.contexts import GoldContext
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.queries import FreshQueries
from ccot_cli.models.training.recipes.base import Recipe, RecipeSetup


class GoldRecipe(Recipe):
    """Fine-tuning on answers after gold states in the contemplation tokens' place."""

    name = "gold"
    reads_gold = True

    def training(self, setup: RecipeSetup) -> PsiTraining:
        assert setup.selector is not None
        self._selector = setup.selector
        examples = [
            replace(example, num_tokens=len(states_JID) - 1)
            for example, states_JID in zip(setup.answers(0), setup.gold, strict=True)
        ]
        ids = [problem.query for problem in setup.problems]
        # z_0 is not read. With the index before the last, the top layer stops after its keys and values.
        queries = FreshQueries(setup.adapters, ids, setup.adapters.theta.num_layers - 1)
        return setup.psi_training(examples, GoldContext(setup.adapters, queries, setup.gold))

    def save(self, folder: Path) -> None:
        self._selector.save(folder)
