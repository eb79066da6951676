"""Linear classifiers of states: what one matrix can read from them.

Dimensions: M states, D width, C classes.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTY = 3.0
"""Of the ridge regression, added to the diagonal of the Gram matrix of states whose root mean square is 1."""
PRIOR = 1.0
"""Of the logistic regression: the penalty of all states together, so that it matters less the more there are."""


@dataclass(frozen=True)
class Probe:
    """A linear classifier of states into C classes."""

    weights_DC: Tensor
    """D + 1 rows; the last one is the bias."""
    classes_C: Tensor
    """The label of each class."""

    def predict(self, states_MD: Tensor) -> Tensor:
        """Return the label of each state's best class: M."""
        scores_MC = _with_bias(states_MD) @ self.weights_DC
        return self.classes_C[scores_MC.argmax(dim=1)]

    def is_right(self, states_MD: Tensor, labels_M: Tensor) -> Tensor:
        """Decide for each state whether the predicted label is the given one: M."""
        return self.predict(states_MD) == labels_M


def fit_probe(states_MD: Tensor, labels_M: Tensor) -> Probe:
    """Fit a probe by ridge regression onto one-hot labels; the tensors are on the CPU."""
    classes_C, class_M = torch.unique(labels_M, return_inverse=True)
    states_MD = states_MD.float()
    # States grow from index to index, and the penalty must not.
    scale = states_MD.square().mean().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    design_MD = _with_bias(states_MD / scale)
    gram_DD = design_MD.T @ design_MD + PENALTY * torch.eye(design_MD.shape[1])
    sum_CD = torch.zeros(len(classes_C), design_MD.shape[1]).index_add_(0, class_M, design_MD)
    weights_DC = torch.linalg.solve(gram_DD, sum_CD.T)
    weights_DC[:-1] /= scale
    return Probe(weights_DC, classes_C)


@dataclass(frozen=True)
class Logistic:
    """A linear classifier into two classes, with probabilities."""

    weight_D: Tensor
    bias: Tensor

    def logits(self, states: Tensor) -> Tensor:
        """Compute logits, above 0 if the first class is the likelier one: (..., D) -> (...)."""
        return states.float() @ self.weight_D + self.bias

    def stricter(self, by: float) -> "Logistic":
        """Return a classifier whose logits are lower by `by`."""
        return replace(self, bias=self.bias - by)

    def to(self, device: torch.device) -> "Logistic":
        return Logistic(self.weight_D.to(device), self.bias.to(device))


def fit_logistic(states_MD: Tensor, is_so_M: Tensor, *, penalty: float = PRIOR) -> Logistic:
    """Fit a logistic regression.

    The problem is convex, so it is solved to the optimum (L-BFGS) instead of trained by gradient steps.

    Args:
        states_MD: Inputs; standardized before the fit.
        is_so_M: True for states of the first class.
        penalty: Weight of the squared norm of the standardized inputs' weights, beside the sum of the states' losses.
    """
    states_MD = states_MD.float()
    mean_D, std_D = states_MD.mean(dim=0), states_MD.std(dim=0, correction=0).clamp_min(1e-6)
    scaled_MD = (states_MD - mean_D) / std_D
    label_M = is_so_M.float()
    weight_D = torch.zeros_like(mean_D, requires_grad=True)
    bias = torch.zeros((), device=states_MD.device, requires_grad=True)
    solver = torch.optim.LBFGS([weight_D, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.binary_cross_entropy_with_logits(scaled_MD @ weight_D + bias, label_M)
        loss = loss + penalty / len(label_M) * weight_D.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        solver.step(closure)  # type: ignore[no-untyped-call]
    # Undo the standardization, so that the classifier reads raw states.
    folded_D = (weight_D / std_D).detach()
    return Logistic(folded_D, (bias - folded_D @ mean_D).detach())


def _with_bias(states_MD: Tensor) -> Tensor:
    return F.pad(states_MD.float(), (0, 1), value=1.0)
