"""Batches of like length."""

import random

from ccot_cli.data.batches import bucketed, cut, group_alike, plan_batches


def test_all_is_cut_in_order() -> None:
    assert cut("abcde", 2) == ["ab", "cd", "e"]
    assert cut([1, 2, 3, 4], 2) == [[1, 2], [3, 4]]
    assert cut(range(3), 5) == [range(3)]
    assert cut([], 5) == []


def test_batches_hold_what_fits_and_every_problem_once() -> None:
    lengths = [5, 100, 7, 8, 30, 6]
    batches = plan_batches(lengths, batch_tokens=32)
    assert sorted(number for batch in batches for number in batch) == list(range(6))
    assert all(len(batch) == 1 or len(batch) * max(lengths[n] for n in batch) <= 32 for batch in batches)


def test_buckets_hold_every_item_once_and_little_padding() -> None:
    lengths = [random.Random(0).randrange(100) for _ in range(512)]
    batches = bucketed(lengths, batch_size=32, shuffler=random.Random(1))
    assert sorted(number for batch in batches for number in batch) == list(range(512))
    spreads = [max(lengths[n] for n in batch) - min(lengths[n] for n in batch) for batch in batches]
    assert max(spreads) < 20


def test_items_that_are_alike_are_together_and_none_is_alone() -> None:
    words = ["a", "bb", "cc", "dd", "ee", "ff", "ggg", "hhh"]
    assert list(group_alike(words, len, batch_size=4)) == [["bb", "cc", "dd", "ee"], ["ggg", "hhh"]]
    assert list(group_alike(words[::-1], len, batch_size=2)) == [["ff", "ee"], ["dd", "cc"], ["hhh", "ggg"]]
