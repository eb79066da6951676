"""Cut items into batches, those of similar length together where that saves padding."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

Item = TypeVar("Item")
Items = TypeVar("Items", bound=Sequence[Any])
POOL_BATCHES = 16


def cut(items: Items, size: int) -> list[Items]:
    """Return the items in batches of `size`, in their order; the last batch may have fewer."""
    return [cast(Items, items[start : start + size]) for start in range(0, len(items), size)]


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
    pools = (sorted(pool, key=lambda number: lengths[number]) for pool in cut(order, POOL_BATCHES * batch_size))
    batches = [batch for pool in pools for batch in cut(pool, batch_size)]
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
        yield from (batch for batch in cut(list(same), batch_size) if len(batch) > 1)
