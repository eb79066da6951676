"""Train the method that answers at once: plain fine-tuning on answers (r = 0)."""

from ccot_cli.models.training.recipes.base import Recipe


class DirectRecipe(Recipe):
    """Fine-tuning on answers."""

    name = "direct"
