"""Errors for people: what is wrong, what to do next, and the exit code.

CcotError            1   internal
├── UsageError       2   an argument or a setting is wrong
├── MissingError     3   an earlier stage has not run
├── CorruptError     4   a file is damaged or belongs to something else
├── ResourceError    5   not enough disk or memory, or something out of reach
├── BusyError        6   another process works on this workspace, or a server has no room
└── DivergedError    7   training reached numbers that are not finite, or a loss that explodes
"""

from pathlib import Path


class CcotError(Exception):
    """Base class; the command line shows it as two lines, `error:` and `fix:`."""

    exit_code = 1

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class UsageError(CcotError):
    exit_code = 2


class MissingError(CcotError):
    exit_code = 3


class CorruptError(CcotError):
    exit_code = 4


class ResourceError(CcotError):
    exit_code = 5


class BusyError(CcotError):
    exit_code = 6


class DivergedError(CcotError):
    exit_code = 7


def retrain_hint(folder: Path) -> str:
    """Say how to mend a damaged method: its folder must go, because a stage trusts files that have the right sizes."""
    return f"remove {folder} and train it again"
