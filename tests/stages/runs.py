"""Runs of the stages on a tiny random model, and what tests see of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import torch
from safetensors.torch import load_file

from ccot_cli.config import Settings
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.theta import load_theta
from ccot_cli.names import BaselineName
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score, train_baseline, train_phi, train_psi
from ccot_cli.stages.problems import read_problems
from ccot_cli.workspace.workspace import Workspace

RATIO = Decimal("0.1")
SMALL = {
    "data.limit": 20,
    "data.validation_limit": 6,
    "precompute.batch_tokens": 600,
    "train_phi.autoregressive_layer": 2,
    "train_phi.lora_rank": 4,
    "train_phi.taught_epochs": 1,
    "train_phi.epochs": 1,
    "train_phi.batch_size": 8,
    "train_psi.lora_rank": 4,
    "train_psi.epochs": 1,
    "train_psi.batch_size": 8,
    "eval.limit": 6,
    "eval.batch_size": 4,
    "decoding.max_chain_tokens": 12,
}


class Stopping(Progress):
    """Behaves like Ctrl-C after a number of steps of one task."""

    def __init__(self, label: str, after: int) -> None:
        self.label, self.left = label, after

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        def advance(count: int = 1, **figures: str) -> None:
            if label.startswith(self.label):
                self.left -= count
                if self.left < 0:
                    raise KeyboardInterrupt

        yield advance


class Told(Progress):
    """Remembers what was said, and which tasks there were."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.labels: list[str] = []
        self.left: dict[str, int] = {}
        """Of each task, what was still to be done when it began."""

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        self.labels.append(label)
        self.left[label] = (total or 0) - done
        yield lambda count=1, **figures: None


@dataclass(frozen=True)
class Run:
    """A workspace and its settings."""

    workspace: Workspace
    settings: Settings

    def precompute(self, progress: Progress | None = None, **changes: object) -> precompute.PrecomputeResult:
        settings = override(self.settings, changes)
        return precompute.run(self.workspace, settings, progress=progress or Progress())

    def score(self, progress: Progress | None = None) -> score.ScoreResult:
        return score.run(self.workspace, self.settings, RATIO, progress=progress or Progress())

    def train_phi(self, progress: Progress | None = None) -> train_phi.TrainPhiResult:
        return train_phi.run(self.workspace, self.settings, RATIO, progress=progress or Progress())

    def train_psi(self, progress: Progress | None = None) -> train_psi.TrainPsiResult:
        return train_psi.run(self.workspace, self.settings, RATIO, progress=progress or Progress())

    def train_baseline(
        self, name: BaselineName, progress: Progress | None = None
    ) -> train_baseline.TrainBaselineResult:
        return train_baseline.run(self.workspace, self.settings, name, RATIO, progress=progress or Progress())


MakeRun = Callable[..., Run]


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.relative_to(folder)}:{name}": tensor
        for path in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def flip_a_bit(path: Path) -> None:
    """Change a bit in the middle of a file; its size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 64
    path.write_bytes(content)


def same_tensors(one: Path, other: Path) -> bool:
    first, second = tensors_of(one), tensors_of(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def stored_problems(run: Run, *, is_validation: bool | None = None) -> list[EncodedProblem]:
    """The problems that `precompute` has kept, all of them or those of one split."""
    encoder = load_theta(run.settings.model).encoder
    stored = read_problems(run.workspace.require("precompute"))
    return encoder.problems([each.problem for each in stored if is_validation in (None, each.is_validation)])
