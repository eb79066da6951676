"""`--track`: send the figures of training, as it goes on, to a program that shows them."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ccot_cli.cli.console import TerminalProgress
from ccot_cli.cli.options import HOW
from ccot_cli.errors import UsageError
from ccot_cli.names import TrackerName

if TYPE_CHECKING:
    from ccot_cli.workspace.workspace import Workspace

PROJECT = "ccot"
"""Project of the runs, unless $WANDB_PROJECT or $TRACKIO_PROJECT names another one."""

TrackOption = Annotated[
    TrackerName | None,
    typer.Option(
        "--track",
        help="Show loss, rate and validation of every step there too, while it trains. TensorBoard reads"
        " WORKSPACE/tensorboard.",
        rich_help_panel=HOW,
    ),
]


class Run(NamedTuple):
    """What a tracker is told when a run begins or goes on."""

    workspace: Path
    name: str
    """Such as `train-psi-r0.10`."""
    request: str
    """The same for a run that is resumed."""
    settings: Mapping[str, Any]
    first_step: int


class Tracker(NamedTuple):
    """An open run."""

    log: Callable[[int, dict[str, float]], object]
    """(step, figures) -> anything."""
    close: Callable[[], object]


def _tensorboard(run: Run) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    # Steps that an interrupted run took after its last checkpoint are taken again: their figures are dropped.
    folder = run.workspace / "tensorboard" / run.name
    writer = SummaryWriter(str(folder), purge_step=run.first_step)
    text = "\n".join(f"    {name}: {value}" for name, value in run.settings.items())
    writer.add_text("settings", text, run.first_step)

    def log(step: int, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return Tracker(log, writer.close)


def _wandb(run: Run) -> Tracker:
    import wandb

    opened = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=run.request[:16],
        name=f"{run.workspace.name} {run.name}",
        config=dict(run.settings),
        dir=str(run.workspace),
        resume="allow",
    )
    return Tracker(lambda step, figures: opened.log(figures, step=step), opened.finish)


def _trackio(run: Run) -> Tracker:
    import trackio

    trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", PROJECT),
        name=f"{run.workspace.name} {run.name} {run.request[:8]}",
        config=dict(run.settings),
        resume="allow",
    )
    return Tracker(lambda step, figures: trackio.log(figures, step=step), trackio.finish)


_TRACKERS: dict[TrackerName, Callable[[Run], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
}


class TrackingProgress(TerminalProgress):
    """Draws like its base class, and sends what is measured to a tracker. A run is opened with its first figures."""

    def __init__(self, tracker: TrackerName, workspace: Path) -> None:
        super().__init__()
        self._open, self._workspace = _TRACKERS[tracker], workspace
        self._begin: Callable[[int], Tracker] | None = None
        self._tracker: Tracker | None = None

    @contextmanager
    def tracking(self, run: str, request: str, settings: Mapping[str, Any]) -> Iterator[None]:
        self._begin = lambda first_step: self._open(Run(self._workspace, run, request, settings, first_step))
        try:
            yield
        finally:
            self._begin = None
            if self._tracker is not None:
                with redirect_stdout(sys.stderr):
                    self._tracker.close()
                self._tracker = None

    def measure(self, step: int, figures: Mapping[str, Any]) -> None:
        if self._begin is None:
            return
        if self._tracker is None:
            # trackio says on stdout what it does; results alone belong there.
            with redirect_stdout(sys.stderr):
                self._tracker = self._begin(step)
        numbers = {name: value for name, value in figures.items() if isinstance(value, int | float) and name != "step"}
        self._tracker.log(step, {name: float(value) for name, value in numbers.items() if isfinite(value)})


def progress_for(tracker: TrackerName | None, workspace: "Workspace") -> TerminalProgress:
    """Return the progress of a command that trains.

    Raises:
        UsageError: if the tracker's package is missing.
    """
    if tracker is None:
        return TerminalProgress()
    if find_spec(tracker) is None:
        raise UsageError(f"--track {tracker} needs the package {tracker}", fix=f"pip install 'ccot-cli[{tracker}]'")
    return TrackingProgress(tracker, workspace.root)
