"""`--track`: figures of training, sent while it goes on."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ccot_cli.cli.tracking import TrackingProgress, progress_for
from ccot_cli.errors import UsageError
from ccot_cli.workspace.workspace import Workspace

FIGURES = {"step": 3, "loss": 0.5, "rate": 1e-3, "norm": float("nan"), "losses": [1.0], "best": None, "is_best": True}
SENT = {"loss": 0.5, "rate": 1e-3, "is_best": 1.0}
SETTINGS = {"train_psi.epochs": 2}


def measure(progress: TrackingProgress, *steps: int) -> None:
    """Report figures of these steps of one run."""
    with progress.tracking("train-psi-r0.10", "0123456789abcdef01", SETTINGS):
        for step in steps:
            progress.measure(step, {**FIGURES, "step": step})


class Recorder(ModuleType):
    """Stands in for a tracker's package and writes down how it is called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[object, ...], dict[str, Any]]] = []

    def _record(self, name: str) -> Callable[..., object]:
        def call(*args: object, **options: Any) -> object:
            self.calls.append((name, args, options))
            return SimpleNamespace(log=self._record("log"), finish=self._record("finish"))

        return call

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._record(name)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_run_is_opened_with_its_first_figures_and_closed_with_its_stage(
    name: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = Recorder(name)
    monkeypatch.setitem(sys.modules, name, package)
    progress = TrackingProgress(name, tmp_path / "my-run")
    with progress.tracking("score-r0.10", "ab", SETTINGS):
        pass  # a stage without steps
    progress.measure(1, FIGURES)  # outside any stage, as on another rank than the first
    assert package.calls == []
    measure(progress, 3, 4)
    opened, one, two, closed = package.calls
    assert opened[0] == "init"
    assert opened[2].items() >= {"config": SETTINGS, "project": "ccot", "resume": "allow"}.items()
    assert opened[2]["name"].startswith("my-run train-psi-r0.10")
    assert one == ("log", (SENT,), {"step": 3})
    assert two == ("log", (SENT,), {"step": 4})
    assert closed[0] == "finish"
    # A resumed run is the same one.
    measure(progress, 5)
    assert package.calls[4] == opened


def test_tensorboard_shows_every_step_once_after_a_run_was_resumed(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    measure(TrackingProgress("tensorboard", tmp_path), 1, 2, 3)
    measure(TrackingProgress("tensorboard", tmp_path), 2, 3, 4)  # step 3 was lost after the checkpoint of step 1
    events = loading.EventAccumulator(str(tmp_path / "tensorboard" / "train-psi-r0.10"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(SENT)
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(step, 0.5) for step in (1, 2, 3, 4)]


def test_a_missing_package_is_named_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "run", "embedded", {})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="--track wandb needs the package wandb") as error:
        progress_for("wandb", workspace)
    assert error.value.fix == "pip install 'ccot-cli[wandb]'"
    assert not isinstance(progress_for(None, workspace), TrackingProgress)
