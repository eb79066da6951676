"""A draft of the answer's first token, read off the last contemplation token (ours).

At the last contemplation token much of the answer is worked out, and a linear probe reads its first token from the
state at index L. ψ is fed the draft after <ANS> in the same pass. If ψ predicts the same token, its next token is known
one pass earlier; if not, the draft is dropped. So no answer depends on the draft (speculative decoding; Leviathan et
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
"""Least probability that a draft saves its batch a pass. A wrong one costs a column in a pass that is run anyway."""


@dataclass(frozen=True)
class Draft:
    """Predicts an answer's first token, among those that training answers begin with."""

    probe: Probe
    accuracy: float
    """Fraction of validation problems whose first token it predicts."""

    def pays(self, num_rows: int) -> bool:
        """Decide whether to draft for a batch; the batch saves a pass only if all of its rows are right."""
        return self.accuracy**num_rows >= LEAST_CHANCE

    def __call__(self, last_BD: Tensor) -> Tensor:
        """Predict first tokens from each row's raw state at index L of the last contemplation token: B."""
        return self.probe.predict(last_BD)

    def to(self, device: torch.device) -> "Draft":
        return replace(self, probe=Probe(self.probe.weights_DC.to(device), self.probe.classes_C.to(device)))

    def save(self, folder: Path) -> None:
        """Write the draft into a trained folder."""
        saved = {"weights": self.probe.weights_DC, "tokens": self.probe.classes_C, "share": torch.tensor(self.accuracy)}
        save_file({name: each.cpu().contiguous() for name, each in saved.items()}, folder / FILE_NAME)

    @classmethod
    def load(cls, folder: Path, width: int, vocabulary: int) -> "Draft":
        """Read a saved draft.

        Raises:
            CorruptError: if the file is damaged or made for another width or vocabulary.
        """
        path = folder / FILE_NAME
        try:
            saved = load_file(path)
            weights_DC, tokens_C, accuracy = saved["weights"], saved["tokens"], saved["share"].item()
        except (OSError, KeyError, RuntimeError, SafetensorError) as error:
            raise CorruptError(f"{path} cannot be read: {error}", fix=retrain_hint(folder)) from error
        fits = weights_DC.shape == (width + 1, *tokens_C.shape) and len(tokens_C) and tokens_C.dtype == torch.long
        if not (fits and 0 <= accuracy <= 1 and bool(((tokens_C >= 0) & (tokens_C < vocabulary)).all())):
            raise CorruptError(f"{path} does not fit a model of width {width}", fix=retrain_hint(folder))
        return cls(Probe(weights_DC, tokens_C), accuracy)
