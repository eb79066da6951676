"""Curves of all trainings in a workspace, finished or not, as a picture: `ccot status --plot`."""

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from ccot_cli.cli.plots import pyplot, save
from ccot_cli.errors import UsageError
from ccot_cli.names import TRAIN_BASELINE, TRAIN_DECODER, TRAIN_PHI, TRAIN_PSI

if TYPE_CHECKING:
    from ccot_cli.workspace.workspace import Workspace

TRAININGS = (TRAIN_PHI, TRAIN_PSI, TRAIN_DECODER, TRAIN_BASELINE)
NUM_COLUMNS = 3
SMOOTHED = 50
"""Each loss is drawn as a mean over the steps before it, a fiftieth of all."""
MOST_POINTS = 500
"""Of a line."""


class Curve(NamedTuple):
    """Points of one line."""

    x: list[float]
    y: list[float]


class Panel(NamedTuple):
    """What is drawn of one training."""

    title: str
    x_label: str
    losses: dict[str, Curve]
    """By name: training and validation loss, on a logarithmic scale."""
    shares: dict[str, Curve]
    """By name: proportions from 0 to 1."""


def draw_curves(workspace: "Workspace", path: Path) -> int:
    """Draw loss and validation of every training that has taken a step.

    Returns:
        The number of trainings.

    Raises:
        UsageError: if there is none.
    """
    panels = list(_panels(workspace))
    if not panels:
        raise UsageError("nothing has been trained here yet", fix=workspace.command(TRAIN_PHI))
    plt = pyplot()
    columns = min(NUM_COLUMNS, len(panels))
    rows = ceil(len(panels) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.4 * rows), layout="constrained", squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for panel, axes in zip(panels, grid.flat, strict=False):
        _draw(panel, axes)
    figure.suptitle(f"{workspace.name}: training", fontsize=11)
    save(figure, path)
    return len(panels)


def _draw(panel: Panel, axes: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for number, (name, curve) in enumerate(panel.losses.items()):
        axes.plot(*curve, "-" if number == 0 else "o-", color=f"C{number}", markersize=3, linewidth=1, label=name)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel("loss (log scale)")
    axes.set_title(panel.title, fontsize=10)
    axes.grid(alpha=0.3)
    lines = list(axes.lines)
    if panel.shares:
        beside = axes.twinx()
        for number, (name, curve) in enumerate(panel.shares.items(), start=len(panel.losses)):
            lines += beside.plot(*curve, "s--", color=f"C{number}", markersize=3, linewidth=1, label=name)
        beside.set_ylim(0, 1)
        beside.set_ylabel("proportion")
    axes.legend(lines, [line.get_label() for line in lines], fontsize=7, loc="best", framealpha=0.6)


def _panels(workspace: "Workspace") -> Iterator[Panel]:
    from ccot_cli.models.training.loop import LOG_FILE, read_lines
    from ccot_cli.workspace.build import replacement_folder

    for stage in TRAININGS:
        unfinished = workspace.unfinished(stage)
        for key in sorted({*filter(None, workspace.finished(stage)), *unfinished}):
            folder = workspace.folder(stage, key)
            logs = [each / LOG_FILE for each in (replacement_folder(folder), folder)]
            log = next((each for each in logs if each.is_file()), None)
            if log is not None and (lines := read_lines(log)):
                yield read_panel(f"{stage} {key}{', not finished' if key in unfinished else ''}", lines)


def read_panel(title: str, lines: Sequence[dict[str, Any]]) -> Panel:
    """Take the curves from the lines of a training's log."""
    if "layer" in lines[0]:
        layers = [float(line["layer"]) for line in lines]
        named = {"training": "train_loss", "validation": "validation_loss", "untrained": "untrained_loss"}
        losses = {name: Curve(layers, [line[key] for line in lines]) for name, key in named.items()}
        return Panel(title, "layer of φ", losses, {})
    shares = {
        "numbers read at L": _curve(lines, "generated_read", lambda accuracies: accuracies[1]),
        "right, word for word": _curve(lines, "validation_right"),
    }
    losses = {
        "training": _smooth(_curve(lines, "loss")),
        "validation": _curve(lines, "validation_loss"),
        "validation rollouts": _curve(lines, "losses", fmean),
    }
    return Panel(title, "step", _drawn(losses), _drawn(shares))


def _curve(lines: Sequence[dict[str, Any]], name: str, read: Callable[[Any], float] = float) -> Curve:
    """Take a figure from the lines that have it, unless it holds a null: a number that is not finite."""
    having = [line for line in lines if not _has_null(line.get(name))]
    return Curve([float(line["step"]) for line in having], [read(line[name]) for line in having])


def _has_null(figure: Any) -> bool:
    return None in figure if isinstance(figure, list) else figure is None


def _drawn(curves: dict[str, Curve]) -> dict[str, Curve]:
    return {name: curve for name, curve in curves.items() if curve.x}


def _smooth(curve: Curve) -> Curve:
    """Average over the steps before, and keep as many points as a picture can show."""
    width = max(1, len(curve.y) // SMOOTHED)
    means = [fmean(curve.y[max(0, end - width) : end]) for end in range(1, len(curve.y) + 1)]
    every = max(1, len(means) // MOST_POINTS)
    return Curve(curve.x[::every], means[::every])
