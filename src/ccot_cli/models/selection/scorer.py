"""The learned scorer: one linear layer on each chain token's state at index T (paper, section 4.1, after Nugget).

Dimensions: B batch, M chain tokens, D width.
"""

from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ccot_cli.models.base.theta import Theta

FILE_NAME = "scorer.safetensors"


class Scorer(nn.Module):
    """Scores each chain token from its state at index T, after θ's final norm.

    Args:
        theta: Gives the norm, the width, the device and the precision.
        kind: `linear`, or `mlp` with one hidden layer.
        seed: Of the initial weights.
    """

    def __init__(self, theta: Theta, kind: Literal["linear", "mlp"], seed: int) -> None:
        super().__init__()
        width = theta.model.config.hidden_size
        self.kind = kind
        self.norm, self.device, self.dtype = theta.blocks.norm, theta.device, theta.dtype
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            hidden = [nn.Linear(width, width), nn.ReLU()] if kind == "mlp" else []
            self.layers = nn.Sequential(*hidden, nn.Linear(width, 1, bias=False)).to(theta.device)

    def forward(self, states_BMD: Tensor) -> Tensor:
        """Score states at index T: B, M."""
        scores_BM1: Tensor = self.layers(self.norm(states_BMD).float())
        return scores_BM1[..., 0]

    def save(self, folder: Path) -> Path:
        """Write the weights, without θ's norm, into a folder, and return the path of the file."""
        tensors = {name: each.detach().cpu().contiguous() for name, each in self.layers.state_dict().items()}
        save_file(tensors, folder / FILE_NAME)
        return folder / FILE_NAME

    @classmethod
    def load(cls, theta: Theta, kind: Literal["linear", "mlp"], folder: Path) -> "Scorer":
        """Read a saved scorer.

        Raises:
            OSError: if there is no file.
            SafetensorError: if the file is damaged.
            RuntimeError: if its tensors are not those of this kind and width.
        """
        scorer = cls(theta, kind, 0)
        scorer.layers.load_state_dict(load_file(folder / FILE_NAME))
        return scorer.eval()


@torch.no_grad()
def chain_scores(scorer: Scorer, states_MD: Tensor) -> Tensor:
    """Score a chain's stored states at index T: M, on the CPU."""
    scores_1M: Tensor = scorer(states_MD[None].to(scorer.device, scorer.dtype))
    return scores_1M[0].cpu()
