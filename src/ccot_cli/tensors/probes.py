"""Linear probes: what can be read from a state by one matrix.

Dimensions: M states, D width, C classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTY = 10.0


@dataclass(frozen=True)
class Probe:
    """A linear classifier of states."""

    weights_DC: Tensor
    """One row more than D, the bias."""
    classes_C: Tensor

    def read(self, states_MD: Tensor) -> Tensor:
        """Each state's best class: M."""
        scores_MC = _with_bias(states_MD) @ self.weights_DC
        return self.classes_C[scores_MC.argmax(dim=1)]

    def is_right(self, states_MD: Tensor, labels_M: Tensor) -> Tensor:
        """Whether that is its label: M."""
        return self.read(states_MD) == labels_M


def fit_probe(states_MD: Tensor, labels_M: Tensor) -> Probe:
    """Ridge regression onto one-hot labels."""
    classes_C, place_M = torch.unique(labels_M, return_inverse=True)
    design_MD = _with_bias(states_MD)
    gram_DD = design_MD.T @ design_MD + PENALTY * torch.eye(design_MD.shape[1])
    return Probe(torch.linalg.solve(gram_DD, design_MD.T @ F.one_hot(place_M).float()), classes_C)


def _with_bias(states_MD: Tensor) -> Tensor:
    return F.pad(states_MD.float(), (0, 1), value=1.0)
