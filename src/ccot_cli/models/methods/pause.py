"""PAUSE: copies of one learned token between query and answer (Goyal et al., 2024); `filler`: copies of a full stop.

They give the model room to compute in one parallel pass. Unlike contemplation tokens, none takes another's output as
its input.

Dimensions: B batch, K pause tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ccot_cli.config import DecodingConfig
from ccot_cli.errors import CorruptError, retrain_hint
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.query import read_query
from ccot_cli.models.methods.method import AnswerMethod, Clock, MethodInfo, Prepared
from ccot_cli.tensors.masks import first_columns

FILE_NAME = "pause.safetensors"


def add_pauses(theta: Theta, sequence: CachedSequence, pause_1D: Tensor, counts: Sequence[int]) -> None:
    """Append pause tokens to every row, in one parallel pass under the weights in use.

    Args:
        sequence: What comes before; extended to the row with the most pause tokens.
        pause_1D: The embedding of a pause token.
        counts: Number of pause tokens by row; if all are 0, the sequence stays as it is.
    """
    if not max(counts):
        return
    mask_BK = first_columns(counts, device=theta.device)
    sequence.extend(mask_BK)
    embeds_BKD = pause_1D.to(theta.dtype).expand(*mask_BK.shape, -1)
    theta.blocks.run(theta.blocks.enter(embeds_BKD, sequence), 0, theta.num_layers, sequence)


def save_pause(pause_1D: Tensor, folder: Path) -> None:
    """Write the embedding (1, D) into a trained folder."""
    save_file({"pause": pause_1D.detach().cpu().contiguous()}, folder / FILE_NAME)


def load_pause(folder: Path, width: int) -> Tensor:
    """Read a saved embedding (1, D).

    Raises:
        CorruptError: if the file is damaged or made for another width.
    """
    path = folder / FILE_NAME
    try:
        pause_1D = load_file(path)["pause"]
    except (OSError, KeyError, SafetensorError) as error:
        raise CorruptError(f"{path} cannot be read: {error}", fix=retrain_hint(folder)) from error
    if pause_1D.shape != (1, width) or not bool(pause_1D.isfinite().all()):
        raise CorruptError(f"{path} does not fit a model of width {width}", fix=retrain_hint(folder))
    return pause_1D


@dataclass
class PauseMethod(AnswerMethod):
    """Reads the query, runs the pause tokens in one parallel pass, and answers, all under ψ."""

    pause_1D: Tensor
    """The embedding of a pause token."""

    @classmethod
    def load(cls, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path) -> "PauseMethod":
        """Load the embedding; ψ must be loaded already.

        Raises:
            CorruptError: if the embedding is damaged or made for another width.
        """
        theta = adapters.theta
        pause_1D = load_pause(folder, theta.model.config.hidden_size).to(theta.device)
        return cls(adapters, info, decoding, pause_1D)

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock, num_wanted = Clock(self.theta.device), self.info.num_tokens
        sequence = read_query(self.adapters, queries, adapter=PSI)
        prefill = clock.lap()
        counts = self.theta.blocks.free_positions(sequence, self.reserved).clamp_max(num_wanted).tolist()
        add_pauses(self.theta, sequence, self.pause_1D, counts)
        return Prepared(sequence, counts, [count < num_wanted for count in counts], prefill, clock.lap())
