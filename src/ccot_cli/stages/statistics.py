"""Confidence intervals and a test for accuracies."""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb, hypot, sqrt


@dataclass(frozen=True)
class Proportion:
    """A proportion of n problems, with its 95 % Wilson interval."""

    n: int
    accuracy: float
    low: float
    high: float


def wilson(num_correct: int, n: int) -> Proportion:
    """Compute an accuracy and its 95 % Wilson score interval."""
    z = 1.959963984540054
    accuracy = num_correct / n
    centre = (accuracy + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(accuracy * (1 - accuracy) / n + z * z / (4 * n * n))
    # Rounding may put a bound that equals the accuracy, as at 0 and 1, on its wrong side.
    low, high = min(accuracy, centre - half), max(accuracy, centre + half)
    return Proportion(n, accuracy, max(0.0, low), min(1.0, high))


def proportion(marks: Iterable[bool]) -> Proportion | None:
    """Compute the proportion of true marks, with its interval; None if there is no mark."""
    counted = list(marks)
    return wilson(sum(counted), len(counted)) if counted else None


def mcnemar(wins: int, losses: int) -> float:
    """Compute the two-sided p value of McNemar's exact test.

    It is the probability of a split at least as uneven if every such problem is as likely to be won as lost.

    Args:
        wins: Problems that only the first method answers correctly.
        losses: Problems that only the second method answers correctly.
    """
    n, fewer = wins + losses, min(wins, losses)
    tail: int = sum(comb(n, count) for count in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))


def auroc(scores: Sequence[float], are_positive: Sequence[bool]) -> float | None:
    """Compute the probability that a positive has a higher score than a negative; ties count half (Mann and Whitney).

    Returns:
        None if there is no positive, or no negative.
    """
    num_positive = sum(are_positive)
    num_pairs = num_positive * (len(scores) - num_positive)
    if not num_pairs:
        return None
    ordered = sorted(scores)
    # Equal scores share the mean of their ranks, which count from 1.
    ranks = [(bisect_left(ordered, score) + bisect_right(ordered, score) + 1) / 2 for score in scores]
    rank_sum = sum(rank for rank, is_positive in zip(ranks, are_positive, strict=True) if is_positive)
    return (rank_sum - num_positive * (num_positive + 1) / 2) / num_pairs


def calibration_error(confidences: Sequence[float], are_right: Sequence[bool], *, num_bins: int = 10) -> float:
    """Compute the expected calibration error: how far confidence is from the share of right answers.

    It is the mean over equally wide bins of confidence, weighted by their answers, of the difference between the mean
    confidence and the share of right answers (Naeini et al., 2015).
    """
    gaps = [0.0] * num_bins
    for confidence, is_right in zip(confidences, are_right, strict=True):
        gaps[min(int(confidence * num_bins), num_bins - 1)] += confidence - is_right
    return sum(map(abs, gaps)) / len(confidences)


def paired_difference(wins: int, losses: int, n: int) -> tuple[float, float]:
    """Compute the 95 % interval of the difference of two accuracies on the same n problems.

    It is Wald's, with half a problem added to each of the four kinds (Agresti and Min, 2005).

    Args:
        wins: Problems that only the first method answers correctly.
        losses: Problems that only the second method answers correctly.
    """
    centre, spread = (wins - losses) / (n + 2), wins + losses + 1 - (wins - losses) ** 2 / (n + 2)
    half = 1.959963984540054 * sqrt(spread) / (n + 2)
    return max(-1.0, centre - half), min(1.0, centre + half)


# The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def student(degrees: int) -> float:
    """Compute the 97.5 % quantile of Student's t distribution for some degrees of freedom.

    From 10 degrees of freedom on, an expansion in their inverse gives 3 correct digits.
    """
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = 1.959964
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return float(sum(term / degrees**power for power, term in enumerate(terms)))


def interval(accuracies: list[float], num_problems: int) -> tuple[float, float]:
    """Compute the 95 % confidence interval of a mean accuracy over seeds.

    It combines the uncertainty over problems (Wilson) with that over seeds (Student's t), if there are several. All
    seeds answer the same problems, so the problems count as one sample.

    Args:
        accuracies: One for each seed.
    """
    mean = statistics.fmean(accuracies)
    over_problems = wilson(round(mean * num_problems), num_problems)
    half = 0.0
    if len(accuracies) > 1:
        half = student(len(accuracies) - 1) * statistics.stdev(accuracies) / len(accuracies) ** 0.5
    low, high = mean - hypot(half, mean - over_problems.low), mean + hypot(half, over_problems.high - mean)
    return max(0.0, low), min(1.0, high)
