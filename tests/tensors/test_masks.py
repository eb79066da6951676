"""Masks and positions of padded batches."""

import torch

from ccot_cli.tensors.masks import causal_mask, pad_left, pad_right, positions


def test_padding_goes_to_the_side_that_was_asked_for() -> None:
    left, left_mask = pad_left([[1, 2], [3]], fill=0)
    right, right_mask = pad_right([[1, 2], [3]], fill=0)
    assert left.tolist() == [[1, 2], [0, 3]]
    assert left_mask.tolist() == [[True, True], [False, True]]
    assert right.tolist() == [[1, 2], [3, 0]]
    assert right_mask.tolist() == [[True, True], [True, False]]


def test_positions_count_real_tokens_only() -> None:
    mask = torch.tensor([[False, True, True, False, True], [True, True, False, True, True]])
    assert positions(mask, 5).tolist() == [[0, 0, 1, 1, 2], [0, 1, 1, 2, 3]]
    assert positions(mask, 2).tolist() == [[1, 2], [2, 3]]


def test_a_token_attends_to_real_tokens_up_to_itself() -> None:
    mask = torch.tensor([[False, True, True, False, True]])
    allowed = causal_mask(mask, 2)[0, 0].int().tolist()
    # The newest column sees 1, 2 and itself; the hole at 3 sees what is before it and itself, which is harmless.
    assert allowed == [[0, 1, 1, 1, 0], [0, 1, 1, 0, 1]]


def test_a_sliding_window_counts_real_tokens() -> None:
    mask = torch.tensor([[True, False, True, True]])
    assert causal_mask(mask, 1, window=2)[0, 0].int().tolist() == [[0, 0, 1, 1]]
