"""Train methods that write a chain of words: the whole chain, its beginning, or less of it from epoch to epoch.

- `cot`: fine-tuning on explicit chains (r = 1; paper, Algorithm 1).
- `short-cot`: the chain is cut to as many tokens as CCoT contemplates; then comes the answer.
- `icot`: implicit chain of thought by stepwise internalisation (Deng et al., 2024). Tokens are removed from the chain's
  beginning, more with every epoch, until none is left.
"""

import random

from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.recipes.base import Recipe, RecipeSetup, usual_length
from ccot_cli.tensors.select import num_kept


def chain_example(setup: RecipeSetup, problem: EncodedProblem, chain: list[int]) -> PsiExample:
    """Make an example that writes a chain, <ANS> and the answer.

    The query's last token opens the chain, as <COT> does in the paper.

    Args:
        chain: Ids of what is left of the problem's chain; may be empty.
    """
    solution = [*chain, *setup.adapters.theta.encoder.answer_marker, *problem.answer]
    return PsiExample(problem.query[:-1], problem.query[-1:], solution, 0)


class CotRecipe(Recipe):
    """Fine-tuning on explicit chains."""

    name = "cot"

    def example(self, setup: RecipeSetup, problem: EncodedProblem) -> PsiExample:
        return chain_example(setup, problem, problem.chain)


class ShortCotRecipe(Recipe):
    """Fine-tuning on the beginnings of chains, k tokens each."""

    name = "short-cot"

    def example(self, setup: RecipeSetup, problem: EncodedProblem) -> PsiExample:
        return chain_example(setup, problem, problem.chain[: num_kept(setup.ratio, len(problem.chain))])


class ImplicitCotRecipe(Recipe):
    """Stepwise internalisation: the first epoch has whole chains, the last quarter of the epochs none."""

    name = "icot"
    has_curriculum = True
    SMOOTHING = 4.0
    """Rate of the exponential distribution that draws how many more tokens are removed (the published lambda)."""

    def training(self, setup: RecipeSetup) -> PsiTraining:
        length = usual_length([len(each.chain) for each in setup.problems])

        def examples(epoch: int) -> list[PsiExample]:
            num_removed = setup.num_removed(epoch, length)
            draw = random.Random(f"{setup.config.seed}/{epoch}")
            # The first epoch's chains are whole.
            extra = [int(draw.expovariate(self.SMOOTHING)) if epoch else 0 for _ in setup.problems]
            return [
                # In the end even chains longer than usual are gone.
                chain_example(setup, each, each.chain[num_removed + more :] if num_removed < length else [])
                for each, more in zip(setup.problems, extra, strict=True)
            ]

        return self._training(setup, examples, stages=range(1, setup.num_falling + 1))

    def example(self, setup: RecipeSetup, problem: EncodedProblem) -> PsiExample:
        return chain_example(setup, problem, [])
