"""What the loop logs and shows of a training, and which weights it ends with."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from math import inf, nan
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import MakeTheta, shaken
from torch import Tensor
from trainers import joint_training, phi_examples, psi_examples, psi_training

from ccot_cli.errors import DivergedError
from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training import loop
from ccot_cli.models.training.checkpoints import load_checkpoint
from ccot_cli.models.training.loop import Judgement, Training, read_lines, train, write_lines
from ccot_cli.progress import Progress


class Watching(Progress):
    """Remembers the figures of every step."""

    def __init__(self) -> None:
        self.figures: list[dict[str, str]] = []

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        yield lambda count=1, **figures: self.figures.append(figures)


class Halting(Progress):
    """Behaves like a kill in a step after so many of them."""

    def __init__(self, training: Training, step: int) -> None:
        self.training, self.step = training, step

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        def advance(count: int = 1, **figures: str) -> None:
            if self.training.optimiser.step_count > self.step:
                raise KeyboardInterrupt

        yield advance


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


JUDGEMENTS = [(0.5, 1.0), (0.7, 2.0), (0.7, 1.9), (0.7, 1.9), (0.6, 0.1), (0.0, 0.0)]
"""After each of six epochs; the third one is the best: most are right, and the loss is lower than with as many."""


def judging(training: Training, steps_between: int) -> Callable[[], Judgement]:
    """Return these judgements, by the step at which they are asked for."""
    return lambda: Judgement(*JUDGEMENTS[training.optimiser.step_count // steps_between - 1])


def test_the_best_judged_weights_are_kept(make_theta: MakeTheta, tmp_path: Path) -> None:
    expected, training = (
        psi_training(shaken(theta, PHI), psi_examples(theta)) for theta in (make_theta("llama"), make_theta("llama"))
    )
    progress = Watching()
    list(islice(expected.steps(), 9))
    log = run(training, tmp_path, progress, judge=judging(training, 3))
    assert [(each["validation_right"], each["validation_loss"]) for each in log[2::3]] == JUDGEMENTS
    assert progress.figures[8]["validation"] == "0.700"
    assert all(
        torch.equal(each, expected.optimiser.parameters[name]) for name, each in training.optimiser.parameters.items()
    )


def test_weights_kept_before_an_interruption_come_back(make_theta: MakeTheta, tmp_path: Path) -> None:
    states = []
    for halts in ([18], [10, 13, 18]):
        folder = tmp_path / str(len(halts))
        folder.mkdir()
        for halt in halts:
            theta = make_theta("llama")
            adapters = shaken(theta, PHI)
            training = psi_training(adapters, psi_examples(theta))
            with suppress(KeyboardInterrupt):
                run(training, folder, Halting(training, halt), judge=judging(training, 3))
        states.append({**adapters.state(PSI), **adapters.state(PHI)})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert (tmp_path / "1" / "log.jsonl").read_bytes() == (tmp_path / "3" / "log.jsonl").read_bytes()


def exploding(training: Training, losses: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these steps, from 1, have other losses."""
    step_on = training.optimiser.step_on

    def changed(*arguments: Any) -> float:
        loss = step_on(*arguments)
        return losses.get(training.optimiser.step_count, loss)

    monkeypatch.setattr(training.optimiser, "step_on", changed)


def test_a_loss_that_explodes_stops_training_and_the_checkpoint_before_it_is_kept(
    llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = psi_training(shaken(llama, PHI), psi_examples(llama), epochs=6)
    exploding(training, dict.fromkeys(range(6, 18), 1e5), monkeypatch)
    with pytest.raises(DivergedError, match=r"5 steps in a row had a loss that has exploded, to 1e\+05") as caught:
        run(training, tmp_path, Progress())
    assert (caught.value.exit_code, training.optimiser.step_count) == (7, 10)
    assert "learning_rate" in caught.value.fix
    assert int(load_checkpoint(tmp_path / "checkpoint.safetensors")["step"]) == 4


def test_a_loss_that_comes_back_is_no_divergence(llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = psi_training(shaken(llama, PHI), psi_examples(llama), epochs=6)
    exploding(training, {1: nan, **dict.fromkeys([*range(3, 7), *range(8, 12)], 1e5), 13: 50.0}, monkeypatch)
    assert len(run(training, tmp_path, Progress())) == 18


def test_a_loss_that_explodes_in_the_end_is_divergence(
    llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = psi_training(shaken(llama, PHI), psi_examples(llama), epochs=6)
    exploding(training, {18: 1e5}, monkeypatch)
    with pytest.raises(DivergedError, match="the last step had a loss that has exploded"):
        run(training, tmp_path, Progress())


def test_a_long_epoch_is_judged_within(llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LONGEST_UNJUDGED", 2)
    training = psi_training(shaken(llama, PHI), psi_examples(llama), epochs=3)
    log = run(training, tmp_path, Progress(), judge=lambda: Judgement(0.5, 0.5))
    assert [line["step"] for line in log if "validation_loss" in line] == [2, 3, 5, 6, 8, 9]


def test_the_tokens_of_phis_steps_are_those_of_queries_and_contemplation(llama: Theta, tmp_path: Path) -> None:
    examples = phi_examples(llama, 8)
    training = joint_training(shaken(llama), examples, taught_epochs=1, epochs=1)
    counted = [line["tokens"] for line in run(training, tmp_path, Progress())]
    assert sum(counted) == 2 * sum(len(each.query) + len(each.gold_JID) - 1 for each in examples)


def test_a_log_with_numbers_that_were_not_finite_can_be_read_again(tmp_path: Path) -> None:
    write_lines(tmp_path / "log.jsonl", [{"step": 1, "loss": nan, "norms": [inf, 2.0]}, {"step": 2, "loss": 0.5}])
    bad, good = read_lines(tmp_path / "log.jsonl")
    assert bad == {"step": 1, "loss": None, "norms": [None, 2.0]}
    assert good == {"step": 2, "loss": 0.5}


def test_an_epochs_mean_loss_leaves_out_steps_that_were_not_finite(
    llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, means = psi_training(shaken(llama, PHI), psi_examples(llama), epochs=2), list[float]()
    part_loss = training.part_loss

    def failing_once(part: Sequence[int], whole: Sequence[int]) -> Tensor:
        return part_loss(part, whole) * (1 if training.optimiser.step_count else nan)

    def on_epoch(loss: float) -> dict[str, Any]:
        means.append(loss)
        return {}

    monkeypatch.setattr(training, "part_loss", failing_once)
    log = run(training, tmp_path, Progress(), on_epoch=on_epoch)
    assert log[0]["loss"] is None
    assert means[0] == pytest.approx(fmean(line["loss"] for line in log[1:3]))


def test_a_judgement_that_is_not_finite_is_worse_than_any_other(make_theta: MakeTheta, tmp_path: Path) -> None:
    losses, kept = [nan, inf, 0.5, 0.6, nan, inf], []
    for halts in ([18], [8, 18]):
        folder = tmp_path / str(len(halts))
        folder.mkdir()
        for halt in halts:
            theta = make_theta("llama")
            training = psi_training(shaken(theta, PHI), psi_examples(theta))
            paths = {"log": folder / "log.jsonl", "checkpoint": folder / "checkpoint.safetensors"}

            def judge(training: Training = training) -> Judgement:
                return Judgement(0.5, losses[training.optimiser.step_count // 3 - 1])

            with suppress(KeyboardInterrupt):
                halting = Halting(training, halt)
                trained = train(training, **paths, label="", checkpoint_steps=4, progress=halting, judge=judge)
        kept.append(trained.kept_step)
    assert kept == [9, 9]
