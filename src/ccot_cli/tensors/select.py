"""Choose which chain tokens to keep (paper, section 4.1).

Positions count from 0 and come in reading order.
"""

from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal

import torch
from torch import Tensor

Select = Callable[[int, int, torch.Generator], list[int]]
"""(number of chain tokens m, number kept k, randomness) -> k positions."""


def num_kept(ratio: Decimal, num_chain: int) -> int:
    """k = ceil(r * m), at least 1, in decimal arithmetic: 0.07 of 100 is 7, never 8.

    Raises:
        ValueError: for a ratio outside 0 < r <= 1 or an empty chain.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"a share of the chain needs 0 < r <= 1, not {ratio}")
    if num_chain < 1:
        raise ValueError("an empty chain has no tokens to keep")
    return max(1, int((ratio * num_chain).to_integral_value(ROUND_CEILING)))


def max_contemplation(ratio: Decimal, cap_tokens: int) -> int:
    """h = 200 r, rounded up (paper, section 4.2)."""
    return num_kept(ratio, cap_tokens)


def even(num_chain: int, num_tokens: int, generator: torch.Generator) -> list[int]:
    """Evenly spaced positions; the last token is always kept."""
    return [-(-(i + 1) * num_chain // num_tokens) - 1 for i in range(num_tokens)]


def last(num_chain: int, num_tokens: int, generator: torch.Generator) -> list[int]:
    """The chain's last k tokens: a control."""
    return list(range(num_chain - num_tokens, num_chain))


def at_random(num_chain: int, num_tokens: int, generator: torch.Generator) -> list[int]:
    """k positions drawn without replacement: a control."""
    drawn = torch.randperm(num_chain, generator=generator)[:num_tokens]
    return sorted(drawn.tolist())


POSITIONAL: dict[str, Select] = {"even": even, "last": last, "random": at_random}
"""Selectors that look at positions alone."""


def best(scores: Tensor, num_tokens: int) -> list[int]:
    """The k best of m tokens by their scores."""
    return sorted(scores.topk(num_tokens).indices.tolist())


def num_rounds(ratio: Decimal, num_tokens: int, num_segments: int) -> int:
    """How many tokens each segment of a data set can give: r times a segment's mean length, rounded down, at least 1.

    Args:
        ratio: r.
        num_tokens: Chain tokens of all problems.
        num_segments: Segments of all problems.
    """
    return max(1, int(ratio * num_tokens / num_segments))


def best_of_each(scores: Tensor, segments: list[int], num_tokens: int, *, rounds: int) -> list[int]:
    """The same number of tokens from every segment, and for the rest the end of the chain.

    A segment gives its best token first, then every second token before that, the nearest first (they hold what the
    best one is made from), then the others by score. What is left of k after the rounds goes to the chain's last
    tokens. So which token comes next can be told from those before it: a choice that hung on k would hang on the
    length of a chain that is not written yet. Where k does not suffice for a round, the last segment gives first, which
    holds the result, then the others in their order. Where k does not suffice for the first one, the segments give in
    their order and the last ones nothing: every token has one step to compute then, and the answer the rest, where a
    token of two steps is what a generator learns slowest, and spoils all that come after it.

    Args:
        scores: One number for each of the m chain tokens.
        segments: Which segment (a line of the chain: one reasoning step) each token belongs to, not decreasing.
        num_tokens: k.
        rounds: How many tokens a segment gives.
    """
    *earlier, last = sorted(set(segments))
    order = (last, *earlier) if num_tokens > len(earlier) else (*earlier, last)
    ranked = [_ranked(scores, segments, segment) for segment in order]
    given = [positions[rank] for rank in range(rounds) for positions in ranked if rank < len(positions)]
    left = [position for position in reversed(range(len(segments))) if position not in given]
    return sorted([*given, *left][:num_tokens])


def _ranked(scores: Tensor, segments: list[int], segment: int) -> list[int]:
    """A segment's positions from its first choice to its last."""
    members = [position for position, each in enumerate(segments) if each == segment]
    top = max(members, key=lambda position: (float(scores[position]), position))
    return sorted(members, key=lambda position: _preference(position, top, float(scores[position])))


def _preference(position: int, top: int, score: float) -> tuple[int, float, int]:
    """Sorts a segment's positions from its first choice to its last."""
    if position == top:
        return (0, 0.0, 0)
    if position < top and (top - position) % 2 == 0:
        return (1, top - position, 0)
    return (2, -score, -position)


def overlap(positions: list[int], others: list[int]) -> float:
    """Share of the positions that are among the others."""
    return len({*positions} & {*others}) / len(positions)
