"""Group the items of a data set into batches of similar length, to save padding."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

Item = TypeVar("Item")
POOL_BATCHES = 16


def bucketed(lengths: Sequence[int], *, batch_size: int, shuffler: random.Random) -> list[list[int]]:
    """Return shuffled batches of item numbers, with little padding inside each.

    The items are shuffled, sorted by length within pools of 16 batches and cut into batches; the batches are then
    shuffled. Every item appears once.

    Args:
        lengths: Length of every item, in tokens.
        shuffler: Source of randomness.
    """
    order = list(range(len(lengths)))
    shuffler.shuffle(order)
    pool = POOL_BATCHES * batch_size
    batches: list[list[int]] = []
    for start in range(0, len(order), pool):
        pooled = sorted(order[start : start + pool], key=lambda number: lengths[number])
        batches += [pooled[first : first + batch_size] for first in range(0, len(pooled), batch_size)]
    shuffler.shuffle(batches)
    return batches


def plan_batches(lengths: Sequence[int], *, batch_tokens: int) -> list[list[int]]:
    """Return batches of item numbers, longest items first; their order does not depend on `batch_tokens`.

    A batch holds at most `batch_tokens` tokens, padding included, or a single item that is longer.
    """
    order = sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))
    batches: list[list[int]] = []
    for number in order:
        # A batch's first item is its longest, so every item takes that many tokens.
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= batch_tokens:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches


def group_alike(items: Sequence[Item], key: Callable[[Item], Any], *, batch_size: int) -> Iterator[list[Item]]:
    """Yield batches of two or more items with equal keys, in the order of the keys."""
    for _, same in groupby(sorted(items, key=key), key=key):
        group = list(same)
        batches = (group[start : start + batch_size] for start in range(0, len(group), batch_size))
        yield from (batch for batch in batches if len(batch) > 1)
