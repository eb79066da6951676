"""A key-value cache that grows in place, and a sequence: the cache and which of its columns hold real tokens.

Dimensions: B batch, H heads, S columns so far, T new columns, C channels of a head.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from ccot_cli.tensors.masks import causal_mask

SLACK = 16
"""Least number of columns that are allocated ahead."""


class GrowingLayer(DynamicLayer):
    """Keys and values of one decoder layer, in a buffer with free columns after them.

    Only free columns are ever written to, and only by the layer that allocated the buffer. So the contents of earlier
    `keys` and `values` never change, and sequences may share them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values of T columns (B, H, T, C); return those of all columns (B, H, S, C)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
        elif torch.is_grad_enabled():
            # A backward pass needs the tensors of its forward pass unchanged, and every write changes a buffer.
            self._buffers = None
            self.keys = torch.cat([cast(Tensor, self.keys), key_states], dim=-2)
            self.values = torch.cat([cast(Tensor, self.values), value_states], dim=-2)
        else:
            self._append(key_states, value_states)
        return cast(Tensor, self.keys), cast(Tensor, self.values)

    def _append(self, key_states: Tensor, value_states: Tensor) -> None:
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < end:
            self._buffers = _with_room(cast(Tensor, self.keys), end), _with_room(cast(Tensor, self.values), end)
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)

    def shorten(self, num_columns: int) -> None:
        """Forget all but the first columns."""
        if self.keys is None or self.values is None or self.get_seq_length() <= num_columns:
            return
        # The columns that are dropped may still be in use elsewhere, so the buffer is not written over.
        self._buffers = None
        self.keys, self.values = self.keys[:, :, :num_columns], self.values[:, :, :num_columns]


def _with_room(filled_BHSC: Tensor, num_columns: int) -> Tensor:
    """Copy into a buffer for so many columns and some more."""
    batch, heads, length, channels = filled_BHSC.shape
    buffer = filled_BHSC.new_empty(batch, heads, num_columns + max(SLACK, num_columns // 4), channels)
    buffer[:, :, :length] = filled_BHSC
    return buffer


def empty_cache() -> Cache:
    """Return a cache without layers; each is added by its first update."""
    return Cache(layer_class_to_replicate=GrowingLayer)


def _cache_of(layers: Iterable[Iterable[Tensor]]) -> Cache:
    """Make a cache of each layer's keys and values."""
    cache = empty_cache()
    for layer, (keys, values) in enumerate(layers):
        cache.update(keys, values, layer_idx=layer)
    return cache


def keys_values(cache: Cache, layer: int) -> tuple[Tensor, Tensor]:
    """Return what a cache has of a decoder layer (counted from 0) that has run: B, H, S, C each."""
    cached = cast(GrowingLayer, cache.layers[layer])
    assert cached.keys is not None
    assert cached.values is not None
    return cached.keys, cached.values


@dataclass(frozen=True)
class LayerInputs:
    """What decoder layers are given for the newest T columns besides their states; the same for all layers."""

    mask_BS: Tensor
    """The sequence's mask when this was made."""
    positions_BT: Tensor
    rotary: dict[str | None, tuple[Tensor, Tensor]]
    """Cosines and sines of the positions for each kind of layer; empty if the model has no rotary positions."""
    masks: dict[int | None, Tensor]
    """Attention mask for each sliding window: B, 1, T, S."""

    def columns(self, first: int, end: int) -> "LayerInputs":
        """Select columns `first` to `end` of the T, as if those from `end` on had not been appended yet."""
        # As a negative index, because S counts earlier columns too.
        stop = (end - self.positions_BT.shape[1]) or None
        return LayerInputs(
            self.mask_BS[:, :stop],
            self.positions_BT[:, first:end],
            {kind: (cosines[:, first:end], sines[:, first:end]) for kind, (cosines, sines) in self.rotary.items()},
            {window: mask[:, :, first:end, :stop] for window, mask in self.masks.items()},
        )


@dataclass
class CachedSequence:
    """What has been run so far: keys and values of every layer, and which columns hold real tokens.

    A row need not use every column of the cache. Unused columns (left padding, contemplation tokens after END) are
    neither attended to nor counted in positions.
    """

    cache: Cache
    mask_BS: Tensor
    """True at real tokens."""
    bias_BS: Tensor | None = None
    """Added to the attention logits of the first S columns, for all heads and layers; -inf hides a column."""
    layer_inputs: LayerInputs | None = None
    """Of the columns that were run last; layers that are still to run on them reuse it."""

    @classmethod
    def empty(cls, batch: int, device: torch.device) -> "CachedSequence":
        """Start a sequence of so many rows, without columns."""
        return cls(empty_cache(), torch.zeros(batch, 0, dtype=torch.bool, device=device))

    @classmethod
    def joined(cls, parts: "Sequence[CachedSequence]") -> "CachedSequence":
        """Stack the rows of sequences that have the same number of columns and no bias."""
        if len(parts) == 1:
            return parts[0]
        by_layer = zip(*(part._layers() for part in parts), strict=True)
        cache = _cache_of([*map(torch.cat, zip(*each, strict=True))] for each in by_layer)
        return cls(cache, torch.cat([part.mask_BS for part in parts]))

    @classmethod
    def of(cls, keys_values: Tensor, mask_BS: Tensor) -> "CachedSequence":
        """Make a sequence of keys and values that were kept, layer by layer, keys before values: 2 L, B, H, S, C."""
        return cls(_cache_of(zip(keys_values[::2], keys_values[1::2], strict=True)), mask_BS)

    def kept(self) -> Tensor:
        """Return the keys and values that `of` takes."""
        return torch.stack([each for layer in self._layers() for each in layer])

    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        return [self.keys_values(layer) for layer in range(len(self.cache.layers))]

    def extend(self, mask_BT: Tensor) -> None:
        """Append T columns, real tokens where the mask is True. Run the layers on them afterwards."""
        self.mask_BS = torch.cat([self.mask_BS, mask_BT], dim=1)

    def copy(self) -> "CachedSequence":
        """Return a sequence that can be continued differently; tensors are shared until then."""
        return CachedSequence(_cache_of(self._layers()), self.mask_BS, self.bias_BS)

    def hiding(self, hidden_BN: Tensor) -> "CachedSequence":
        """Copy the sequence; nothing that follows in the copy attends to columns that are hidden. Positions stay.

        Args:
            hidden_BN: True at columns to hide among the first N.
        """
        assert self.bias_BS is None
        copy = self.copy()
        bias_BN = torch.zeros(hidden_BN.shape, device=hidden_BN.device).masked_fill(hidden_BN, float("-inf"))
        copy.bias_BS = torch.nn.functional.pad(bias_BN, (0, self.mask_BS.shape[1] - hidden_BN.shape[1]))
        return copy

    def attention(self, num_new: int, window: int | None, dtype: torch.dtype, *, as_numbers: bool = False) -> Tensor:
        """Return which columns the newest T tokens may attend to: B, 1, T, S.

        Args:
            num_new: T.
            window: Sliding window in tokens; None for no limit.
            dtype: The precision of the states.
            as_numbers: Whether to return numbers of type `dtype`, to add to the attention logits, instead of booleans.
                If the sequence has a bias, numbers are returned in any case.
        """
        allowed_B1TS = causal_mask(self.mask_BS, num_new, window=window)
        if self.bias_BS is None and not as_numbers:
            return allowed_B1TS
        plain_B1TS = torch.zeros(allowed_B1TS.shape, dtype=dtype, device=allowed_B1TS.device)
        plain_B1TS = plain_B1TS.masked_fill(~allowed_B1TS, float("-inf"))
        if self.bias_BS is None:
            return plain_B1TS
        num_unbiased = self.mask_BS.shape[1] - self.bias_BS.shape[1]
        bias_BS = torch.nn.functional.pad(self.bias_BS.to(dtype), (0, num_unbiased))
        return plain_B1TS + bias_BS[:, None, None]

    def crop(self, num_columns: int) -> None:
        """Forget all but the first columns."""
        for layer in cast(list[GrowingLayer], self.cache.layers):
            layer.shorten(num_columns)
        self.mask_BS = self.mask_BS[:, :num_columns]

    def keys_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of a decoder layer (counted from 0): B, H, S, C each."""
        return keys_values(self.cache, layer)
