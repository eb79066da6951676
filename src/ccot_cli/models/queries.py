"""The queries of a data set under θ. Nothing that is trained later changes their keys and values, so they may be kept.

Dimensions: B batch, Q queries, N query, S all tokens of all queries, H heads, C channels of a head, D width.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ccot_cli.models.adapters import Adapters
from ccot_cli.models.blocks import Sequence
from ccot_cli.models.cache import empty_cache
from ccot_cli.models.gold import STORED_DTYPE, plan_batches
from ccot_cli.models.phi import encode_query
from ccot_cli.models.theta import Theta


class Queries(Protocol):
    """A data set's queries, ready to be continued."""

    @property
    def queries(self) -> Rows[list[int]]:
        """Token ids by problem."""
        ...

    def sequence(self, numbers: Rows[int]) -> Sequence:
        """These problems' queries, padded on the left."""
        return self.encoded(numbers)[0]

    def encoded(self, numbers: Rows[int]) -> tuple[Sequence, Tensor]:
        """What `encode_query` returns for these problems: the sequence, and z_0 (B, D)."""
        ...


class FreshQueries(Queries):
    """Run anew whenever they are asked for: for models whose keys and values are too many to keep.

    Args:
        queries: Token ids by problem.
        layer: Autoregressive layer l, where z_0 is read.
    """

    def __init__(self, theta: Theta, adapters: Adapters, queries: Rows[list[int]], layer: int) -> None:
        self.theta, self.adapters, self.layer = theta, adapters, layer
        self._queries = queries

    @property
    def queries(self) -> Rows[list[int]]:
        return self._queries

    @torch.no_grad()
    def encoded(self, numbers: Rows[int]) -> tuple[Sequence, Tensor]:
        queries = [self.queries[number] for number in numbers]
        return encode_query(self.theta, self.adapters, queries, layer=self.layer)


class KeptQueries(Queries):
    """Keys and values of every query, every layer, computed once into a file that is mapped into memory.

    Args:
        queries: Token ids by problem.
        layer: Autoregressive layer l, where z_0 is read.
        path: The file, made anew; two bytes a number.
    """

    def __init__(self, theta: Theta, adapters: Adapters, queries: Rows[list[int]], layer: int, path: Path) -> None:
        self.theta, self.adapters, self.layer = theta, adapters, layer
        self._queries = queries
        self._firsts_QD = torch.zeros(len(queries), theta.model.config.hidden_size, dtype=theta.dtype)
        lengths = torch.tensor([0, *map(len, queries)])
        self._offsets = lengths.cumsum(0).tolist()
        self._width = width(theta)
        path.unlink(missing_ok=True)
        self._rows_SW = torch.from_file(
            str(path), shared=True, size=self._offsets[-1] * self._width, dtype=STORED_DTYPE
        ).view(-1, self._width)

    @property
    def queries(self) -> Rows[list[int]]:
        return self._queries

    @torch.no_grad()
    def fill(self, *, batch_tokens: int) -> Iterator[int]:
        """Run θ over every query, yielding how many a batch had."""
        lengths = [len(query) for query in self.queries]
        for batch in plan_batches(lengths, batch_tokens=batch_tokens):
            depth = self.theta.num_layers
            chosen = [self.queries[number] for number in batch]
            sequence, first_BD = encode_query(self.theta, self.adapters, chosen, layer=self.layer)
            self._firsts_QD[batch] = first_BD.cpu()
            both = [tensor for layer in range(depth) for tensor in sequence.keys_values(layer)]
            self._shape = both[0].shape[1], both[0].shape[3]
            rows_BNW = torch.stack(both, dim=1).permute(0, 3, 1, 2, 4).flatten(2)
            for place, number in enumerate(batch):
                start, end = self._offsets[number], self._offsets[number + 1]
                self._rows_SW[start:end] = rows_BNW[place, start - end :].to(STORED_DTYPE)
            yield len(batch)

    def encoded(self, numbers: Rows[int]) -> tuple[Sequence, Tensor]:
        theta = self.theta
        longest = max(self._offsets[number + 1] - self._offsets[number] for number in numbers)
        rows_BNW = torch.zeros(len(numbers), longest, self._width, dtype=STORED_DTYPE)
        mask_BN = torch.zeros(len(numbers), longest, dtype=torch.bool)
        for place, number in enumerate(numbers):
            start, end = self._offsets[number], self._offsets[number + 1]
            rows_BNW[place, start - end :] = self._rows_SW[start:end]
            mask_BN[place, start - end :] = True
        heads, channels = self._shape
        both = rows_BNW.view(len(numbers), longest, 2 * theta.num_layers, heads, channels).permute(2, 0, 3, 1, 4)
        both = both.to(theta.device, theta.dtype, memory_format=torch.contiguous_format).contiguous()
        cache = empty_cache()
        for layer in range(theta.num_layers):
            cache.update(both[2 * layer], both[2 * layer + 1], layer_idx=layer)
        return Sequence(cache, mask_BN.to(theta.device)), self._firsts_QD[list(numbers)].to(theta.device)


def width(theta: Theta) -> int:
    """Numbers that one token of a query leaves in the cache."""
    config = theta.model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    channels = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * theta.num_layers * heads * channels)


def num_bytes(theta: Theta, queries: Rows[list[int]]) -> int:
    """What the file of these queries takes."""
    return sum(map(len, queries)) * width(theta) * STORED_DTYPE.itemsize
