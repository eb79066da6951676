"""All recipes by the name of the method that they train."""

from ccot_cli.models.training.recipes.base import Recipe
from ccot_cli.models.training.recipes.chain import CotRecipe, ImplicitCotRecipe, ShortCotRecipe
from ccot_cli.models.training.recipes.coconut import CoconutRecipe
from ccot_cli.models.training.recipes.direct import DirectRecipe
from ccot_cli.models.training.recipes.gold import GoldRecipe
from ccot_cli.models.training.recipes.pause import FillerRecipe, PauseRecipe

_ALL: tuple[type[Recipe], ...] = (
    DirectRecipe,
    CotRecipe,
    PauseRecipe,
    FillerRecipe,
    CoconutRecipe,
    ImplicitCotRecipe,
    ShortCotRecipe,
    GoldRecipe,
)
RECIPES: dict[str, type[Recipe]] = {each.name: each for each in _ALL}
