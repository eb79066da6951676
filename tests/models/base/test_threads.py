"""The CPU's threads are those that were asked for, or as many as other processes leave cores free."""

import os
from collections.abc import Iterator

import pytest
import torch

from ccot_cli.config import ModelConfig
from ccot_cli.models.base import threads
from ccot_cli.models.base.theta import load_theta


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has chosen nothing yet, on four cores of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    threads.leave_busy_cores.cache_clear()
    yield
    torch.set_num_threads(before)
    threads.leave_busy_cores.cache_clear()


def be_busy(monkeypatch: pytest.MonkeyPatch, last_minute: float, now: int) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (last_minute, 0.0, 0.0))
    monkeypatch.setattr(threads, "num_running", lambda: now)


@pytest.mark.parametrize(
    ("last_minute", "now", "left"),
    [
        (0.0, 0, 4),
        (1.4, 3, 3),
        (2.6, 3, 1),
        (9.0, 9, 1),
        # What ran until a moment ago, such as the command before, takes no core any more.
        (4.0, 0, 4),
        (0.1, 7, 4),
    ],
)
def test_threads_are_the_cores_that_others_leave_free(
    monkeypatch: pytest.MonkeyPatch, last_minute: float, now: int, left: int
) -> None:
    be_busy(monkeypatch, last_minute, now)
    load_theta(ModelConfig())
    assert torch.get_num_threads() == left


def test_a_process_that_may_use_few_cores_of_a_large_machine_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    be_busy(monkeypatch, 30.0, 30)
    load_theta(ModelConfig())
    assert torch.get_num_threads() == 4


def test_its_own_work_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    be_busy(monkeypatch, 0.0, 0)
    load_theta(ModelConfig())
    be_busy(monkeypatch, 4.0, 4)
    load_theta(ModelConfig())
    assert torch.get_num_threads() == 4


def test_what_was_asked_for_counts_more_than_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    be_busy(monkeypatch, 9.0, 9)
    load_theta(ModelConfig(threads=3))
    assert torch.get_num_threads() == 3


def test_the_environments_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    be_busy(monkeypatch, 9.0, 9)
    load_theta(ModelConfig())
    assert torch.get_num_threads() == 4


def test_this_process_does_not_count_itself() -> None:
    running = threads.num_running()
    assert running is None or running >= 0
