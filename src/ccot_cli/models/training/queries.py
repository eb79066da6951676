"""A data set's queries in training: run at every use, or once into a file, because training never changes θ.

Dimensions: B batch, Q queries, N query, H heads, C channels of a head, I all indices 0..L, D width.
"""

import mmap
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ccot_cli.data.batches import plan_batches
from ccot_cli.files import reserve
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.memory import in_parts
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.selection.gold import STORED_DTYPE
from ccot_cli.tensors.masks import pad_left

READ_AHEAD_BYTES = 128 * 1024
"""As many as systems usually read at one request."""


class Queries(Protocol):
    """A data set's queries, ready to be continued."""

    queries: Sequence[list[int]]
    """Token ids by problem."""
    reader: str | None = None
    """Adapter that reads the queries; None is θ."""

    def sequence(self, numbers: Sequence[int]) -> CachedSequence:
        """Return the sequence of these problems' queries, padded on the left."""
        return self.encoded(numbers)[0]

    def encoded(self, numbers: Sequence[int]) -> tuple[CachedSequence, Tensor]:
        """Return the sequence of these problems' queries and z_0 (B, D), as `encode_query` does."""
        ...


class FreshQueries(Queries):
    """Queries that are run at every use: on a GPU, under φ, or because their keys and values take too much space.

    Args:
        queries: Token ids by problem.
        layer: Autoregressive layer l, where z_0 is read.
        reader: Adapter that reads the queries; None is θ. If it learns, gradients pass through.
        rounds: Whether to round as the file of `KeptQueries` does, so that what is learned does not depend on which
            of the two is used.
    """

    def __init__(
        self,
        adapters: Adapters,
        queries: Sequence[list[int]],
        layer: int,
        *,
        reader: str | None = None,
        rounds: bool = False,
    ) -> None:
        self.adapters, self.layer, self._rounds = adapters, layer, rounds
        self.queries, self.reader = queries, reader

    def encoded(self, numbers: Sequence[int]) -> tuple[CachedSequence, Tensor]:
        queries = [self.queries[number] for number in numbers]
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.reader is not None):
            sequence, first_BD = encode_query(self.adapters, queries, layer=self.layer, adapter=self.reader)
        if not self._rounds or self.adapters.theta.dtype == STORED_DTYPE:
            return sequence, first_BD
        return CachedSequence.of(_rounded(sequence.kept()), sequence.mask_BS), _rounded(first_BD)


class KeptQueries(Queries):
    """Queries that were run once: keys and values at every layer, and each last token's states, in a mapped file.

    Args:
        queries: Token ids by problem.
        layer: Autoregressive layer l, where z_0 is read.
        path: A file that `fill_queries` made from the same model and queries; it serves every l.
    """

    def __init__(self, theta: Theta, queries: Sequence[list[int]], layer: int, path: Path) -> None:
        self.theta, self.queries = theta, queries
        self._keys_values, last_QID = _mapped(theta, queries, path)
        self._first_QD = last_QID[:, layer].clone()
        with path.open("rb") as file:
            self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _read_ahead(self, numbers: Sequence[int]) -> None:
        """Ask for these queries' part of the file at once.

        Pages that are missed one by one are read many times more slowly, where the file is larger than memory.
        """
        for number in numbers:
            keys_values = self._keys_values[number]
            start = int(keys_values.storage_offset()) * STORED_DTYPE.itemsize
            end = start + keys_values.nbytes
            for piece in range(start - start % mmap.PAGESIZE, end, READ_AHEAD_BYTES):
                self._file.madvise(mmap.MADV_WILLNEED, piece, min(READ_AHEAD_BYTES, end - piece))

    def encoded(self, numbers: Sequence[int]) -> tuple[CachedSequence, Tensor]:
        theta = self.theta
        self._read_ahead(numbers)
        longest = max(len(self.queries[number]) for number in numbers)
        heads, channels = theta.blocks.heads
        # Keys and values, layer by layer.
        both = torch.empty(2 * theta.num_layers, len(numbers), heads, longest, channels, dtype=theta.dtype)
        mask_BN = torch.zeros(len(numbers), longest, dtype=torch.bool)
        for row, number in enumerate(numbers):
            start = longest - len(self.queries[number])
            both[:, row, :, :start] = 0
            both[:, row, :, start:] = self._keys_values[number]
            mask_BN[row, start:] = True
        first_BD = self._first_QD[list(numbers)].to(theta.device, theta.dtype)
        return CachedSequence.of(both.to(theta.device), mask_BN.to(theta.device)), first_BD


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.to(STORED_DTYPE).to(tensor.dtype)


@torch.no_grad()
def fill_queries(adapters: Adapters, queries: Sequence[list[int]], path: Path, *, batch_tokens: int) -> Iterator[int]:
    """Run every query under θ and write keys, values and last states to `path`; yield how many queries a batch had.

    Args:
        queries: Token ids by problem.
        path: A file that is there already is replaced.
        batch_tokens: Tokens in one pass, padding included; fewer if memory does not suffice.

    Raises:
        ResourceError: if a single query does not fit into memory.
    """
    theta = adapters.theta
    path.unlink(missing_ok=True)
    reserve(path, num_bytes(theta, queries))
    keys_values, last_QID = _mapped(theta, queries, path)
    adapters.use(None)

    def run(batch: Sequence[int]) -> int:
        ids_BN, mask_BN = pad_left([queries[number] for number in batch], fill=theta.pad_id, device=theta.device)
        sequence = CachedSequence.empty(len(batch), theta.device)
        sequence.extend(mask_BN)
        entered_BND = theta.blocks.enter(theta.blocks.embed(ids_BN), sequence)
        states = theta.blocks.run_each(entered_BND, 0, theta.num_layers, sequence)
        last_QID[list(batch)] = torch.stack([state_BND[:, -1] for state_BND in states], dim=1).to("cpu", STORED_DTYPE)
        both = sequence.kept()
        for row, number in enumerate(batch):
            keys_values[number].copy_(both[:, row, :, both.shape[3] - len(queries[number]) :])
        return len(batch)

    for batch in plan_batches([len(query) for query in queries], batch_tokens=batch_tokens):
        yield from in_parts(batch, run)


def _mapped(theta: Theta, queries: Sequence[list[int]], path: Path) -> tuple[list[Tensor], Tensor]:
    """Map the file as tensors: each query's keys and values (2 L, H, N, C), and the last tokens' states (Q, I, D)."""
    sizes, last_size = _sizes(theta, queries)
    total = sum(sizes)
    values = torch.from_file(str(path), shared=True, size=total + len(queries) * last_size, dtype=STORED_DTYPE)
    heads, channels = theta.blocks.heads
    starts = accumulate(sizes, initial=0)
    keys_values = [
        values[start : start + size].view(2 * theta.num_layers, heads, -1, channels)
        for start, size in zip(starts, sizes, strict=False)
    ]
    return keys_values, values[total:].view(len(queries), theta.num_layers + 1, -1)


def _sizes(theta: Theta, queries: Sequence[list[int]]) -> tuple[list[int], int]:
    """Count the values that each query's keys and values take in the file, and those that its last states take."""
    heads, channels = theta.blocks.heads
    width = 2 * theta.num_layers * heads * channels
    return [len(query) * width for query in queries], (theta.num_layers + 1) * theta.model.config.hidden_size


def num_bytes(theta: Theta, queries: Sequence[list[int]]) -> int:
    """Count the bytes of the file of these queries."""
    sizes, last_size = _sizes(theta, queries)
    return (sum(sizes) + len(queries) * last_size) * STORED_DTYPE.itemsize
