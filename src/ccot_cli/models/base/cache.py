"""What has been run so far: a key-value cache that grows in place, and which of its columns hold real tokens.

Dimensions: B batch, H heads, S columns so far, T new columns, C channels of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from ccot_cli.tensors.masks import causal_mask

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


@dataclass(frozen=True)
class LayerInputs:
    """What decoder layers are given for the newest T columns beside their states; it serves all layers."""

    mask_BS: Tensor
    """The sequence's mask when this was made."""
    place_BT: Tensor
    rotary: tuple[Tensor, Tensor] | None
    masks: dict[int | None, Tensor]
    """By sliding window: B, 1, T, S."""

    def columns(self, first: int, end: int) -> "LayerInputs":
        """Select some of the columns, as long as later ones are yet to run."""
        behind = (end - self.place_BT.shape[1]) or None
        return LayerInputs(
            self.mask_BS[:, :behind],
            self.place_BT[:, first:end],
            self.rotary and (self.rotary[0][:, first:end], self.rotary[1][:, first:end]),
            {window: mask[:, :, first:end, :behind] for window, mask in self.masks.items()},
        )


@dataclass
class CachedSequence:
    """What has been run so far: keys and values of every layer, and which columns hold real tokens.

    A column is a place in the cache; a row may leave columns empty (left padding, contemplation tokens behind END),
    and those are neither attended to nor counted in positions.
    """

    cache: Cache
    mask_BS: Tensor
    bias_BS: Tensor | None = None
    """Added to the attention logits of the first S columns, for all heads and layers; -inf hides a column."""
    layer_inputs: LayerInputs | None = None
    """For the columns that were run last; layers still to run reuse it."""

    @classmethod
    def empty(cls, batch: int, device: torch.device) -> "CachedSequence":
        return cls(empty_cache(), torch.zeros(batch, 0, dtype=torch.bool, device=device))

    @classmethod
    def joined(cls, parts: "Sequence[CachedSequence]") -> "CachedSequence":
        """The rows of several of the same number of columns, in one."""
        if len(parts) == 1:
            return parts[0]
        cache = empty_cache()
        for layer in range(len(parts[0].cache.layers)):
            keys, values = zip(*(part.keys_values(layer) for part in parts), strict=True)
            cache.update(torch.cat(keys), torch.cat(values), layer_idx=layer)
        return cls(cache, torch.cat([part.mask_BS for part in parts]))

    def extend(self, mask_BT: Tensor) -> None:
        """Make room for T new columns. Run the layers on them afterwards."""
        self.mask_BS = torch.cat([self.mask_BS, mask_BT], dim=1)

    def copy(self) -> "CachedSequence":
        """Another that can be continued differently; tensors are shared until then."""
        cache = empty_cache()
        for layer in range(len(self.cache.layers)):
            cache.update(*self.keys_values(layer), layer_idx=layer)
        return CachedSequence(cache, self.mask_BS, self.bias_BS)

    def attention(self, num_new: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """What the newest tokens may attend to: B, 1, T, S; True or False, or a bias where the sequence has one."""
        allowed_B1TS = causal_mask(self.mask_BS, num_new, window=window)
        if self.bias_BS is None:
            return allowed_B1TS
        plain_B1TS = torch.zeros(allowed_B1TS.shape, dtype=dtype, device=allowed_B1TS.device)
        free = self.mask_BS.shape[1] - self.bias_BS.shape[1]
        bias_BS = torch.nn.functional.pad(self.bias_BS.to(dtype), (0, free))
        return plain_B1TS.masked_fill(~allowed_B1TS, float("-inf")) + bias_BS[:, None, None]

    def crop(self, num_columns: int) -> None:
        """Forget all but the first columns."""
        for kept in cast(list[GrowingLayer], self.cache.layers):
            kept.shorten(num_columns)
        self.mask_BS = self.mask_BS[:, :num_columns]

    def keys_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """What a decoder layer (counted from 0) has left for later columns: B, heads, S, D of a head, twice."""
        kept = cast(GrowingLayer, self.cache.layers[layer])
        assert kept.keys is not None
        assert kept.values is not None
        return kept.keys, kept.values
