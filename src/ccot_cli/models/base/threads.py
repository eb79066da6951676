"""Choose how many threads the CPU computes with.

The threads of one operation wait for each other. If another process keeps a core busy, two threads can take longer
than one.
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

VARIABLE = "OMP_NUM_THREADS"
"""Who has set this variable has chosen the number of threads."""


def use_threads(asked: int | None) -> None:
    """Compute with this many threads.

    Args:
        asked: None takes as many as other processes leave cores free.
    """
    if asked is None:
        leave_busy_cores()
    else:
        torch.set_num_threads(asked)


@cache
def leave_busy_cores() -> None:
    """Use the free cores only. A process chooses once: later its own work would count as that of others."""
    torch.set_num_threads(free_threads())


def free_threads() -> int:
    """Return how many threads find a free core: at least one, and at most the number that torch has chosen."""
    most = torch.get_num_threads()
    if os.environ.get(VARIABLE):
        return most
    # The load is that of the whole machine, so it is compared with all cores, not with those of this process alone.
    return max(1, min(most, (os.cpu_count() or most) - busy_cores()))


def busy_cores() -> int:
    """Return how many cores other processes keep busy.

    These processes ran during the last minute and still run. The average load alone would count what has just ended,
    such as the command before this one.
    """
    try:
        load = os.getloadavg()[0]
    except OSError:
        return 0
    running = num_running()
    return round(load if running is None else min(load, running))


def num_running() -> int | None:
    """Return how many other threads run or wait for a core; None if the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return max(0, int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1)
    return None
