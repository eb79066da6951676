"""Padding, positions and attention masks.

Dimensions: B batch, T new tokens, S all tokens so far (those in the cache and the new ones).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_left(rows: Sequence[Sequence[int]], *, fill: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Stack token ids of different lengths, with padding before them.

    Args:
        rows: Token ids of each row.
        fill: The id to pad with.
        device: Where the tensors are made.

    Returns:
        ids_BT and mask_BT, True at real tokens.
    """
    width = max((len(row) for row in rows), default=0)
    ids_BT = torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows], dtype=torch.long, device=device)
    mask_BT = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows], device=device)
    return ids_BT.view(len(rows), width), mask_BT.bool().view(len(rows), width)


def pad_right(rows: Sequence[Sequence[int]], *, fill: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Stack token ids of different lengths, with padding after them; otherwise as `pad_left`."""
    ids_BT, mask_BT = pad_left([row[::-1] for row in rows], fill=fill, device=device)
    return ids_BT.flip(1), mask_BT.flip(1)


def first_columns(counts: Sequence[int], *, device: torch.device | str = "cpu") -> Tensor:
    """Make a mask that is True at each row's first columns: B, K.

    Args:
        counts: Number of columns for each row; K is the largest.
        device: Where the mask is made.
    """
    counts_B = torch.tensor(counts, device=device)
    return torch.arange(max(counts), device=device)[None] < counts_B[:, None]


def positions(mask_BS: Tensor, num_new: int) -> Tensor:
    """Compute the positions of the newest tokens. Only real tokens count, so padding never shifts a position.

    Args:
        mask_BS: True at real tokens.
        num_new: T.

    Returns:
        positions_BT: 0 at padding before the first real token.
    """
    return (mask_BS.long().cumsum(dim=1) - 1).clamp_min(0)[:, mask_BS.shape[1] - num_new :]


def causal_mask(mask_BS: Tensor, num_new: int, *, window: int | None = None) -> Tensor:
    """Decide which tokens each new token may attend to.

    Args:
        mask_BS: True at real tokens.
        num_new: T, the newest tokens.
        window: Sliding window in real tokens, the token itself included; None for no limit.

    Returns:
        allowed_B1TS: Every token attends to itself, padding too, because softmax over nothing is not finite.
    """
    num_all = mask_BS.shape[1]
    column_S = torch.arange(num_all, device=mask_BS.device)
    new_T = column_S[num_all - num_new :]
    allowed_BTS = (column_S[None, :] <= new_T[:, None])[None] & mask_BS[:, None, :]
    if window is not None:
        position_BS = mask_BS.long().cumsum(dim=1)
        distance_BTS = position_BS[:, num_all - num_new :, None] - position_BS[:, None, :]
        allowed_BTS &= distance_BTS < window
    itself_TS = column_S[None, :] == new_T[:, None]
    return (allowed_BTS | itself_TS)[:, None]
