"""Several processes that run one command together, each on its device: which one this is, and how they share work.

torchrun starts them and numbers them: these are the ranks. Every rank runs the whole command, and they differ in three
functions: `add_up` sums what each has computed of a batch, `share` deals out a list of work, and `first` lets rank 0
alone do what is done once, such as writing. A process that was started alone is its own first and only rank.

All ranks must call these functions in the same order, except inside `first`: there, rank 0 is alone.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")

LONGEST_WAIT = timedelta(days=7)
"""How long ranks wait for each other: the first may work for hours. If a rank dies, torchrun ends the others."""


_is_alone: ContextVar[bool] = ContextVar("is_alone", default=False)


def rank() -> int:
    """Return the number of this process, from 0."""
    return int(os.environ.get("RANK", 0))


def size() -> int:
    """Return the number of all processes; 1 inside `first`."""
    return 1 if _is_alone.get() else int(os.environ.get("WORLD_SIZE", 1))


def local_rank() -> int:
    """Return the number of this process on its machine, which is that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", 0))


@cache
def _meet() -> None:
    """Wait until all ranks are here, once."""
    import torch
    from torch import distributed

    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(local_rank())
    distributed.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo", timeout=LONGEST_WAIT)


def leave() -> None:
    """End the communication, if there was any."""
    if _meet.cache_info().currsize:
        from torch import distributed

        distributed.destroy_process_group()
        _meet.cache_clear()


def add_up(numbers: "Tensor") -> None:
    """Replace a tensor by the sum of all ranks' tensors; every rank gets the same bits."""
    if size() > 1:
        from torch import distributed

        _meet()
        distributed.all_reduce(numbers)


def is_any(here: bool) -> bool:
    """Tell whether something is true on any rank."""
    if size() == 1:
        return here
    import torch

    count = torch.tensor(int(here))
    add_up(count)
    return bool(count)


def wait() -> None:
    """Wait until all ranks are here."""
    is_any(here=False)


def first(work: Callable[[], Result]) -> Result:
    """Do some work on the first rank alone, and return its result, which must not be on a GPU, on all of them.

    The first rank does not wait for the others before it begins.

    Raises:
        Exception: on all ranks, what the work raises.
    """
    if size() == 1:
        return work()
    from torch import distributed

    _meet()
    outcome: list[Any] = [None, None]
    if rank() == 0:
        token = _is_alone.set(True)
        try:
            outcome[0] = work()
        except Exception as raised:  # The other ranks would wait for the result.
            outcome[1] = raised
        finally:
            _is_alone.reset(token)
    distributed.broadcast_object_list(outcome, src=0)
    result, error = outcome
    if error is not None:
        raise error
    done: Result = result
    return done


def share(items: Sequence[Item], work: Callable[[Item], Result]) -> Iterator[Result]:
    """Do some work on every item, on rank i on the items i, i + W and so on of W ranks; yield all results on all ranks.

    Each item is worked on exactly once, and the results come in the order of the items.
    """
    for start in range(0, len(items), size()):
        here = items[start + rank() : start + rank() + 1]
        yield from _gather([work(item) for item in here])


def _gather(results: list[Result]) -> list[Result]:
    """Put all ranks' results into one list, with the tensors of a GPU on this rank's."""
    if size() == 1:
        return results
    import torch
    from torch import distributed

    _meet()
    # These bytes never reach a disk. Tensors of another rank's GPU have to be read to this rank's.
    buffer = BytesIO()
    torch.save(results, buffer)  # noqa: TID251
    gathered = [b""] * size()
    distributed.all_gather_object(gathered, buffer.getvalue())
    here = {f"cuda:{number}": f"cuda:{local_rank()}" for number in range(torch.cuda.device_count())}
    parts = [torch.load(BytesIO(each), map_location=here, weights_only=False) for each in gathered]  # noqa: TID251
    return [result for part in parts for result in part]
