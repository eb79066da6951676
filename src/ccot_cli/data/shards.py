"""Hidden states of many problems on disk: safetensors shards that hold whole problems.

A shard's tensors:
    states      rows, I, D   gold states, the problems' rows one after another
    token_ids   rows         the token each row stands for
    positions   rows         its position in the solution
    numbers     problems     which problem of problems.jsonl
    offsets     problems + 1 where each problem's rows begin and end

Dimensions: J rows of a problem, I hidden-state indices, D width.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ccot_cli.errors import CorruptError
from ccot_cli.files import commit


@dataclass(frozen=True)
class Record:
    """One problem's rows."""

    number: int
    states_JID: Tensor
    token_ids_J: Tensor
    positions_J: Tensor

    def rows(self, kept: list[int]) -> "Record":
        """Only these rows, in this order."""
        return Record(self.number, self.states_JID[kept], self.token_ids_J[kept], self.positions_J[kept])


@dataclass
class ShardWriter:
    """Collects records and writes a shard before they exceed `max_bytes`, while its caller goes on.

    `on_written` is called with each shard's path, beside its caller too.

    A context: on leaving, the last records are written, or forgotten where an exception leads out. One shard is written
    at a time, from one of two places in memory that are used in turn, as memory that is asked for anew is slow to come:
    two shards' worth of states are held at most.
    """

    folder: Path
    max_bytes: int
    on_written: Callable[[Path], None] = lambda path: None
    _filled: Tensor = field(default_factory=lambda: torch.empty(0))
    """Rows for the states that come next, the first of which are taken."""
    _spare: Tensor = field(default_factory=lambda: torch.empty(0))
    """Those that are being written, or can be filled again."""
    _num_rows: int = 0
    _pending: list[Record] = field(default_factory=list)
    """The records of the rows that are taken."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))
    _under_way: Future[None] | None = None

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
        """Take a copy of a record's states."""
        num_new = len(record.states_JID)
        if self._num_rows + num_new > len(self._filled):
            self._flush()
            self._make_room(record.states_JID)
        states_JID = self._filled[self._num_rows : self._num_rows + num_new]
        states_JID.copy_(record.states_JID)
        self._num_rows += num_new
        self._pending.append(replace(record, states_JID=states_JID))

    def _make_room(self, states_JID: Tensor) -> None:
        """For a shard of records like this one, or for it alone where it is larger."""
        num_rows = max(len(states_JID), self.max_bytes // states_JID[0].nbytes)
        if len(self._filled) != num_rows:
            self._filled = states_JID.new_empty(num_rows, *states_JID.shape[1:])

    def _wait(self) -> None:
        """For the shard that is being written; what went wrong there is raised here."""
        if self._under_way is not None:
            self._under_way.result()

    def _flush(self) -> None:
        """Have what is pending written, if anything is."""
        self._wait()
        if self._pending:
            self._under_way = self._thread.submit(self._write, self._pending, self._filled[: self._num_rows])
            self._filled, self._spare = self._spare, self._filled
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
        """The first number that is free: a shard that was lost is made again in its own place."""
        return next(
            path for number in count() if not (path := self.folder / f"shard-{number:05d}.safetensors").exists()
        )


def shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.safetensors"))


def shards_of_other_width(folder: Path, num_indices: int) -> list[Path]:
    """Those that hold another number of hidden-state indices."""
    found = []
    for path in shard_paths(folder):
        with _opened(path) as shard:
            if shard.get_slice("states").get_shape()[1] != num_indices:
                found.append(path)
    return found


def stored_numbers(folder: Path) -> set[int]:
    """The problems that finished shards hold already."""
    numbers: set[int] = set()
    for path in shard_paths(folder):
        with _opened(path) as shard:
            numbers.update(shard.get_tensor("numbers").tolist())
    return numbers


def read_records(folder: Path) -> Iterator[Record]:
    """Yield every record, in the order in which they were written.

    Raises:
        CorruptError: for a shard that is damaged.
    """
    for path in shard_paths(folder):
        with _opened(path) as shard:
            token_ids, positions = shard.get_tensor("token_ids"), shard.get_tensor("positions")
            offsets = shard.get_tensor("offsets").tolist()
            states = shard.get_slice("states")
            for place, number in enumerate(shard.get_tensor("numbers").tolist()):
                start, end = offsets[place], offsets[place + 1]
                yield Record(number, states[start:end], token_ids[start:end], positions[start:end])


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CorruptError(f"{path} is damaged: {error}", fix="delete its folder and run its stage again") from error
