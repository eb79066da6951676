"""Watch every change that this process makes to the disk, and stop it at one of them as a kill would."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from ccot_cli.workspace.workspace import Workspace

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}
_watchers: list[Callable[[], None]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    is_change = event in CHANGES or (event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)))
    if is_change and _watchers:
        _watchers[-1]()


sys.addaudithook(_audit)


class Killed(BaseException):
    """Raised in place of a change to the disk."""


@contextmanager
def before_every_change(watcher: Callable[[], None]) -> Iterator[None]:
    """Call `watcher` before every file or folder that a block makes, opens to write, moves or removes."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.pop()


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do some work up to its n-th change to the disk, from 1; return whether it was stopped there.

    After that, it changes nothing any more, not even in `finally`.
    """
    left = number

    def watch() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Killed

    with before_every_change(watch), suppress(Killed):
        work()
    return left <= 0


def every_kill(work: Callable[[], object], fresh: Callable[[], object]) -> Iterator[int]:
    """Kill some work at its first change, its second and so on; yield the number after each kill.

    Args:
        fresh: Called before each attempt.
    """
    for number in count(1):
        fresh()
        if not killed_at(number, work):
            return
        yield number


def restoring(workspace: Workspace) -> Callable[[], None]:
    """Return a function that makes the workspace as it is now."""
    kept = workspace.root.with_name("kept")
    shutil.copytree(workspace.root, kept)

    def restore() -> None:
        shutil.rmtree(workspace.root)
        shutil.copytree(kept, workspace.root)

    return restore
