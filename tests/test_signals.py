"""Ctrl-C and SIGTERM in the middle of work."""

import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from ccot_cli.signals import catch_signals, delayed_stop


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Whoever runs the tests in the background has them ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_stop_comes_through_after_the_block_and_as_itself() -> None:
    stops = catch_signals()
    told: list[object] = []

    def work() -> None:
        with delayed_stop() as is_stopped:
            told.append(is_stopped())
            signal.raise_signal(signal.SIGTERM)
            told.extend([is_stopped(), [*stops]])

    with pytest.raises(KeyboardInterrupt):
        work()
    assert told == [False, True, []]
    assert stops == [signal.SIGTERM]


def test_a_second_signal_leaves_at_once() -> None:
    catch_signals()
    handlers: set[object] = set()

    def work() -> None:
        with delayed_stop():
            signal.raise_signal(signal.SIGINT)
            handlers.update(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert handlers == {signal.SIG_DFL}


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stops = catch_signals()
    with delayed_stop() as is_stopped:
        signal.raise_signal(signal.SIGINT)
        assert not is_stopped()
    assert not stops
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_error_in_the_block_is_the_one_that_is_raised() -> None:
    catch_signals()

    def work() -> None:
        with delayed_stop():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        work()


def test_other_threads_are_left_alone() -> None:
    seen: list[bool] = []

    def work() -> None:
        with delayed_stop() as is_stopped:
            seen.append(is_stopped())

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_with_stderr_closed_waits_for_the_block_too(monkeypatch: pytest.MonkeyPatch) -> None:
    catch_signals()
    monkeypatch.setattr(sys, "stderr", None)
    told: list[bool] = []

    def work() -> None:
        with delayed_stop() as is_stopped:
            signal.raise_signal(signal.SIGINT)
            told.append(is_stopped())

    with pytest.raises(KeyboardInterrupt):
        work()
    assert told == [True]
