"""Stop on Ctrl-C and SIGTERM: at once, or at the next point where no work is lost."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def catch_signals() -> list[int]:
    """Make SIGTERM raise KeyboardInterrupt, as Ctrl-C does.

    Returns:
        A list that is empty now and receives the number of the signal that stops the program.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    _listen(stop)
    return received


@contextmanager
def delayed_stop(is_any: Callable[[bool], bool] = bool) -> Iterator[Callable[[], bool]]:
    """Delay a stop until the block ends; yield a function that tells whether one was asked for.

    Args:
        is_any: Tells, from whether this process was asked, whether any of those that work together was; all then stop.

    A second signal ends the program at once. In other threads than the main one nothing changes, because Python
    delivers signals to the main thread only.
    """
    received: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        received.append(number)
        # The signal may have interrupted a print, which must not be entered twice; stderr may be closed, or None.
        with suppress(OSError, AttributeError):
            os.write(sys.stderr.fileno(), b"\nstopping after this step; press Ctrl-C again to stop at once\n")

    def is_asked() -> bool:
        if is_any(bool(received)) and not received:
            received.append(signal.SIGTERM)
        return bool(received)

    is_main = threading.current_thread() is threading.main_thread()
    previous = _listen(hold) if is_main else {}
    try:
        yield is_asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


def _listen(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Call a handler on the first signal; a second one ends the program at once.

    Ignored signals stay ignored, because `nohup` relies on it.

    Returns:
        The previous handlers of the signals that are listened to.
    """
    current = {number: signal.getsignal(number) for number in SIGNALS}
    previous = {number: old for number, old in current.items() if old not in (signal.SIG_IGN, None)}

    def on_first(number: int, frame: FrameType | None) -> None:
        for each in previous:
            signal.signal(each, signal.SIG_DFL)
        handler(number, frame)

    for number in previous:
        signal.signal(number, on_first)
    return previous
