"""The lock of a workspace: one process writes to it at a time, and a second one is told which process that is."""

import json
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ccot_cli.errors import BusyError, UsageError
from ccot_cli.files import is_full, no_room, write_json
from ccot_cli.workspace.artifact import now

LOCK_FILE = ".lock"
HOLDER_FILE = ".lock.json"


@contextmanager
def lock(root: Path, command: tuple[str, ...]) -> Iterator[None]:
    """Hold the workspace's lock, and write down which command holds it.

    Raises:
        BusyError: if another process holds it.
        UsageError: if the workspace cannot be written to.
        ResourceError: if the disk is full.
    """
    # Imported here because it imports asyncio, and most commands take no lock.
    from filelock import FileLock, Timeout

    file_lock, holder = FileLock(root / LOCK_FILE, timeout=0), root / HOLDER_FILE
    with ExitStack() as held:
        try:
            file_lock.acquire()
            held.callback(file_lock.release)
            write_json(holder, _this_process(command))
        except Timeout:
            raise _busy(root) from None
        except OSError as error:
            if is_full(error):
                raise no_room(root / LOCK_FILE, 0, error) from None
            raise UsageError(f"cannot write to {root}: {error.strerror}", fix="work on a copy of it") from None
        held.callback(holder.unlink, missing_ok=True)  # Before the lock is freed.
        yield


def describe_builder(root: Path, stage: str) -> str:
    """Describe the running process that is making artifacts of a stage; return "" if none is known."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        holder = json.loads((root / HOLDER_FILE).read_bytes())
        with suppress(PermissionError):  # It is another user's.
            os.kill(holder["pid"], 0)  # Raises if the process has ended.
        is_here = holder["host"] == socket.gethostname()
        if is_here and {stage, "sweep", "demo"} & set(shlex.split(holder["command"])):
            return f"by process {holder['pid']} since {holder['since']}"
    return ""


def _busy(root: Path) -> BusyError:
    try:
        who = "process {pid} on {host} since {since}: {command}".format_map(
            json.loads((root / HOLDER_FILE).read_bytes())
        )
    except (OSError, ValueError, KeyError):
        who = "another process"  # It has taken the lock, but not written the holder file yet.
    return BusyError(f"{root.resolve().name} is in use by {who}", fix="wait until it has finished, or stop it")


def _this_process(command: tuple[str, ...]) -> dict[str, Any]:
    shown = shlex.join(["ccot", *command])
    return {"pid": os.getpid(), "host": socket.gethostname(), "command": shown, "since": now().isoformat()}
