"""Train methods that write a chain of words: the whole one, its beginning, or less of it from epoch to epoch.

- `cot`: fine-tuning on explicit chains (r = 1; paper, Algorithm 1).
- `short-cot`: the chain is cut to as many tokens as CCoT contemplates, then comes the answer.
- `icot`: implicit chain of thought by stepwise internalisation (Deng et al., 2024): tokens are removed from the chain's
  beginning, more with every epoch, until none is left.
"""

import random

from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.recipes.base import Recipe, RecipeSetup, usual_most
from ccot_cli.tensors.select import num_kept


def written(setup: RecipeSetup, problem: EncodedProblem, chain: list[int]) -> PsiExample:
    """Ask for a chain, <ANS> and the answer in writing; the query's last token opens them, as <COT> does in the paper.

    The chain need not be the problem's own.
    """
    solution = [*chain, *setup.adapters.theta.encoder.answer_marker, *problem.answer]
    return PsiExample(problem.query[:-1], problem.query[-1:], solution, 0)


class CotRecipe(Recipe):
    name = "cot"

    def training(self, setup: RecipeSetup) -> PsiTraining:
        return setup.train_psi([written(setup, each, each.chain) for each in setup.problems])


class ShortCotRecipe(Recipe):
    name = "short-cot"

    def training(self, setup: RecipeSetup) -> PsiTraining:
        return setup.train_psi([written(setup, each, self._cut(setup, each)) for each in setup.problems])

    def _cut(self, setup: RecipeSetup, problem: EncodedProblem) -> list[int]:
        return problem.chain[: num_kept(setup.ratio, len(problem.chain))]


class ImplicitCotRecipe(Recipe):
    """Stepwise internalisation. The first epoch asks for whole chains, the last quarter for the answer alone."""

    name = "icot"
    SMOOTHING = 4.0
    """Decay of the chance that one more token is removed, and another, ... (the published lambda)."""

    def training(self, setup: RecipeSetup) -> PsiTraining:
        most = usual_most([len(each.chain) for each in setup.problems])

        def examples(epoch: int) -> list[PsiExample]:
            removed = setup.num_removed(epoch, most)
            draw = random.Random(f"{setup.config.seed}/{epoch}")
            # The first epoch's chains are whole, and a chain that is all gone cannot be cut further.
            extra = [int(draw.expovariate(self.SMOOTHING)) if epoch else 0 for _ in setup.problems]
            return [
                written(setup, each, each.chain[removed + more :] if removed < most else [])
                for each, more in zip(setup.problems, extra, strict=True)
            ]

        return setup.train_psi(examples, stages=range(1, setup.num_falling + 1))
