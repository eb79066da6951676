"""A key-value cache that grows in place: without gradients a new token is written behind the others, which stay.

Dimensions: B batch, H heads, S columns so far, T new columns, C channels of a head.
"""

from typing import Any, cast

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

SLACK = 16
"""Columns that are allocated ahead at least."""


class GrowingLayer(DynamicLayer):
    """Keys and values of one decoder layer, with room behind them.

    Only the room behind what is there is ever written to, and only by the layer that allocated it, so whoever holds
    `keys` or `values` from before keeps what it saw.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values of T columns (B, H, T, C); returns those of all columns."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
        elif torch.is_grad_enabled():
            self._room = None
            self.keys = torch.cat([cast(Tensor, self.keys), key_states], dim=-2)
            self.values = torch.cat([cast(Tensor, self.values), value_states], dim=-2)
        else:
            self._append(key_states, value_states)
        return cast(Tensor, self.keys), cast(Tensor, self.values)

    def _append(self, key_states: Tensor, value_states: Tensor) -> None:
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < end:
            self._room = _with_room(cast(Tensor, self.keys), end), _with_room(cast(Tensor, self.values), end)
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, start:end] = new
        self.keys, self.values = (room[:, :, :end] for room in self._room)

    def shorten(self, num_columns: int) -> None:
        """Forget all but the first columns."""
        if self.keys is None or self.values is None or self.get_seq_length() <= num_columns:
            return
        # What is forgotten may still be held by another, so it is not written over.
        self._room = None
        self.keys, self.values = self.keys[:, :, :num_columns], self.values[:, :, :num_columns]


def _with_room(kept_BHSC: Tensor, num_columns: int) -> Tensor:
    """A copy with space for these columns and some more."""
    batch, heads, length, channels = kept_BHSC.shape
    room = kept_BHSC.new_empty(batch, heads, num_columns + max(SLACK, num_columns // 4), channels)
    room[:, :, :length] = kept_BHSC
    return room


def empty_cache() -> Cache:
    """One without any layer yet; layers come with their first update."""
    return Cache(layer_class_to_replicate=GrowingLayer)
