"""Padding, positions and attention masks.

Dimensions: B batch, T new tokens, S all tokens so far (those in the cache and the new ones).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_left(rows: Sequence[Sequence[int]], *, fill: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Stack token ids of different lengths, padding before them.

    Returns:
        ids_BT and mask_BT, True at real tokens.
    """
    width = max((len(row) for row in rows), default=0)
    ids_BT = torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows], dtype=torch.long, device=device)
    mask_BT = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows], device=device)
    return ids_BT.view(len(rows), width), mask_BT.bool().view(len(rows), width)


def pad_right(rows: Sequence[Sequence[int]], *, fill: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """The same with the padding behind."""
    ids_BT, mask_BT = pad_left([row[::-1] for row in rows], fill=fill, device=device)
    return ids_BT.flip(1), mask_BT.flip(1)


def first_columns(counts: Sequence[int], *, device: torch.device | str = "cpu") -> Tensor:
    """True at each row's first `counts` columns of as many as the longest row has: B, K."""
    counts_B = torch.tensor(counts, device=device)
    return torch.arange(max(counts), device=device)[None] < counts_B[:, None]


def positions(mask_BS: Tensor, num_new: int) -> Tensor:
    """Positions of the newest tokens, counting real tokens only, so that padding never shifts one.

    Returns:
        positions_BT: 0 at padding before the first real token.
    """
    return (mask_BS.long().cumsum(dim=1) - 1).clamp_min(0)[:, mask_BS.shape[1] - num_new :]


def causal_mask(mask_BS: Tensor, num_new: int, *, window: int | None = None) -> Tensor:
    """Which of all tokens each new token may attend to.

    Args:
        mask_BS: True at tokens that exist.
        num_new: T, the newest tokens.
        window: Sliding window in real tokens, itself included; none by default.

    Returns:
        allowed_B1TS: A padding token sees itself only, which keeps softmax finite.
    """
    num_all = mask_BS.shape[1]
    column_S = torch.arange(num_all, device=mask_BS.device)
    row_T = column_S[num_all - num_new :]
    allowed_BTS = (column_S[None, :] <= row_T[:, None])[None] & mask_BS[:, None, :]
    if window is not None:
        place_BS = mask_BS.long().cumsum(dim=1)
        distance_BTS = place_BS[:, num_all - num_new :, None] - place_BS[:, None, :]
        allowed_BTS &= distance_BTS < window
    itself_TS = column_S[None, :] == row_T[:, None]
    return (allowed_BTS | itself_TS)[:, None]
