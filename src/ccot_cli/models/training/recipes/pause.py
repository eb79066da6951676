"""Train PAUSE and filler tokens (Goyal et al., 2024; Pfau et al., 2024).

ψ reads the query and these tokens, so the whole model is fine-tuned with them. Their number is fixed: CCoT's k for a
chain of mean length.

Dimensions: K pause tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.pause import add_pauses, save_pause
from ccot_cli.models.training.contexts import Prefix, QueryContext
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.recipes.base import Recipe, RecipeSetup
from ccot_cli.names import BaselineName

FILLER = "."
EMBEDDED_AT_ONCE = 8192
"""Tokens of the vocabulary whose embeddings are in memory together."""


@dataclass(frozen=True)
class PauseContext(QueryContext):
    """The query and pause tokens under ψ."""

    pause_1D: Tensor
    """Embedding of a pause token; it learns if it is a parameter."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {"pause": self.pause_1D} if isinstance(self.pause_1D, nn.Parameter) else {}

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Prefix:
        prefix = super().read(numbers, batch)  # ψ stays in use.
        add_pauses(self.adapters.theta, prefix.sequence, self.pause_1D, [example.num_tokens for example in batch])
        return prefix


def fresh_pause(theta: Theta) -> nn.Parameter:
    """Make a pause token's embedding, the mean of all embeddings as the model reads them (it may scale them): 1, D."""
    vocabulary = theta.model.config.vocab_size
    with torch.no_grad():
        parts = torch.split(torch.arange(vocabulary, device=theta.device), EMBEDDED_AT_ONCE)
        sums = [theta.blocks.embed(ids).float().sum(dim=0, keepdim=True) for ids in parts]
    return nn.Parameter(torch.stack(sums).sum(dim=0) / vocabulary)


def filler_embedding(theta: Theta) -> Tensor:
    """Look up θ's embedding of the filler's first token: 1, D."""
    token = theta.encoder.tokenizer(FILLER, add_special_tokens=False).input_ids[0]
    with torch.no_grad():
        embedded_1D: Tensor = theta.blocks.embed(torch.tensor([token], device=theta.device))
    return embedded_1D


class PauseRecipe(Recipe):
    """Fine-tuning on answers after copies of one learned token."""

    name: ClassVar[BaselineName] = "pause"

    def training(self, setup: RecipeSetup) -> PsiTraining:
        self.pause_1D = self._embedding(setup.adapters.theta)
        return super().training(setup)

    def context(self, setup: RecipeSetup) -> PauseContext:
        return PauseContext(setup.adapters, self.pause_1D)

    def _embedding(self, theta: Theta) -> Tensor:
        return fresh_pause(theta)

    def num_tokens(self, setup: RecipeSetup) -> int:
        return setup.num_tokens

    def save(self, folder: Path) -> None:
        save_pause(self.pause_1D, folder)


class FillerRecipe(PauseRecipe):
    """Fine-tuning on answers after copies of a full stop, whose embedding stays θ's."""

    name: ClassVar[BaselineName] = "filler"

    def _embedding(self, theta: Theta) -> Tensor:
        return filler_embedding(theta)
