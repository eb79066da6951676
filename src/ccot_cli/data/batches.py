"""Cut a data set into batches of like length."""

import random
from collections.abc import Sequence

POOL_BATCHES = 16


def bucketed(lengths: Sequence[int], *, batch_size: int, shuffler: random.Random) -> list[list[int]]:
    """Shuffled batches of item numbers, with little padding inside each.

    Items are shuffled, sorted by length within pools of 16 batches, cut, and the batches shuffled again. Every item
    comes once.
    """
    order = list(range(len(lengths)))
    shuffler.shuffle(order)
    pool = POOL_BATCHES * batch_size
    batches: list[list[int]] = []
    for start in range(0, len(order), pool):
        alike = sorted(order[start : start + pool], key=lambda number: lengths[number])
        batches += [alike[at : at + batch_size] for at in range(0, len(alike), batch_size)]
    shuffler.shuffle(batches)
    return batches


def plan_batches(lengths: Sequence[int], *, batch_tokens: int) -> list[list[int]]:
    """Group problems of like length: a padded batch holds `batch_tokens` tokens at most, or one problem."""
    order = sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))
    batches: list[list[int]] = []
    for number in order:
        # The first of a batch is its longest.
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= batch_tokens:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches
