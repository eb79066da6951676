"""Train the method that answers at once: plain fine-tuning on answers (r = 0)."""

from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.recipes.base import Recipe, RecipeSetup


class DirectRecipe(Recipe):
    """Fine-tuning on answers."""

    name = "direct"

    def training(self, setup: RecipeSetup) -> PsiTraining:
        return setup.psi_training(setup.answers(0))
