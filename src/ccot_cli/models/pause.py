"""PAUSE: copies of one learned token between query and answer (Goyal et al., 2024).

They give the model room to compute in, all at once: none of them sees what another has come to, unlike contemplation
tokens. The whole model is fine-tuned with them (ψ reads the query too), and their number is fixed.

Dimensions: B batch, K pause tokens, D width.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ccot_cli.errors import CorruptError
from ccot_cli.models.adapters import PSI, Adapters
from ccot_cli.models.blocks import Sequence
from ccot_cli.models.phi import encode_query
from ccot_cli.models.psi_training import PsiExample
from ccot_cli.models.theta import Theta
from ccot_cli.tensors.masks import first_columns

FILE_NAME = "pause.safetensors"


def add_pauses(theta: Theta, sequence: Sequence, pause_1D: Tensor, counts: Rows[int]) -> None:
    """Append a number of pause tokens to every row, in one parallel pass under the weights in use.

    Args:
        pause_1D: The learned embedding.
        counts: How many, by row; none at all leaves the sequence as it is.
    """
    if not max(counts):
        return
    mask_BK = first_columns(counts, device=theta.device)
    sequence.extend(mask_BK)
    embeds_BKD = pause_1D.to(theta.dtype).expand(*mask_BK.shape, -1)
    theta.blocks.run(theta.blocks.enter(embeds_BKD, sequence), 0, theta.num_layers, sequence)


@dataclass(frozen=True)
class PauseContext:
    """What ψ learns to decode from: the query and the pause tokens, all under ψ."""

    theta: Theta
    adapters: Adapters
    examples: Rows[PsiExample]
    pause_1D: nn.Parameter

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {"pause": self.pause_1D}

    def sequence(self, numbers: Rows[int]) -> Sequence:
        batch = [self.examples[number] for number in numbers]
        depth, queries = self.theta.num_layers, [example.query for example in batch]
        sequence, _ = encode_query(self.theta, self.adapters, queries, layer=depth, adapter=PSI)
        add_pauses(self.theta, sequence, self.pause_1D, [example.num_tokens for example in batch])
        return sequence


def fresh_pause(theta: Theta) -> nn.Parameter:
    """The mean of all embeddings, to begin with: 1, D."""
    weight = theta.blocks.embedding.weight
    assert isinstance(weight, Tensor)
    return nn.Parameter(weight.detach().float().mean(dim=0, keepdim=True))


def save_pause(pause_1D: Tensor, folder: Path) -> None:
    save_file({"pause": pause_1D.detach().cpu().contiguous()}, folder / FILE_NAME)


def load_pause(folder: Path, width: int) -> Tensor:
    """Read a saved embedding.

    Raises:
        CorruptError: where it is damaged or made for another width.
    """
    path = folder / FILE_NAME
    try:
        pause_1D = load_file(path)["pause"]
    except (OSError, KeyError, SafetensorError) as error:
        raise CorruptError(f"{path} cannot be read: {error}", fix="ccot train-baseline pause") from error
    if pause_1D.shape != (1, width) or not bool(pause_1D.isfinite().all()):
        raise CorruptError(f"{path} does not fit a model of width {width}", fix="ccot train-baseline pause")
    return pause_1D
