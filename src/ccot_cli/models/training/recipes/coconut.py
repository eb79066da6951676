"""Train COCONUT: latent thoughts take the place of the chain's lines, from the left (Hao et al., 2024).

`THOUGHTS` of them replace a line, more lines with every stage (one more if there are epochs enough), and the optimiser
starts afresh with every stage. Gradients pass through all thoughts. Nothing says what a thought should hold: unlike
CCoT's tokens, it is learned from the words that follow alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.coconut import add_thoughts
from ccot_cli.models.training.contexts import QueryContext, Read
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.recipes.base import Recipe, RecipeSetup, usual_most
from ccot_cli.models.training.recipes.chain import written

THOUGHTS = 2
"""Latents that replace one step (the published c)."""


@dataclass(frozen=True)
class CoconutContext(QueryContext):
    """What ψ learns to write from: the query and latent thoughts, gradients through both."""

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Read:
        theta, queries = self.adapters.theta, [example.query for example in batch]
        sequence, last_BD = encode_query(self.adapters, queries, layer=theta.num_layers, adapter=PSI)
        add_thoughts(theta, sequence, last_BD, [example.num_tokens for example in batch])
        return Read(sequence)


class CoconutRecipe(Recipe):
    """The first epoch asks for whole chains, the last quarter for the answer after latents alone."""

    name = "coconut"

    def training(self, setup: RecipeSetup) -> PsiTraining:
        lines = [setup.adapters.theta.encoder.lines(each.chain) for each in setup.problems]
        self._most = usual_most([1 + each[-1] for each in lines])

        def examples(epoch: int) -> list[PsiExample]:
            # Every chain gets as many thoughts: how many steps a question takes is not known when it is asked.
            number = self.stage(setup, epoch)
            chains = [
                _from_line(problem.chain, each, number) if number < self._most else []
                for problem, each in zip(setup.problems, lines, strict=True)
            ]
            return [
                replace(written(setup, problem, chain), num_tokens=THOUGHTS * number)
                for problem, chain in zip(setup.problems, chains, strict=True)
            ]

        numbers = [self.stage(setup, epoch) for epoch in range(setup.config.epochs)]
        stages = [epoch for epoch, (before, number) in enumerate(pairwise(numbers), start=1) if number != before]
        return setup.train_psi(examples, self.context(setup), stages=stages)

    def context(self, setup: RecipeSetup) -> CoconutContext:
        """Say what ψ reads."""
        return CoconutContext(setup.adapters)

    def stage(self, setup: RecipeSetup, epoch: int) -> int:
        """Count the lines that are thoughts in an epoch."""
        return setup.num_removed(epoch, self._most)

    def num_tokens(self, setup: RecipeSetup) -> int:
        return THOUGHTS * self._most


def _from_line(chain: list[int], lines: list[int], first: int) -> list[int]:
    return [token for token, line in zip(chain, lines, strict=True) if line >= first]
