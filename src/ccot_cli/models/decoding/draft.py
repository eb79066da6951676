"""A draft of the answer's first token, read off the last contemplation token (ours).

By then the answer has been worked out, more or less, and a linear probe reads it from the token's state at index L. ψ
is given the draft behind <ANS>, in one pass: where it says that token itself, what it says next is known a pass
earlier, and where it does not, the draft is dropped. So no answer depends on it (speculative decoding; Leviathan et
al., 2023).

Dimensions: B batch, M problems, D width, C different tokens.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ccot_cli.errors import CorruptError, retrain_hint
from ccot_cli.tensors.probes import Probe

FILE_NAME = "draft.safetensors"
LEAST_CHANCE = 0.1
"""How likely a draft has to save a batch its pass: a wrong one costs a column in the pass that all rows need."""


@dataclass(frozen=True)
class Draft:
    """Knows the tokens that training answers begin with."""

    probe: Probe
    accuracy: float
    """How often it is right, on validation."""

    def pays(self, num_rows: int) -> bool:
        """Whether to draft for a batch, which is saved a pass where all of its rows are right."""
        return self.accuracy**num_rows >= LEAST_CHANCE

    def __call__(self, last_BD: Tensor) -> Tensor:
        """What the answers may begin with, from the raw states at index L of each row's last contemplation token: B."""
        return self.probe.read(last_BD)

    def to(self, device: torch.device) -> "Draft":
        return replace(self, probe=Probe(self.probe.weights_DC.to(device), self.probe.classes_C.to(device)))

    def save(self, folder: Path) -> None:
        saved = {"weights": self.probe.weights_DC, "tokens": self.probe.classes_C, "share": torch.tensor(self.accuracy)}
        save_file({name: each.cpu().contiguous() for name, each in saved.items()}, folder / FILE_NAME)

    @classmethod
    def load(cls, folder: Path, width: int, vocabulary: int) -> "Draft":
        """Read a saved one.

        Raises:
            CorruptError: where it is damaged or made for another width or vocabulary.
        """
        path = folder / FILE_NAME
        try:
            saved = load_file(path)
            weights_DC, tokens_C, share = saved["weights"], saved["tokens"], saved["share"].item()
        except (OSError, KeyError, RuntimeError, SafetensorError) as error:
            raise CorruptError(f"{path} cannot be read: {error}", fix=retrain_hint(folder)) from error
        fits = weights_DC.shape == (width + 1, *tokens_C.shape) and len(tokens_C) and tokens_C.dtype == torch.long
        if not (fits and 0 <= share <= 1 and bool(((tokens_C >= 0) & (tokens_C < vocabulary)).all())):
            raise CorruptError(f"{path} does not fit a model of width {width}", fix=retrain_hint(folder))
        return cls(Probe(weights_DC, tokens_C), share)
