"""Take the steps of a training, with a log and checkpoints from which an interrupted run ends in the same bits."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save_file

from ccot_cli.files import commit
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.progress import Progress
from ccot_cli.signals import delayed_stop
from ccot_cli.workspace.build import Build

LOG_FILE = "log.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"


class Training(Protocol):
    """Something that can be trained step by step, from wherever its optimiser stands."""

    optimiser: Optimiser
    steps_per_epoch: int

    def steps(self) -> Iterator[float]:
        """Take the steps that are left, yielding each one's loss."""
        ...


def train(
    training: Training,
    build: Build,
    *,
    label: str,
    checkpoint_steps: int,
    progress: Progress,
    figures: Callable[[float], dict[str, str]] = lambda loss: {"loss": f"{loss:.4f}"},
    on_epoch: Callable[[float], dict[str, Any]] = lambda loss: {},
) -> float:
    """Take all steps that are left. A stop waits for the end of a step, and loses none.

    Args:
        figures: What is shown of a step, from its loss.
        on_epoch: Called with an epoch's mean loss; what it returns is logged.

    Returns:
        Mean loss of the last epoch.
    """
    checkpoint, log = build.scratch(CHECKPOINT_FILE), build.folder / LOG_FILE
    optimiser, epoch = training.optimiser, training.steps_per_epoch
    lines: list[dict[str, Any]] = []
    if checkpoint.exists():
        optimiser.resume(checkpoint)
        lines = [json.loads(line) for line in log.read_text().splitlines()][: optimiser.step_count]
        progress.say(f"resumed after step {optimiser.step_count:,}")
    with (
        progress.task(label, total=optimiser.num_steps, unit="steps", done=optimiser.step_count) as advance,
        delayed_stop() as is_stopped,
    ):
        for loss in training.steps():
            step = optimiser.step_count
            advance(1, **figures(loss))
            lines.append({"step": step, "loss": loss})
            if step % epoch == 0:
                lines[-1].update(on_epoch(_mean_loss(lines[-epoch:])))
            stopped = is_stopped()
            if stopped or step % checkpoint_steps == 0 or step == optimiser.num_steps:
                write_lines(log, lines)
                with commit(checkpoint) as part:
                    save_file(optimiser.state(), part)
            if stopped:
                break
    return _mean_loss(lines[-epoch:])


def _mean_loss(lines: list[dict[str, Any]]) -> float:
    return float(sum(line["loss"] for line in lines) / len(lines))


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write JSON lines, whole or not at all."""
    with commit(path) as part:
        part.write_text("".join(json.dumps(line) + "\n" for line in lines))
