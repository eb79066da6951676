"""Ctrl-C and SIGTERM: a stop at once, or at the next point where nothing is lost."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STDERR = 2


def catch_signals() -> list[int]:
    """Make SIGTERM stop the program as Ctrl-C does; the list receives the signal that did."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    _listen(stop)
    return received


@contextmanager
def delayed_stop() -> Iterator[Callable[[], bool]]:
    """Hold a stop back until the block ends; what this yields says whether one has come.

    A second signal leaves at once. Where signals do not arrive, in other threads than the main one, nothing changes.
    """
    received: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        received.append(number)
        # Not through print, which may be at work just now.
        with suppress(OSError):
            os.write(STDERR, b"\nstopping after this step; once more to leave at once\n")

    is_main = threading.current_thread() is threading.main_thread()
    before = _listen(hold) if is_main else {}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


def _listen(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Call a handler at the first signal; the second leaves at once. What is ignored stays so, as under `nohup`.

    Returns:
        The handlers before.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = {number: each for number, each in before.items() if each not in (signal.SIG_IGN, None)}

    def first(number: int, frame: FrameType | None) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_DFL)
        handler(number, frame)

    for number in heard:
        signal.signal(number, first)
    return heard
