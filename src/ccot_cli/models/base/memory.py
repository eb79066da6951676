"""Available memory, and how to do work in smaller parts if it does not suffice."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch

from ccot_cli import ranks
from ccot_cli.data.batches import bucketed
from ccot_cli.errors import ResourceError

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parts(items: Sequence[Item], run: Callable[[Sequence[Item]], Result]) -> Iterator[Result]:
    """Run work on a batch; if that does not fit into memory, on its halves, their halves and so on.

    Yields:
        The result of each part, in the order of the items.

    Raises:
        ResourceError: if a single item does not fit.
    """
    result = _attempt(items, run)
    if result is not None:
        yield result
        return
    half = len(items) // 2
    yield from in_parts(items[:half], run)
    yield from in_parts(items[half:], run)


def shared_parts(batches: Sequence[Sequence[Item]], run: Callable[[Sequence[Item]], Result]) -> Iterator[Result]:
    """Deal batches out to the ranks, and run each in parts if it does not fit into memory.

    Yields:
        The results of all parts, in the order of the batches, on every rank.

    Raises:
        ResourceError: if a single item does not fit.
    """
    for parts in ranks.share(batches, lambda batch: [*in_parts(batch, run)]):
        yield from parts


def by_number(
    lengths: Sequence[int],
    run: Callable[[Sequence[int]], Sequence[Result]],
    *,
    batch_size: int,
    advance: Callable[[int], object] = lambda count: None,
) -> list[Result]:
    """Run all items in batches of similar length, dealt out as `shared_parts` does; return the results by item.

    Args:
        lengths: Of every item.
        run: Takes the numbers of a batch's items, and returns a result for each.
        advance: Called with the number of items that are done.

    Raises:
        ResourceError: if a single item does not fit.
    """
    found: dict[int, Result] = {}
    batches = bucketed(lengths, batch_size=batch_size, shuffler=random.Random(0))
    for numbered in shared_parts(batches, lambda batch: [*zip(batch, run(batch), strict=True)]):
        found.update(numbered)
        advance(len(numbered))
    return [found[number] for number in range(len(lengths))]


def _attempt(items: Sequence[Item], run: Callable[[Sequence[Item]], Result]) -> Result | None:
    """Return the result, or None if memory did not suffice; then the memory of the attempt is free again."""
    try:
        return run(items)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if len(items) == 1:
            raise does_not_fit() from error
    # Not in the handler: its traceback would keep the batch's tensors alive.
    release()
    return None


def is_out_of_memory(error: Exception) -> bool:
    """Decide whether an error means that memory did not suffice."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # These are plain RuntimeErrors: on a CPU, of Windows and of Linux, and of a GPU's driver and libraries.
    return any(words in str(error) for words in OUT_OF_MEMORY)


OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED")
USABLE_FRACTION = 0.5
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files in which cgroup v2 and v1 state a container's limit, in bytes."""
MEMORY_INFO = Path("/proc/meminfo")


def fits(num_bytes: int, device: torch.device) -> bool:
    """Decide whether so many bytes take at most half of a device's free memory, and of a container's limit."""
    if device.type == "cuda":
        release()  # memory that torch keeps for its next tensors would count as taken
        return num_bytes <= USABLE_FRACTION * torch.cuda.mem_get_info(device)[0]
    return num_bytes <= USABLE_FRACTION * min([_free_bytes(), *_container_bytes()])


def _free_bytes() -> int:
    """Return the memory that new tensors can take; all of the machine's if the system does not say."""
    with suppress(OSError, StopIteration):
        lines = MEMORY_INFO.read_text().splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(kilobytes) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_bytes() -> Iterator[int]:
    """Yield the memory limit of the container, if there is one."""
    for path in LIMITS:
        with suppress(OSError, ValueError):  # cgroup v2 writes "max" for no limit
            yield int(path.read_text())


def release() -> None:
    """Give GPU memory back that torch keeps for its next tensors."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def does_not_fit() -> ResourceError:
    """Return the error for work that fails on a single question."""
    return ResourceError(
        "a single question does not fit into memory", fix="a shorter question, a smaller model, or --device cpu"
    )
