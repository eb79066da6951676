"""END_ψ: does another contemplation token follow? (paper, section 4.2)

A linear classifier on a contemplation token's raw state at index L. Fitting it is logistic regression, a convex
problem, so it is solved to the optimum instead of trained by steps.

Dimensions: M tokens of many examples, B batch, K contemplation tokens, D width.
"""

import random
from collections.abc import Sequence as Rows
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ccot_cli.errors import CorruptError, anew
from ccot_cli.models.looks import Forecast

FILE_NAME = "end.safetensors"


@dataclass(frozen=True)
class End:
    """The classifier: END where `state . weight + bias > 0`."""

    weight_D: Tensor
    bias: Tensor
    forecast: Forecast
    """How many tokens may be expected, which tells when to ask."""

    def logits(self, last_BKD: Tensor) -> Tensor:
        return last_BKD.float() @ self.weight_D + self.bias

    def __call__(self, last_BKD: Tensor) -> Tensor:
        return self.logits(last_BKD) > 0

    def surer(self, by: float) -> "End":
        """One that ends only where this one's logit is above `by`."""
        return replace(self, bias=self.bias - by)

    def to(self, device: torch.device) -> "End":
        return replace(self, weight_D=self.weight_D.to(device), bias=self.bias.to(device))

    def save(self, folder: Path) -> None:
        forecast = torch.tensor(astuple(self.forecast))
        saved = {"weight": self.weight_D.cpu(), "bias": self.bias.cpu(), "forecast": forecast}
        save_file(saved, folder / FILE_NAME)

    @classmethod
    def load(cls, folder: Path, width: int) -> "End":
        """Read a saved classifier.

        Raises:
            CorruptError: where it is damaged or made for another width.
        """
        path = folder / FILE_NAME
        try:
            saved = load_file(path)
            weight_D, bias, forecast = saved["weight"], saved["bias"], saved["forecast"]
        except (OSError, KeyError, SafetensorError) as error:
            raise CorruptError(f"{path} cannot be read: {error}", fix=anew(folder)) from error
        fits = (weight_D.shape, bias.shape, forecast.shape) == ((width,), (), (3,))
        if not (fits and all(bool(tensor.isfinite().all()) for tensor in saved.values())):
            raise CorruptError(f"{path} does not fit a model of width {width}", fix=anew(folder))
        return cls(weight_D, bias, Forecast(*forecast.tolist()))


def labelled(states: Rows[Tensor], counts: Rows[int]) -> tuple[Tensor, Tensor]:
    """What END is fitted on: every problem's tokens up to its last one.

    Args:
        states: Each problem's: K, D. Those behind its k-th are left out.
        counts: k of each.

    Returns:
        last_MD and is_last_M, M tokens of all problems.
    """
    kept = [each[:count] for each, count in zip(states, counts, strict=True)]
    is_last = [place == count for each, count in zip(kept, counts, strict=True) for place in range(1, 1 + len(each))]
    return torch.cat(kept), torch.tensor(is_last, device=kept[0].device)


def fit_end(
    last_MD: Tensor, is_last_M: Tensor, forecast: Forecast, *, penalty: float = 1e-4, iterations: int = 200
) -> End:
    """Logistic regression of "is the last of its k tokens" on states.

    Args:
        last_MD: Raw states at index L of every contemplation token.
        is_last_M: The labels.
        forecast: How many tokens those examples have.
        penalty: Weight of the squared norm, in units of standardized states.
    """
    last_MD = last_MD.float()
    mean_D, std_D = last_MD.mean(dim=0), last_MD.std(dim=0, correction=0).clamp_min(1e-6)
    scaled_MD = (last_MD - mean_D) / std_D
    label_M = is_last_M.float()
    weight_D = torch.zeros_like(mean_D, requires_grad=True)
    bias = torch.zeros((), device=last_MD.device, requires_grad=True)
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
    return End(folded_D, (bias - folded_D @ mean_D).detach(), forecast)


BEYOND = 2
"""Tokens behind the k-th up to which a rollout may go on."""


class LateEnds:
    """Where each problem's rollout ends, at its k-th token or where END might end it later (ours).

    When a question is answered END decides, and now and then misses the k-th token. A ψ that has only read exactly k
    (paper, section 4.2) does not know what to make of one more. Ends are drawn anew for every epoch, with the
    probabilities of an END that is fitted before ψ learns, on one half of the problems for the other, so that it has
    not seen those that it is asked about. Where it would end a rollout too early, k stands.

    Args:
        states: Raw states at index L of each problem's tokens, up to `BEYOND` behind its k-th: K, D.
        counts: k of each.
        forecast: How many tokens the problems have.
        seed: Of the draws.
    """

    def __init__(self, states: Rows[Tensor], counts: Rows[int], forecast: Forecast, *, seed: int) -> None:
        self._counts, self._seed = counts, seed
        self._chances: list[list[float]] = [[] for _ in states]
        """How likely END ends it after each token that is reached."""
        for half in (0, 1):
            others = range(1 - half, len(states), 2) or range(len(states))
            fitted = labelled([states[number] for number in others], [counts[number] for number in others])
            end = fit_end(*fitted, forecast)
            for number in range(half, len(states), 2):
                self._chances[number] = end.logits(states[number]).sigmoid().tolist()

    def __call__(self, epoch: int) -> list[int]:
        """How many tokens each problem has in an epoch, counted from 0."""
        draw = random.Random(f"{self._seed} {epoch}")
        return [max(count, _end(chances, draw)) for count, chances in zip(self._counts, self._chances, strict=True)]


def _end(chances: list[float], draw: random.Random) -> int:
    return next((count for count, chance in enumerate(chances, start=1) if draw.random() < chance), len(chances))
