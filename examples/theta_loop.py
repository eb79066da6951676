"""Train a base model phase by phase, with checkpoints from which the same command goes on.

Dimensions: B batch, T tokens of query and solution.
"""

import json
import time
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ccot_cli.cli.console import TerminalProgress
from ccot_cli.files import commit
from ccot_cli.models.training.loop import write_lines

CHECKPOINT_STEPS = 100


class Batches(Protocol):
    """An endless stream of batches."""

    def next(self) -> tuple[Tensor, Tensor]:
        """Return a batch's ids, and the weights of their losses: B, T each."""
        ...


class Training:
    """Parameters by name, in groups with an optimiser each, and the number of steps that were taken."""

    named: list[dict[str, nn.Parameter]]
    optimisers: list[torch.optim.Optimizer]
    step: int

    def train_on(self, ids_BT: Tensor, weight_BT: Tensor) -> tuple[float, float]:
        """Take one step; return its loss and the accuracy of the predicted tokens."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Write parameters, moments and the number of steps."""
        tensors = {"step": torch.tensor(self.step)}
        for named, optimiser in zip(self.named, self.optimisers, strict=True):
            for name, parameter in named.items():
                tensors[f"parameter/{name}"] = parameter.detach()
                for key, value in optimiser.state[parameter].items():
                    tensors[f"{key}/{name}"] = torch.as_tensor(value).contiguous()
        with commit(path) as part:
            save_file(tensors, part)

    @torch.no_grad()
    def resume(self, path: Path) -> None:
        """Read what `save` wrote."""
        tensors = load_file(path)
        self.step = int(tensors.pop("step"))
        for named, optimiser in zip(self.named, self.optimisers, strict=True):
            for name, parameter in named.items():
                parameter.copy_(tensors[f"parameter/{name}"])
                keys = [key for key in tensors if key.endswith(f"/{name}") and not key.startswith("parameter/")]
                optimiser.state[parameter] = {key.split("/")[0]: tensors[key] for key in keys}


def checkpoint_of(folder: Path, number: int) -> Path:
    """Return where the checkpoint of a phase is."""
    return folder / f"theta-{number}.safetensors"


def run_phase(training: Training, batches: Batches, *, num_steps: int, folder: Path, number: int) -> float:
    """Train a phase to its end, and return the seconds that it took.

    Args:
        training: Resumed from the phase's last checkpoint if there is one.
        batches: From that step on.
        folder: Where checkpoints and the log go.
        number: The phase's, from 0.
    """
    log = folder / f"theta-{number}.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    lines = [line for line in lines if line["step"] <= training.step]
    seconds_before, started = (lines[-1]["seconds"] if lines else 0.0), time.perf_counter()
    with TerminalProgress().task(f"θ, phase {number + 1}", total=num_steps, unit="steps") as advance:
        advance(training.step)
        while training.step < num_steps:
            loss, accuracy = training.train_on(*batches.next())
            advance(1, loss=f"{loss:.4f}", right=f"{accuracy:.4f}")
            if training.step % CHECKPOINT_STEPS == 0 or training.step == num_steps:
                seconds = seconds_before + time.perf_counter() - started
                lines.append({"step": training.step, "loss": loss, "right": accuracy, "seconds": seconds})
                training.save(checkpoint_of(folder, number))
                write_lines(log, lines)
    return float(lines[-1]["seconds"])
