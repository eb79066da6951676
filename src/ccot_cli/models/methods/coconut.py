"""COCONUT: the model's last hidden states, fed back as inputs, replace the chain's steps (Hao et al., 2024).

What is fed back is the state after the final norm.

Dimensions: B batch, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from torch import Tensor

from ccot_cli.config import DecodingConfig
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.method import MethodInfo, answer_positions
from ccot_cli.tensors.masks import first_columns


def add_thoughts(theta: Theta, sequence: CachedSequence, last_BD: Tensor, counts: Sequence[int]) -> None:
    """Append latent thoughts to every row, one after another, under the weights in use.

    Args:
        sequence: What comes before; extended to the row with the most thoughts.
        last_BD: The state of the token before them, at index L.
        counts: Number of thoughts by row; if all are 0, the sequence stays as it is.
    """
    if not max(counts):
        return
    mask_BK = first_columns(counts, device=theta.device)
    norm: Callable[[Tensor], Tensor] = theta.blocks.norm
    theta.blocks.feed_back(
        sequence, norm(last_BD), mask_BK, layer=theta.num_layers, instead=lambda column, state_BD: norm(state_BD)
    )


@dataclass
class CoconutMethod(ChainMethod):
    """Thinks as many latent thoughts as the last stage of training has, then writes."""

    reserved: int = 1
    """Positions to leave for the text, if the model's positions are limited."""

    @classmethod
    def load(cls, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path) -> "CoconutMethod":
        """Make a method that thinks and writes under ψ, which must be loaded already."""
        return cls(
            adapters,
            decoding.max_chain_tokens,
            adapter=PSI,
            name=info.name,
            ratio=Decimal(info.ratio),
            num_thoughts=info.num_tokens,
            reserved=1 + answer_positions(adapters.theta, decoding),
        )

    def think(self, sequence: CachedSequence, last_BD: Tensor) -> list[int]:
        self.adapters.use(self.adapter)
        free_B = self.theta.blocks.free_positions(sequence, self.reserved)
        counts: list[int] = free_B.clamp_max(self.num_thoughts).tolist()
        add_thoughts(self.theta, sequence, last_BD, counts)
        return counts
