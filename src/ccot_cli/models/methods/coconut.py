"""COCONUT: the model's last hidden states, fed back as inputs, take the place of the chain's steps (Hao et al., 2024).

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
    """Append a number of latent thoughts to every row, one by one, under the weights in use.

    Args:
        last_BD: The state at index L of the token before them.
        counts: How many, by row; if all are 0 the sequence stays as it is.
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
    """Query, as many latent thoughts as in the last stage of training, and what is then written."""

    reserved: int = 1
    """Positions to leave for the text, if the model has a last one."""

    @classmethod
    def load(cls, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path) -> "CoconutMethod":
        """Think and write with the ψ that is loaded."""
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
