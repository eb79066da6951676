"""Plots: accuracy against seconds per question, as text and as a picture, and the results of a sweep."""

import os
import shlex
from collections.abc import Iterable
from itertools import cycle
from math import floor, log10
from pathlib import Path
from typing import Any

from ccot_cli.cli.tables import subject
from ccot_cli.data.batches import cut
from ccot_cli.errors import UsageError

WIDTH, HEIGHT = 64, 16
FORMATS = (".png", ".svg")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
MARKERS = "os^vDPX*<>hp"


def frontier(result: dict[str, Any]) -> str:
    """Plot accuracy (upwards) against seconds (to the right, logarithmic) as text, with a letter for each method."""
    rows = result["rows"]
    low, high = _range([row["seconds_mean"] for row in rows])
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for number, row in enumerate(rows):
        column = round((log10(row["seconds_mean"]) - low) / (high - low) * (WIDTH - 1))
        line = HEIGHT - 1 - round(row["accuracy"] * (HEIGHT - 1))
        # If two methods meet, the later one moves to the nearest free column.
        free = [place for place in range(WIDTH) if grid[line][place] == " "]
        grid[line][min(free, key=lambda place: (abs(place - column), -place))] = _letter(number)
    lines = ["Exact match against seconds per question (logarithmic)"]
    for number, cells in enumerate(grid):
        accuracy = 1 - number / (HEIGHT - 1)
        scale = f"{accuracy:.1f}" if number % 3 == 0 else "   "
        lines.append(f"{scale} │{''.join(cells)}".rstrip())
    left, right = f"{10**low:.2g} s", f"{10**high:.2g} s"
    lines.append(f"    └{'─' * WIDTH}")
    lines.append(f"     {left}{right:>{WIDTH - len(left)}}")
    legend = [f"{_letter(number)} {label(row)}" for number, row in enumerate(rows)]
    lines += [f"     {'   '.join(part)}" for part in cut(legend, 5)]
    return "\n".join(lines)


def label(row: dict[str, Any]) -> str:
    """Name a method, with its ratio unless that is 0 or 1."""
    return row["method"] if row["ratio"] in (0, 1) else f"{row['method']}, r = {row['ratio']:g}"


def _letter(number: int) -> str:
    return LETTERS[number % len(LETTERS)]


def _range(seconds: list[float]) -> tuple[float, float]:
    """Return decimal logarithms below and above all values, rounded to thirds."""
    logs = [log10(each) for each in seconds]
    low, high = floor(min(logs) * 3) / 3, -floor(-max(logs) * 3) / 3
    return low, max(high, low + 1 / 3)


def check_plot(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before an hour is spent on its content.

    Raises:
        UsageError: if the file is neither .png nor .svg or cannot be written, or matplotlib is missing.
    """
    if path.suffix.lower() not in FORMATS:
        better = path.with_suffix(".svg") if path.name else "plot.svg"
        raise UsageError(f"{path} is neither .png nor .svg", fix=f"--plot {better}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for the plot", fix=f"mkdir {shlex.quote(str(path.parent))}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", fix=f"--plot {path / 'plot.svg'}")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"{path} cannot be written", fix="--plot with a folder of your own")
    require_matplotlib()


def require_matplotlib() -> None:
    """Refuse to begin what could not be drawn.

    Raises:
        UsageError: if matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("drawing needs matplotlib", fix="pip install matplotlib") from error


def draw_frontier(result: dict[str, Any], path: Path) -> None:
    """Draw accuracy with 95 % intervals against seconds, and a staircase of the best that is reached so far."""
    plt, rows = pyplot(), result["rows"]
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    best = _unbeaten(rows)
    # Nothing was measured between two methods: up to the slower one, the faster one's accuracy is the best there is.
    axes.plot([x for x, _ in best], [y for _, y in best], drawstyle="steps-post", color="0.7", linewidth=1, zorder=0)
    for row, marker in zip(rows, cycle(MARKERS), strict=False):
        below, above = row["accuracy"] - row["low"], row["high"] - row["accuracy"]
        axes.errorbar(
            row["seconds_mean"],
            row["accuracy"],
            yerr=[[below], [above]],
            fmt=marker,
            capsize=3,
            color="C3" if row["method"].startswith("ccot") else "C0",
            label=label(row),
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter("s"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("time per question (mean, log scale)")
    axes.set_title(f"{subject(result)}, 95 % intervals", fontsize=10)
    _finish(figure, axes, path)


DIMENSIONS = ("method", "ratio", "layer", "selector", "schedule", "unfreeze", "ends", "epochs", "problems")
NAMES = ("method", "selector", "schedule", "unfreeze", "ends")
"""Dimensions whose values say what they are."""
SYMBOLS = {"ratio": "r", "layer": "l", "train_phi": "φ", "train_psi": "ψ"}


def dimensions_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the dimensions of a sweep: those that every one has, and the settings that this one varies."""
    return [*DIMENSIONS, *rows[0]["settings"]]


def value_of(row: dict[str, Any], dimension: str) -> Any:
    """Return the value that a row of a sweep has in a dimension."""
    return {**row, **row["settings"]}[dimension]


def varied(rows: list[dict[str, Any]]) -> list[str]:
    """Return the dimensions of a sweep in which its rows differ."""
    return [name for name in dimensions_of(rows) if len({value_of(row, name) for row in rows}) > 1]


def is_numeric(rows: list[dict[str, Any]], dimension: str) -> bool:
    """Tell whether all values in a dimension are numbers."""
    return all(isinstance(value_of(row, dimension), int | float) for row in rows)


def symbol(dimension: str) -> str:
    """Return the short name of a dimension: `r`, or `φ learning rate` for `train_phi.learning_rate`."""
    return " ".join(SYMBOLS.get(part, part.replace("_", " ")) for part in dimension.split("."))


def choice(row: dict[str, Any], dimensions: Iterable[str]) -> str:
    """Name what a row of a sweep has in these dimensions: `r = 0.1, even`."""
    named = ((name, shown(value_of(row, name))) for name in dimensions)
    return ", ".join(value if name in NAMES else f"{symbol(name)} = {value}" for name, value in named)


def shown(value: float | str | None) -> str:
    """Write a setting of a sweep, a number without needless digits."""
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)


def draw_sweep(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw exact match with 95 % intervals over the first dimension that varies.

    Each choice of the other dimensions has its own colour. A dimension of numbers comes before one of names.
    """
    plt = pyplot()
    across, *others = sorted(varied(rows), key=lambda name: not is_numeric(rows, name)) or ["ratio"]
    place = value_of if is_numeric(rows, across) else lambda row, name: shown(value_of(row, name))
    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    choices: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        choices.setdefault(choice(row, others), []).append(row)
    for (name, chosen), marker in zip(choices.items(), cycle(MARKERS), strict=False):
        axes.errorbar(
            [place(row, across) for row in chosen],
            [row["accuracy"] for row in chosen],
            yerr=[
                [row["accuracy"] - row["low"] for row in chosen],
                [row["high"] - row["accuracy"] for row in chosen],
            ],
            fmt=marker,
            capsize=3,
            label=name or None,
        )
    labels = {"ratio": "compression ratio r", "layer": "autoregressive layer l", "problems": "training problems"}
    axes.set_xlabel(labels.get(across, symbol(across)))
    axes.set_title(f"{rows[0]['n']:,} {rows[0]['split']} problems, 95 % intervals", fontsize=10)
    _finish(figure, axes, path)


def pyplot() -> Any:
    """Import matplotlib's pyplot, set to draw into files without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.fonttype"] = "none"  # Text stays text, which can be searched and read aloud.
    return pyplot


def _finish(figure: Any, axes: Any, path: Path) -> None:
    """Add the axis of exact match, a grid and the legend, and save the figure."""
    axes.set_ylim(-0.03, 1.06)
    axes.set_ylabel("exact match")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside right center", frameon=False)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a picture, and free its memory."""
    figure.savefig(path, dpi=150)
    pyplot().close(figure)


def _unbeaten(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return seconds and accuracy of the methods that no faster one equals or beats, from fast to slow."""
    best: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: (row["seconds_mean"], -row["accuracy"])):
        if not best or row["accuracy"] > best[-1][1]:
            best.append((row["seconds_mean"], row["accuracy"]))
    return best
