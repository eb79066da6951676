"""What the loop logs and shows of a training."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import shaken
from trainers import joint_training, phi_examples, psi_examples, psi_training

from ccot_cli.models.base.adapters import PHI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training import loop
from ccot_cli.models.training.loop import Training, train
from ccot_cli.progress import Progress


class Watching(Progress):
    """Remembers the figures of every step."""

    def __init__(self) -> None:
        self.figures: list[dict[str, str]] = []

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        yield lambda count=1, **figures: self.figures.append(figures)


def run(training: Training, folder: Path, progress: Progress, **arguments: Any) -> list[dict[str, Any]]:
    """Take all steps; return the log."""
    paths = {"log": folder / "log.jsonl", "checkpoint": folder / "checkpoint.safetensors"}
    train(training, **paths, label="test", checkpoint_steps=4, progress=progress, **arguments)
    return [json.loads(line) for line in paths["log"].read_text().splitlines()]


def test_the_log_counts_tokens_and_the_progress_line_tells_their_pace(
    llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, progress = psi_examples(llama), Watching()
    training = psi_training(shaken(llama, PHI), examples, epochs=2)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=count(0, 2).__next__))  # every step takes 2 s
    counted = [line["tokens"] for line in run(training, tmp_path, progress)]
    every = sum(len(each.query) + each.num_tokens + len(each.start) + len(each.answer) for each in examples)
    assert len(counted) == 6
    assert sum(counted[:3]) == sum(counted[3:]) == every
    assert progress.figures[0]["tokens/s"] == f"{counted[0] / 2:,.0f}"
    assert progress.figures[-1]["tokens/s"] == f"{every / 6:,.0f}"


def test_the_tokens_of_phis_steps_are_those_of_queries_and_contemplation(llama: Theta, tmp_path: Path) -> None:
    examples = phi_examples(llama, 8)
    training = joint_training(shaken(llama), examples, taught_epochs=1, epochs=1)
    counted = [line["tokens"] for line in run(training, tmp_path, Progress())]
    assert sum(counted) == 2 * sum(len(each.query) + len(each.gold_JID) - 1 for each in examples)
