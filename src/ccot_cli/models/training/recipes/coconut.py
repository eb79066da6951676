"""Train COCONUT: latent thoughts replace the chain's lines, from the first line on (Hao et al., 2024).

`THOUGHTS` thoughts replace a line. Every stage replaces more lines (one more, if there are enough epochs), and the
optimiser starts afresh with every stage. Gradients pass through all thoughts. There is no target for a thought: unlike
CCoT's tokens, it learns only from the words that follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.coconut import add_thoughts
from ccot_cli.models.training.contexts import Context, Prefix
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.recipes.base import Recipe, RecipeSetup, usual_length, within_positions
from ccot_cli.models.training.recipes.chain import chain_example

THOUGHTS = 2
"""Latent thoughts that replace one step (the published c)."""


@dataclass(frozen=True)
class CoconutContext(Context):
    """The query and latent thoughts under ψ, with gradients through both."""

    adapters: Adapters

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Prefix:
        theta, queries = self.adapters.theta, [example.query for example in batch]
        sequence, last_BD = encode_query(self.adapters, queries, layer=theta.num_layers, adapter=PSI)
        add_thoughts(theta, sequence, last_BD, [example.num_tokens for example in batch])
        return Prefix(sequence)


class CoconutRecipe(Recipe):
    """The first epoch has whole chains, the last quarter of the epochs latent thoughts alone."""

    name = "coconut"
    has_curriculum = True

    def training(self, setup: RecipeSetup) -> PsiTraining:
        lines = [setup.adapters.theta.encoder.lines(each.chain) for each in setup.problems]
        self._num_lines = usual_length([1 + each[-1] for each in lines])

        def examples(epoch: int) -> list[PsiExample]:
            # All chains get the same number of thoughts: how many steps a question takes is not known when it is asked.
            stage = self.stage(setup, epoch)
            chains = [
                # In the end even chains longer than usual are gone.
                _from_line(problem.chain, each, stage) if stage < self._num_lines else []
                for problem, each in zip(setup.problems, lines, strict=True)
            ]
            return [
                _with_thoughts(setup, chain_example(setup, problem, chain), stage)
                for problem, chain in zip(setup.problems, chains, strict=True)
            ]

        by_epoch = [self.stage(setup, epoch) for epoch in range(setup.config.epochs)]
        stages = [epoch for epoch, (before, stage) in enumerate(pairwise(by_epoch), start=1) if stage != before]
        return self._training(setup, examples, stages=stages)

    def example(self, setup: RecipeSetup, problem: EncodedProblem) -> PsiExample:
        return _with_thoughts(setup, chain_example(setup, problem, []), self._num_lines)

    def context(self, setup: RecipeSetup) -> CoconutContext:
        return CoconutContext(setup.adapters)

    def stage(self, setup: RecipeSetup, epoch: int) -> int:
        """Count the lines that thoughts replace in an epoch; epochs count from 0."""
        return setup.num_removed(epoch, self._num_lines)

    def num_tokens(self, setup: RecipeSetup) -> int:
        return THOUGHTS * self._num_lines


def _with_thoughts(setup: RecipeSetup, example: PsiExample, num_lines: int) -> PsiExample:
    return within_positions(setup, replace(example, num_tokens=THOUGHTS * num_lines))


def _from_line(chain: list[int], lines: list[int], first: int) -> list[int]:
    """Drop a chain's tokens before line `first`; `lines` has each token's line, counted from 0."""
    return [token for token, line in zip(chain, lines, strict=True) if line >= first]
