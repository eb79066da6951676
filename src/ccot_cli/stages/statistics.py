"""Intervals and tests for shares of right answers."""

import statistics
from dataclasses import dataclass
from math import comb, hypot, sqrt


@dataclass(frozen=True)
class Proportion:
    """A share of n with its Wilson 95 % interval."""

    n: int
    accuracy: float
    low: float
    high: float


def wilson(num_correct: int, n: int) -> Proportion:
    """Proportion of successes with the Wilson score interval at 95 %."""
    z = 1.959963984540054
    share = num_correct / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Proportion(n, share, max(0.0, centre - half), min(1.0, centre + half))


def mcnemar(wins: int, losses: int) -> float:
    """Chance of a split at least as uneven, were each of these problems as likely won as lost (exact, two-sided)."""
    n, fewer = wins + losses, min(wins, losses)
    tail: int = sum(comb(n, count) for count in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))


# The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; from 10 degrees of freedom on by its expansion, right to 3 digits."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959964
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return float(sum(term / freedom**power for power, term in enumerate(terms)))


def interval(accuracies: list[float], num_problems: int) -> tuple[float, float]:
    """95 %: over problems (Wilson) and, where there are several, over seeds (Student's t).

    All seeds answer the same problems, so that these are one sample however many seeds there are.
    """
    mean = statistics.fmean(accuracies)
    share = wilson(round(mean * num_problems), num_problems)
    half = 0.0
    if len(accuracies) > 1:
        half = student(len(accuracies) - 1) * statistics.stdev(accuracies) / len(accuracies) ** 0.5
    return max(0.0, mean - hypot(half, mean - share.low)), min(1.0, mean + hypot(half, share.high - mean))
