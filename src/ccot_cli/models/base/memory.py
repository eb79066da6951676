"""How much memory there is, and the same work in smaller parts if it does not suffice."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch

from ccot_cli.errors import ResourceError

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parts(items: Sequence[Item], run: Callable[[Sequence[Item]], Result]) -> Iterator[Result]:
    """Run something on a batch; where that does not fit into memory, on its halves, and on theirs.

    Raises:
        ResourceError: where a single item does not fit.
    """
    result = _attempt(items, run)
    if result is not None:
        yield result
        return
    half = len(items) // 2
    yield from in_parts(items[:half], run)
    yield from in_parts(items[half:], run)


def _attempt(items: Sequence[Item], run: Callable[[Sequence[Item]], Result]) -> Result | None:
    """Nothing where memory did not suffice; by then what the attempt held has been let go."""
    try:
        return run(items)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if len(items) == 1:
            raise does_not_fit() from error
    # Outside the handler, whose traceback would hold on to the batch's tensors.
    release()
    return None


def is_out_of_memory(error: Exception) -> bool:
    """On a CPU, torch raises a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # What torch says on Windows and on Linux.
    return any(words in str(error) for words in ("not enough memory", "can't allocate memory"))


SHARE = 0.5
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def fits(num_bytes: int, device: torch.device) -> bool:
    """Whether these bytes take half of a device's memory at most; on a GPU, of what is free."""
    if device.type == "cuda":
        release()  # What torch keeps for its next tensors would count as taken.
        return num_bytes <= SHARE * torch.cuda.mem_get_info(device)[0]
    return num_bytes <= SHARE * min([_machine_bytes(), *_container_bytes()])


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_bytes() -> Iterator[int]:
    """What a container may take, where there is a limit."""
    for path in LIMITS:
        with suppress(OSError, ValueError):  # cgroup v2 writes "max" for no limit
            yield int(path.read_text())


def release() -> None:
    """Give back what torch keeps for its next tensors."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def does_not_fit() -> ResourceError:
    return ResourceError(
        "a single question does not fit into memory", fix="a shorter question, a smaller model, or --device cpu"
    )
