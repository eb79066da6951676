"""Store the hidden states of many problems in safetensors shards. A problem is never split across shards.

A shard's tensors (R rows, P problems):
    states      R, I, D   gold states, the problems' rows one after another
    token_ids   R         the token of each row
    positions   R         the position of that token in query and chain together
    numbers     P         the number of each problem in problems.jsonl, from 0
    offsets     P + 1     the row at which each problem starts, and the end of the last one

Dimensions: R rows of a shard, J rows of a problem, I hidden-state indices, D width.
"""

import re
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ccot_cli.errors import CorruptError
from ccot_cli.files import commit

_SHARD_NAME = re.compile(r"shard-(\d{5,})\.safetensors")


@dataclass(frozen=True)
class Record:
    """One problem's rows: its last query token and chain tokens, with their hidden states."""

    number: int
    """Of the problem in problems.jsonl."""
    states_JID: Tensor
    token_ids_J: Tensor
    positions_J: Tensor
    """Of the tokens in query and chain together."""

    def select(self, rows: list[int]) -> "Record":
        """Return a record of these rows alone, in this order."""
        return Record(self.number, self.states_JID[rows], self.token_ids_J[rows], self.positions_J[rows])


@dataclass
class ShardWriter:
    """Collects records, and writes them to shards of at most `max_bytes` in a thread.

    A context manager: on leaving, the last records are written, or dropped after an exception.

    One shard is written while the next one is filled. The two buffers are used in turn, because allocating memory is
    slow. So at most two shards are held in memory.
    """

    folder: Path
    max_bytes: int
    on_written: Callable[[Path], None] = lambda path: None
    """Called with each shard's path after it was written, in the writing thread."""
    first: int = 0
    """Number of the first shard."""
    _filling: Tensor = field(default_factory=lambda: torch.empty(0))
    """Buffer of the next shard's states; its first `_num_rows` rows are filled."""
    _spare: Tensor = field(default_factory=lambda: torch.empty(0))
    """Buffer of the states that are being written, or were written."""
    _num_rows: int = 0
    _pending: list[Record] = field(default_factory=list)
    """The records whose states are in `_filling`."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))
    _writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._thread:
            if error is None:
                self._flush()
                self._wait()

    def add(self, record: Record) -> None:
        """Add a record; its states are copied, so that the caller may reuse their memory."""
        num_new = len(record.states_JID)
        if self._num_rows + num_new > len(self._filling):
            self._flush()
            self._make_room(record.states_JID)
        states_JID = self._filling[self._num_rows : self._num_rows + num_new]
        states_JID.copy_(record.states_JID)
        self._num_rows += num_new
        self._pending.append(replace(record, states_JID=states_JID))

    def _make_room(self, states_JID: Tensor) -> None:
        """Make the buffer hold a shard of such states, or these states alone if they are larger than a shard."""
        num_rows = max(len(states_JID), self.max_bytes // states_JID[0].nbytes)
        if len(self._filling) != num_rows:
            self._filling = states_JID.new_empty(num_rows, *states_JID.shape[1:])

    def _wait(self) -> None:
        """Wait for the shard that is being written, and raise the error that its thread met."""
        if self._writing is not None:
            self._writing.result()

    def _flush(self) -> None:
        """Start to write the pending records, if there are any, and swap the buffers."""
        self._wait()
        if self._pending:
            self._writing = self._thread.submit(self._write, self._pending, self._filling[: self._num_rows])
            self._filling, self._spare = self._spare, self._filling
        self._pending, self._num_rows = [], 0

    def _write(self, records: list[Record], states_RID: Tensor) -> None:
        counts = torch.tensor([0, *(len(record.states_JID) for record in records)])
        tensors = {
            "states": states_RID,
            "token_ids": torch.cat([record.token_ids_J for record in records]).int(),
            "positions": torch.cat([record.positions_J for record in records]).int(),
            "numbers": torch.tensor([record.number for record in records]),
            "offsets": counts.cumsum(0),
        }
        path = self._free_path()
        with commit(path) as part:
            save_file(tensors, part)
        self.on_written(path)

    def _free_path(self) -> Path:
        """Return the first path that is free, so that a lost shard is written again under its own name."""
        return next(
            path
            for number in count(self.first)
            if not (path := self.folder / f"shard-{number:05d}.safetensors").exists()
        )


def plan_shards(num_rows: Sequence[int], max_rows: int) -> list[range]:
    """Compute which records a `ShardWriter` puts into each shard.

    Args:
        num_rows: Of every record, in the order in which they are written.
        max_rows: As many as `max_bytes` hold.

    Returns:
        Ranges of the records.
    """
    starts, room = [0], max(max_rows, num_rows[0])
    for number, num_new in enumerate(num_rows):
        if num_new > room:
            starts.append(number)
            room = max(max_rows, num_new)
        room -= num_new
    return [range(*bounds) for bounds in pairwise([*starts, len(num_rows)])]


def shard_paths(folder: Path) -> list[Path]:
    """Return the paths of a folder's shards, in order; a file of another name is none."""
    return sorted(path for path in folder.glob("*") if _SHARD_NAME.fullmatch(path.name))


def missing_shards(folder: Path, planned: Sequence[list[int]], num_indices: int) -> list[range]:
    """Find the shards that are still to be written, and remove those that do not hold what is planned.

    Args:
        planned: For every shard the numbers of its problems, in order.
        num_indices: Number of hidden-state indices in a shard.

    Returns:
        Runs of consecutive shards.

    Raises:
        CorruptError: if a shard is damaged.
    """
    kept = set()
    for path in shard_paths(folder):
        number = int(path.stem.removeprefix("shard-"))
        with _open_shard(path) as shard:
            has_indices = shard.get_slice("states").get_shape()[1] == num_indices
            is_planned = number < len(planned) and shard.get_tensor("numbers").tolist() == planned[number]
        if has_indices and is_planned:
            kept.add(number)
        else:
            path.unlink()
    runs: list[range] = []
    for number in range(len(planned)):
        if number in kept:
            continue
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


def read_records(folder: Path, *, indices: slice = slice(None), wanted: Set[int] | None = None) -> Iterator[Record]:
    """Yield records, in the order of the shards.

    Args:
        indices: Which of the stored hidden-state indices to read; all by default.
        wanted: Numbers of the problems whose records are read; all by default.

    Raises:
        CorruptError: if a shard is damaged, or holds a problem that an earlier one has.
    """
    seen = set[int]()
    for path in shard_paths(folder):
        with _open_shard(path) as shard:
            token_ids, positions = shard.get_tensor("token_ids"), shard.get_tensor("positions")
            offsets = shard.get_tensor("offsets").tolist()
            states = shard.get_slice("states")
            for index, number in enumerate(shard.get_tensor("numbers").tolist()):
                if number in seen:
                    raise CorruptError(f"{path} holds problem {number} a second time", fix="remove it if it is a copy")
                seen.add(number)
                if wanted is not None and number not in wanted:
                    continue
                start, end = offsets[index], offsets[index + 1]
                yield Record(number, states[start:end, indices], token_ids[start:end], positions[start:end])


@contextmanager
def _open_shard(path: Path) -> Iterator[Any]:
    """Open a shard; whatever turns out to be damaged while it is read is a `CorruptError`."""
    try:
        with safe_open(path, framework="pt") as shard:
            yield shard
    except (OSError, SafetensorError) as error:
        raise CorruptError(f"{path} is damaged: {error}", fix="remove its folder and run its stage again") from error
