"""Linear probes: what can be read from a state by one matrix.

Dimensions: M states, D width, C classes.
"""

from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Logistic:
    """A linear classifier into two classes, with probabilities."""

    weight_D: Tensor
    bias: Tensor

    def logits(self, states: Tensor) -> Tensor:
        """(..., D) -> (...), above 0 where it is likelier than not."""
        return states.float() @ self.weight_D + self.bias

    def stricter(self, by: float) -> "Logistic":
        """One whose logits are lower by that."""
        return replace(self, bias=self.bias - by)

    def to(self, device: torch.device) -> "Logistic":
        return Logistic(self.weight_D.to(device), self.bias.to(device))


def fit_logistic(states_MD: Tensor, is_so_M: Tensor, *, penalty: float = 1e-4, iterations: int = 200) -> Logistic:
    """Logistic regression: a convex problem, so it is solved to the optimum instead of trained by steps.

    Args:
        penalty: Weight of the squared norm, in units of standardized states.
    """
    states_MD = states_MD.float()
    mean_D, std_D = states_MD.mean(dim=0), states_MD.std(dim=0, correction=0).clamp_min(1e-6)
    scaled_MD = (states_MD - mean_D) / std_D
    label_M = is_so_M.float()
    weight_D = torch.zeros_like(mean_D, requires_grad=True)
    bias = torch.zeros((), device=states_MD.device, requires_grad=True)
    solver = torch.optim.LBFGS([weight_D, bias], max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.binary_cross_entropy_with_logits(scaled_MD @ weight_D + bias, label_M)
        loss = loss + penalty * weight_D.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        solver.step(closure)  # type: ignore[no-untyped-call]
    folded_D = (weight_D / std_D).detach()
    return Logistic(folded_D, (bias - folded_D @ mean_D).detach())


def _with_bias(states_MD: Tensor) -> Tensor:
    return F.pad(states_MD.float(), (0, 1), value=1.0)
