"""Which positions of a chain are kept."""

from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccot_cli.tensors.select import POSITIONAL, best_of_each, even, max_contemplation, num_kept, num_rounds, overlap

RATIOS = st.decimals(min_value=Decimal("0.01"), max_value=1, places=3).filter(lambda ratio: ratio > 0)
LENGTHS = st.integers(min_value=1, max_value=400)


@pytest.mark.parametrize(
    ("ratio", "num_chain", "kept"),
    [("0.07", 100, 7), ("0.1", 30, 3), ("0.1", 31, 4), ("0.05", 1, 1), ("1", 57, 57), ("0.3", 10, 3)],
)
def test_k_is_the_ceiling_of_the_decimal_that_was_written(ratio: str, num_chain: int, kept: int) -> None:
    assert num_kept(Decimal(ratio), num_chain) == kept


@pytest.mark.parametrize("ratio", ["0", "-0.1", "1.01"])
def test_an_impossible_ratio_is_refused(ratio: str) -> None:
    with pytest.raises(ValueError, match="0 < r <= 1"):
        num_kept(Decimal(ratio), 10)


def test_an_empty_chain_is_refused() -> None:
    with pytest.raises(ValueError, match="empty chain"):
        num_kept(Decimal("0.1"), 0)


def test_the_cap_is_200_times_the_ratio() -> None:
    assert max_contemplation(Decimal("0.05"), 200) == 10
    assert max_contemplation(Decimal("0.1"), 200) == 20


@pytest.mark.parametrize("name", POSITIONAL)
@given(num_chain=LENGTHS, ratio=RATIOS)
def test_every_selector_returns_k_different_positions_in_reading_order(
    name: str, num_chain: int, ratio: Decimal
) -> None:
    k = num_kept(ratio, num_chain)
    positions = POSITIONAL[name](num_chain, k, torch.Generator().manual_seed(0))
    assert len(positions) == k
    assert positions == sorted(set(positions))
    assert positions[0] >= 0
    assert positions[-1] < num_chain


@pytest.mark.parametrize("name", POSITIONAL)
def test_ratio_one_keeps_every_token(name: str) -> None:
    assert POSITIONAL[name](9, 9, torch.Generator().manual_seed(0)) == list(range(9))


@given(num_chain=LENGTHS, ratio=RATIOS)
def test_even_spacing_keeps_the_last_token_and_gaps_that_differ_by_one_at_most(num_chain: int, ratio: Decimal) -> None:
    positions = even(num_chain, num_kept(ratio, num_chain), torch.Generator())
    gaps = [after - before for before, after in zip([-1, *positions], positions, strict=False)]
    assert positions[-1] == num_chain - 1
    assert max(gaps) - min(gaps) <= 1


def test_random_positions_depend_on_the_seed_alone() -> None:
    def draw(seed: int) -> list[int]:
        return POSITIONAL["random"](100, 10, torch.Generator().manual_seed(seed))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_only_the_last_token_of_a_word_is_taken_from_a_segment() -> None:
    scores = torch.tensor([1.0, 9.0, 9.0, 2.0, 2.0, 3.0, 3.0, 8.0, 8.0, 0.0])
    words = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    segments = [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert best_of_each(scores, segments, 2, rounds=1, words=words) == [2, 8]
    # The second word before the best one does not exist in either segment, so the others follow by score.
    assert best_of_each(scores, segments, 4, rounds=2, words=words) == [2, 4, 6, 8]
    assert best_of_each(scores, segments, 3, rounds=1, words=words) == [2, 4, 8]
    assert best_of_each(scores, segments, 4, rounds=1, words=words) == [2, 4, 8, 9]
    assert best_of_each(scores, segments, 10, rounds=9, words=words) == list(range(10))
    every_second = torch.tensor([1.0, 1.0, 2.0, 2.0, 9.0, 9.0])
    assert best_of_each(every_second, [0] * 6, 2, rounds=2, words=[0, 0, 1, 1, 2, 2]) == [1, 5]


def test_every_segment_gives_as_many_tokens_a_first_and_only_one_a_second_and_the_chains_end_the_rest() -> None:
    scores = torch.tensor([1.0, 9.0, 2.0, 5.0, 7.0, 8.0, 3.0, 3.0, 0.0])
    segments = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert best_of_each(scores, segments, 3, rounds=1) == [1, 5, 7]
    assert best_of_each(scores, segments, 4, rounds=1) == [1, 2, 5, 7]
    assert best_of_each(scores, segments, 5, rounds=1) == [1, 2, 5, 7, 8]
    assert best_of_each(scores, segments, 6, rounds=1) == [1, 2, 5, 6, 7, 8]
    assert best_of_each(scores, segments, 9, rounds=1) == list(range(9))
    # The second round: two before the middle segment's best, the better-scored others elsewhere.
    assert best_of_each(scores, segments, 6, rounds=2) == [1, 2, 3, 5, 6, 7]
    assert best_of_each(scores, segments, 7, rounds=2) == [1, 2, 3, 5, 6, 7, 8]


def test_if_segments_give_one_token_the_first_gives_another_before_its_best_word() -> None:
    scores = torch.tensor([3.0, 1.0, 2.0, 1.0, 9.0, 1.0, 8.0, 1.0, 2.0, 1.0, 9.0, 1.0])
    segments = [0] * 6 + [1] * 6
    assert best_of_each(scores, segments, 3, rounds=1) == [2, 4, 10]
    assert best_of_each(scores[:6], segments[:6], 2, rounds=1) == [2, 4]
    assert best_of_each(scores, segments, 5, rounds=2) == [2, 4, 8, 10, 11]


def test_if_tokens_do_not_suffice_for_all_segments_the_last_give_none() -> None:
    scores = torch.tensor([1.0, 9.0, 2.0, 5.0, 7.0, 8.0, 3.0, 3.0, 0.0])
    segments = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for rounds in (1, 2):
        assert best_of_each(scores, segments, 1, rounds=rounds) == [1]
        assert best_of_each(scores, segments, 2, rounds=rounds) == [1, 5]
        assert best_of_each(scores, segments, 3, rounds=rounds) == [1, 5, 7]


def test_in_a_later_round_the_last_segment_gives_first_and_then_the_others_in_order() -> None:
    scores = torch.tensor([1.0, 9.0, 2.0, 5.0, 7.0, 8.0, 3.0, 3.0, 0.0])
    segments = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert best_of_each(scores, segments, 4, rounds=2) == [1, 5, 6, 7]
    assert best_of_each(scores, segments, 5, rounds=2) == [1, 2, 5, 6, 7]


def test_segments_of_unlike_lengths_give_what_they_have() -> None:
    scores = torch.tensor([1.0, 9.0, 2.0, 5.0])
    assert best_of_each(scores, [0, 1, 1, 1], 2, rounds=2) == [0, 1]
    assert best_of_each(scores, [0, 1, 1, 1], 3, rounds=2) == [0, 1, 3]
    assert best_of_each(scores, [0, 1, 1, 1], 4, rounds=2) == [0, 1, 2, 3]


@given(ratio=RATIOS, num_segments=st.integers(1, 50), length=st.integers(1, 40))
def test_all_segments_can_give_as_many_tokens_as_the_ratio_allows(
    ratio: Decimal, num_segments: int, length: int
) -> None:
    rounds = num_rounds(ratio, num_segments * length, num_segments)
    assert rounds == 1 or rounds * num_segments <= num_kept(ratio, num_segments * length)
    assert rounds + 1 > ratio * length


@given(num_chain=LENGTHS, ratio=RATIOS, seed=st.integers(0, 99))
def test_selection_by_score_returns_k_different_positions_in_reading_order(
    num_chain: int, ratio: Decimal, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores, breaks = torch.rand(num_chain, generator=generator), torch.rand(num_chain, generator=generator) < 0.1
    positions = best_of_each(scores, breaks.cumsum(0).tolist(), num_kept(ratio, num_chain), rounds=seed % 3 + 1)
    assert positions == sorted(set(positions))
    assert len(positions) == num_kept(ratio, num_chain)


def test_overlap_is_the_share_of_the_positions_that_both_keep() -> None:
    assert overlap([1, 2, 3, 4], [2, 4, 5]) == 0.5
