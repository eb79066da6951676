"""The queries of a data set under θ. Nothing that is trained later changes their keys and values, so they may be kept.

Dimensions: B batch, Q queries, N query, S all tokens of all queries, H heads, C channels of a head, W = 2 L H C, I all
indices 0..L, D width.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from itertools import accumulate
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
from ccot_cli.tensors.masks import pad_left


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
    """Keys and values of every query at every layer, and each last token's states, in a file mapped into memory.

    Args:
        queries: Token ids by problem.
        layer: Autoregressive layer l, where z_0 is read.
        path: A file that `fill_queries` has made from the same model and queries; it serves every l.
    """

    def __init__(self, theta: Theta, queries: Rows[list[int]], layer: int, path: Path) -> None:
        self.theta, self.layer = theta, layer
        self._queries = queries
        self._offsets = _offsets(queries)
        self._rows_SW, self._last_QID = _mapped(theta, queries, path)

    @property
    def queries(self) -> Rows[list[int]]:
        return self._queries

    def encoded(self, numbers: Rows[int]) -> tuple[Sequence, Tensor]:
        theta = self.theta
        longest = max(len(self.queries[number]) for number in numbers)
        rows_BNW = torch.zeros(len(numbers), longest, self._rows_SW.shape[1], dtype=STORED_DTYPE)
        mask_BN = torch.zeros(len(numbers), longest, dtype=torch.bool)
        for place, number in enumerate(numbers):
            start, end = self._offsets[number], self._offsets[number + 1]
            rows_BNW[place, start - end :] = self._rows_SW[start:end]
            mask_BN[place, start - end :] = True
        both = rows_BNW.view(len(numbers), longest, 2 * theta.num_layers, *theta.heads).permute(2, 0, 3, 1, 4)
        both = both.to(theta.device, theta.dtype, memory_format=torch.contiguous_format).contiguous()
        cache = empty_cache()
        for layer in range(theta.num_layers):
            cache.update(both[2 * layer], both[2 * layer + 1], layer_idx=layer)
        first_BD = self._last_QID[list(numbers), self.layer]
        return Sequence(cache, mask_BN.to(theta.device)), first_BD.to(theta.device, theta.dtype)


@torch.no_grad()
def fill_queries(
    theta: Theta, adapters: Adapters, queries: Rows[list[int]], path: Path, *, batch_tokens: int
) -> Iterator[int]:
    """Run θ over every query and keep what comes of it at `path`, made anew; yields how many a batch had."""
    path.unlink(missing_ok=True)
    offsets = _offsets(queries)
    rows_SW, last_QID = _mapped(theta, queries, path)
    adapters.use(None)
    for batch in plan_batches([len(query) for query in queries], batch_tokens=batch_tokens):
        ids_BN, mask_BN = pad_left([queries[number] for number in batch], fill=theta.pad_id, device=theta.device)
        sequence = Sequence.empty(len(batch), theta.device)
        sequence.extend(mask_BN)
        entered_BND = theta.blocks.enter(theta.blocks.embedding(ids_BN), sequence)
        states = theta.blocks.run_each(entered_BND, 0, theta.num_layers, sequence)
        last_QID[batch] = torch.stack([state_BND[:, -1] for state_BND in states], dim=1).to("cpu", STORED_DTYPE)
        both = [tensor for layer in range(theta.num_layers) for tensor in sequence.keys_values(layer)]
        rows_BNW = torch.stack(both, dim=1).permute(0, 3, 1, 2, 4).flatten(2).to("cpu", STORED_DTYPE)
        for place, number in enumerate(batch):
            start, end = offsets[number], offsets[number + 1]
            rows_SW[start:end] = rows_BNW[place, start - end :]
        yield len(batch)


def _offsets(queries: Rows[list[int]]) -> list[int]:
    """Where each query's rows begin, and where the last one's end."""
    return list(accumulate(map(len, queries), initial=0))


def _mapped(theta: Theta, queries: Rows[list[int]], path: Path) -> tuple[Tensor, Tensor]:
    """The file as two tensors: keys and values (S, 2 L H C), then the last tokens' states (Q, L + 1, D)."""
    tokens, width, last = _sizes(theta, queries)
    numbers = torch.from_file(str(path), shared=True, size=tokens * width + len(queries) * last, dtype=STORED_DTYPE)
    rows, states = numbers[: tokens * width], numbers[tokens * width :]
    return rows.view(-1, width), states.view(len(queries), theta.num_layers + 1, -1)


def _sizes(theta: Theta, queries: Rows[list[int]]) -> tuple[int, int, int]:
    """Tokens of all queries, numbers that one leaves in the cache, and numbers of a query's last states."""
    heads, channels = theta.heads
    width = 2 * theta.num_layers * heads * channels
    return sum(map(len, queries)), width, (theta.num_layers + 1) * theta.model.config.hidden_size


def num_bytes(theta: Theta, queries: Rows[list[int]]) -> int:
    """What the file of these queries takes."""
    tokens, width, last = _sizes(theta, queries)
    return (tokens * width + len(queries) * last) * STORED_DTYPE.itemsize
