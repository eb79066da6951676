"""Calibrated confidence: how probable it is that an answer is right.

The least probability of a number's token orders answers well, but a model that is often wrong gives it too high. So
logistic regression on its logit, two numbers, maps it to the share of right answers (Platt, 1999). The map is fitted on
validation problems. It rises, so the order of the answers stays.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite, log, tanh
from pathlib import Path

import torch

from ccot_cli.errors import CorruptError, retrain_hint
from ccot_cli.files import strict_json, write_json
from ccot_cli.tensors.probes import fit_logistic

FILE_NAME = "calibration.json"
LEAST_PENALTY = 1e-4
"""Of the logistic regression, for each answer: enough that it has a solution."""
LEAST_OF_EACH = 10
"""Right answers, and wrong ones, that a fit needs."""
LEAST_SCORE = 1e-6
"""Scores are kept this far from 0 and 1, whose logits are infinite."""


@dataclass(frozen=True)
class Calibration:
    """Maps the least probability of a number's token to the probability that the answer is right."""

    slope: float
    """Above 0."""
    intercept: float

    def __call__(self, score: float) -> float:
        """Return the probability; 0 for 0, which stands for an answer without a number."""
        if not score:
            return 0.0
        # The logistic function, in a form that does not overflow.
        return (1 + tanh((self.slope * _logit(score) + self.intercept) / 2)) / 2

    @classmethod
    def fit(cls, scores: Sequence[float], are_right: Sequence[bool]) -> "Calibration | None":
        """Fit the map on answers with a number.

        Returns:
            None if fewer than `LEAST_OF_EACH` of them are right, or wrong, or if right ones do not have higher scores.
        """
        pairs = [(score, is_right) for score, is_right in zip(scores, are_right, strict=True) if score]
        num_right = sum(is_right for _, is_right in pairs)
        if min(num_right, len(pairs) - num_right) < LEAST_OF_EACH:
            return None
        logits_M1 = torch.tensor([[_logit(score)] for score, _ in pairs])
        # Hardly any penalty, because it would flatten the one slope.
        are_right_M = torch.tensor([is_right for _, is_right in pairs])
        fitted = fit_logistic(logits_M1, are_right_M, penalty=LEAST_PENALTY * len(pairs))
        found = cls(fitted.weight_D.item(), fitted.bias.item())
        return found if found.is_sound else None

    @property
    def is_sound(self) -> bool:
        return isfinite(self.slope) and isfinite(self.intercept) and self.slope > 0

    def save(self, folder: Path) -> None:
        """Write the map into a trained folder."""
        write_json(folder / FILE_NAME, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "Calibration | None":
        """Read a saved map; None if the method has none.

        Raises:
            CorruptError: if the file is damaged.
        """
        path = folder / FILE_NAME
        try:
            found = cls(**{name: float(value) for name, value in strict_json(path.read_bytes()).items()})
            if not found.is_sound:
                raise ValueError("it does not rise")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptError(f"{path} cannot be read: {error}", fix=retrain_hint(folder)) from error
        return found


def _logit(score: float) -> float:
    kept = min(max(score, LEAST_SCORE), 1 - LEAST_SCORE)
    return log(kept / (1 - kept))
