"""PAUSE: copies of one learned token between query and answer (Goyal et al., 2024); and `filler`: of a full stop.

They give the model room to compute in, all at once: none of them sees what another has come to, unlike contemplation
tokens. The whole model is fine-tuned with them (ψ reads the query too), and their number is fixed: CCoT's k at the
mean chain.

Dimensions: B batch, K pause tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ccot_cli.errors import CorruptError, anew
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.base.blocks import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.method import AnswerReasoner, Clock, Prepared, Traits
from ccot_cli.models.training.psi import PsiTraining, QueryContext
from ccot_cli.models.training.queries import read_query
from ccot_cli.models.training.recipes.base import Baseline, Course, Trained
from ccot_cli.names import BaselineName
from ccot_cli.tensors.masks import first_columns

FILE_NAME = "pause.safetensors"
FILLER = "."
EMBEDDED_AT_ONCE = 8192


def add_pauses(theta: Theta, sequence: CachedSequence, pause_1D: Tensor, counts: Sequence[int]) -> None:
    """Append a number of pause tokens to every row, in one parallel pass under the weights in use.

    Args:
        pause_1D: The embedding.
        counts: How many, by row; none at all leaves the sequence as it is.
    """
    if not max(counts):
        return
    mask_BK = first_columns(counts, device=theta.device)
    sequence.extend(mask_BK)
    embeds_BKD = pause_1D.to(theta.dtype).expand(*mask_BK.shape, -1)
    theta.blocks.run(theta.blocks.enter(embeds_BKD, sequence), 0, theta.num_layers, sequence)


@dataclass(frozen=True)
class PauseContext(QueryContext):
    """What ψ learns to decode from: the query and the pause tokens."""

    pause_1D: Tensor
    """Learns where it is a parameter."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {"pause": self.pause_1D} if isinstance(self.pause_1D, nn.Parameter) else {}

    def append(self, sequence: CachedSequence, counts: Sequence[int]) -> None:
        add_pauses(self.theta, sequence, self.pause_1D, counts)


def fresh_pause(theta: Theta) -> nn.Parameter:
    """The mean of all embeddings as the model reads them, which may be scaled, to begin with: 1, D."""
    vocabulary = theta.model.config.vocab_size
    with torch.no_grad():
        parts = torch.split(torch.arange(vocabulary, device=theta.device), EMBEDDED_AT_ONCE)
        sums = [theta.blocks.embedding(ids).float().sum(dim=0, keepdim=True) for ids in parts]
    return nn.Parameter(torch.stack(sums).sum(dim=0) / vocabulary)


def filler_embedding(theta: Theta) -> Tensor:
    """θ's embedding of the filler's first token: 1, D."""
    token = theta.encoder.tokenizer(FILLER, add_special_tokens=False).input_ids[0]
    with torch.no_grad():
        embedded_1D: Tensor = theta.blocks.embedding(torch.tensor([token], device=theta.device))
    return embedded_1D


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
        raise CorruptError(f"{path} cannot be read: {error}", fix=anew(folder)) from error
    if pause_1D.shape != (1, width) or not bool(pause_1D.isfinite().all()):
        raise CorruptError(f"{path} does not fit a model of width {width}", fix=anew(folder))
    return pause_1D


@dataclass
class PauseReasoner(AnswerReasoner):
    """Query, pause tokens in one parallel pass, answer."""

    pause_1D: Tensor

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock, wanted = Clock(self.theta.device), self.method.num_tokens
        sequence = read_query(self.theta, self.adapters, queries, adapter=PSI)
        prefill = clock.lap()
        counts = self.theta.blocks.free_positions(sequence, self.reserved).clamp_max(wanted).tolist()
        add_pauses(self.theta, sequence, self.pause_1D, counts)
        return Prepared(sequence, counts, [count < wanted for count in counts], prefill, clock.lap())


class Pause(Baseline):
    name: ClassVar[BaselineName] = "pause"
    traits = Traits("no", "discrete", "fixed length, in parallel")

    def training(self, course: Course) -> PsiTraining:
        self.pause_1D = self._embedding(course.theta)
        context = PauseContext(course.theta, course.adapters, self.pause_1D)
        return course.training(course.answers(course.num_tokens), context)

    def _embedding(self, theta: Theta) -> Tensor:
        return fresh_pause(theta)

    def num_tokens(self, course: Course) -> int:
        return course.num_tokens

    def save(self, folder: Path) -> None:
        save_pause(self.pause_1D, folder)

    @classmethod
    def load(cls, trained: Trained) -> PauseReasoner:
        pause_1D = load_pause(trained.folder, trained.theta.model.config.hidden_size).to(trained.theta.device)
        return PauseReasoner(trained.theta, trained.adapters, trained.method, trained.decoding, pause_1D)


class Filler(Pause):
    name: ClassVar[BaselineName] = "filler"

    def _embedding(self, theta: Theta) -> Tensor:
        return filler_embedding(theta)
