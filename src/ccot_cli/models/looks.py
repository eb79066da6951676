"""When to ask END: ours. Every look costs a pass through the layers above l, every token after END one through those
up to l; how long a question is tells about how many tokens it will take.

Plain numbers, not tensors: for one question this takes less than a pass through a layer.
"""

from collections import Counter
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import erf, inf, sqrt
from operator import mul
from statistics import fmean

LEAST_SPREAD = 0.25
UNFORESEEN = 0.01
"""Share of questions that are taken to follow no forecast."""


@dataclass(frozen=True)
class Forecast:
    """k of a question of N tokens: normal around base + slope * N."""

    base: float
    slope: float
    spread: float
    """Standard deviation."""

    @classmethod
    def fit(cls, lengths: Rows[int], counts: Rows[int]) -> "Forecast":
        """Least squares over training problems.

        Args:
            lengths: N of each, in tokens.
            counts: k of each.
        """
        mean_length, mean_count = fmean(lengths), fmean(counts)
        away = [length - mean_length for length in lengths]
        slope = sum(map(mul, away, counts)) / max(sum(map(mul, away, away)), 1e-9)
        missed = [count - mean_count - slope * each for each, count in zip(away, counts, strict=True)]
        return cls(mean_count - slope * mean_length, slope, sqrt(fmean(each**2 for each in missed)))

    def shares(self, lengths: Rows[int], most: int) -> list[float]:
        """How likely the longest contemplation of a batch has 1, 2, ... `most` tokens; they add up to 1."""
        scale = sqrt(2) * max(self.spread, LEAST_SPREAD)
        within = [1.0] * most
        for length, rows in Counter(lengths).items():
            mean = self.base + self.slope * length
            within = [
                share * (0.5 + 0.5 * erf((count + 1.5 - mean) / scale)) ** rows for count, share in enumerate(within)
            ]
        foreseen = [after - before for before, after in pairwise([0.0, *within[:-1], 1.0])]
        return [(1 - UNFORESEEN) * share + UNFORESEEN / most for share in foreseen]


def plan(shares: list[float], *, layer: int, num_layers: int) -> list[int]:
    """After how many tokens to ask END, so that the fewest layers are run on the mean.

    Args:
        shares: How likely a contemplation of 1, 2, ... h tokens is.
        layer: l.
        num_layers: L.

    Returns:
        Ascending numbers of tokens; the last is h.
    """
    most, above = len(shares), num_layers - layer
    # How likely a contemplation has more than t tokens.
    longer = [*reversed(list(accumulate(reversed(shares)))), 0.0]
    costs, following = [0.0] * (most + 1), [most] * (most + 1)
    for done in range(most - 1, -1, -1):
        costs[done] = inf
        for look in range(done + 1, most + 1):
            until = (look - done) * layer + above
            if until >= costs[done]:
                break
            cost = until + longer[look] / longer[done] * costs[look]
            if cost < costs[done]:
                costs[done], following[done] = cost, look
    looks = [following[0]]
    while looks[-1] < most:
        looks.append(following[looks[-1]])
    return looks
