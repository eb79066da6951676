"""Choose which chain tokens to keep (paper, section 4.1).

Positions count from 0 and are returned in reading order.
"""

from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from itertools import pairwise

import torch
from torch import Tensor

Select = Callable[[int, int, torch.Generator], list[int]]
"""(number of chain tokens m, number kept k, randomness) -> k positions."""


def num_kept(ratio: Decimal, num_chain: int) -> int:
    """Compute k = ceil(r * m), at least 1, in decimal arithmetic: 0.07 of 100 is 7, never 8.

    Args:
        ratio: r.
        num_chain: m, the number of chain tokens.

    Raises:
        ValueError: if r is not in 0 < r <= 1, or the chain is empty.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"a compression ratio needs 0 < r <= 1, not {ratio}")
    if num_chain < 1:
        raise ValueError("an empty chain has no tokens to keep")
    return max(1, int((ratio * num_chain).to_integral_value(ROUND_CEILING)))


def max_contemplation(ratio: Decimal, cap_tokens: int) -> int:
    """Compute the cap h = ceil(r * cap_tokens); the paper has cap_tokens = 200 (section 4.2)."""
    return num_kept(ratio, cap_tokens)


def even(num_chain: int, num_tokens: int, generator: torch.Generator) -> list[int]:
    """Choose evenly spaced positions; the last token is always kept."""
    return [-(-(i + 1) * num_chain // num_tokens) - 1 for i in range(num_tokens)]


def last(num_chain: int, num_tokens: int, generator: torch.Generator) -> list[int]:
    """Choose the chain's last k tokens: a control."""
    return list(range(num_chain - num_tokens, num_chain))


def at_random(num_chain: int, num_tokens: int, generator: torch.Generator) -> list[int]:
    """Draw k positions without replacement: a control."""
    drawn = torch.randperm(num_chain, generator=generator)[:num_tokens]
    return sorted(drawn.tolist())


POSITIONAL: dict[str, Select] = {"even": even, "last": last, "random": at_random}
"""Selectors that depend on positions alone, by name."""


def best(scores: Tensor, num_tokens: int) -> list[int]:
    """Choose the k tokens with the highest scores."""
    return sorted(scores.topk(num_tokens).indices.tolist())


def num_rounds(ratio: Decimal, num_tokens: int, num_segments: int) -> int:
    """Compute how many tokens to take from each segment: r times their mean length, rounded down, at least 1.

    Args:
        ratio: r.
        num_tokens: Chain tokens of all problems.
        num_segments: Segments of all problems.
    """
    return max(1, int(ratio * num_tokens / num_segments))


def best_of_each(
    scores: Tensor, segments: list[int], num_tokens: int, *, rounds: int, words: list[int] | None = None
) -> list[int]:
    """Take the same number of tokens from every segment, and the rest from the end of the chain.

    A segment is a line of the chain, one reasoning step. Only the last token of a word is taken, because the word after
    it is what it announces. Within a segment the best word by score comes first, then every second word before it, the
    nearest first (they hold what the best one is computed from), then the others by score. Each round takes one token
    from every segment that has one left. If every segment gives only one, the first one gives a second: nothing comes
    before it, so a generator would otherwise have to find the first result's numbers and compute it in the same token.
    What is left then goes to the chain's last tokens. So the next token can be told from those before it. A choice that
    depended on k would depend on the length of a chain that is not written yet.

    If k does not suffice for a round, the last segment comes first, because it holds the result, then the others in
    their order. If k does not even suffice for the first round, the segments come in their order and the last ones get
    nothing. Then every token has one step to compute, and the answer has the rest. A token that covers two steps is
    what a generator learns most slowly, and its errors spoil all tokens after it.

    Args:
        scores: One number for each of the m chain tokens.
        segments: The number of each token's segment, not decreasing: m.
        num_tokens: k.
        rounds: Most tokens to take from a segment before what is left of k is given away.
        words: The number of each token's word, not decreasing: m. By default every token is a word.
    """
    words = list(range(len(segments))) if words is None else words
    ends = [position for position, pair in enumerate(pairwise([*words, None])) if pair[0] != pair[1]]
    *earlier, last = sorted(set(segments))
    order = (last, *earlier) if num_tokens > len(earlier) else (*earlier, last)
    ranked = {each: _ranked(scores, [end for end in ends if segments[end] == each]) for each in order}
    taken = [ranked[each][rank] for rank in range(rounds) for each in order if rank < len(ranked[each])]
    if rounds == 1:
        taken += ranked[segments[0]][1:2]
    left = [position for position in reversed(range(len(segments))) if position not in taken]
    return sorted([*taken, *left][:num_tokens])


def _ranked(scores: Tensor, ends: list[int]) -> list[int]:
    """Return the positions at which a segment's words end, the first choice first."""
    values = [float(scores[end]) for end in ends]
    top = max(range(len(ends)), key=lambda place: (values[place], place), default=0)
    return [ends[place] for place in sorted(range(len(ends)), key=lambda place: _preference(place, top, values[place]))]


def _preference(place: int, top: int, score: float) -> tuple[int, float, int]:
    """Return a sort key for a segment's words that puts the first choice first."""
    if place == top:
        return (0, 0.0, 0)
    if place < top and (top - place) % 2 == 0:
        return (1, top - place, 0)
    return (2, -score, -place)


def overlap(positions: list[int], others: list[int]) -> float:
    """Compute the fraction of the positions that are among the others."""
    return len({*positions} & {*others}) / len(positions)
