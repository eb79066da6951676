"""`ccot sweep`: run the stages over a grid of settings."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from ccot_cli.cli.console import print_json, print_line, print_note
from ccot_cli.cli.options import (
    MODEL_AND_DATA,
    WHAT,
    WHERE,
    DeviceOption,
    RatioOption,
    SetOption,
    TableFormatOption,
    ThreadsOption,
    WorkspaceOption,
    between_zero_and_one,
    read_vary,
    resolve,
)
from ccot_cli.cli.plots import (
    check_plot,
    choice,
    dimensions_of,
    draw_sweep,
    is_numeric,
    shown,
    symbol,
    value_of,
    varied,
)
from ccot_cli.cli.tables import Style, Table, render
from ccot_cli.cli.tracking import TrackOption, progress_for
from ccot_cli.names import Ends, MethodName, Schedule, SelectorName, Unfreeze


def _one_of(names: Any, text: str) -> Any:
    """Make an option that may be repeated, each time with one of these names; Typer has no lists of literals."""

    def read(given: str) -> str:
        if given not in get_args(names):
            raise typer.BadParameter(f"{given} is none of {', '.join(get_args(names))}.")
        return given

    metavar = f"[{'|'.join(get_args(names))}]"
    return typer.Option(parser=read, metavar=metavar, help=text, rich_help_panel=WHAT)


def sweep(
    folder: WorkspaceOption = None,
    ratio: RatioOption = None,
    method: Annotated[list[str] | None, _one_of(MethodName, "Methods to train. Default: ccot.")] = None,
    layer: Annotated[
        list[int] | None,
        typer.Option("--layer", min=1, metavar="L", help="Autoregressive layer l.", rich_help_panel=WHAT),
    ] = None,
    selector: Annotated[list[str] | None, _one_of(SelectorName, "Which tokens to keep.")] = None,
    schedule: Annotated[list[str] | None, _one_of(Schedule, "How φ is trained.")] = None,
    unfreeze: Annotated[list[str] | None, _one_of(Unfreeze, "Layers of φ that learn with ψ.")] = None,
    ends: Annotated[list[str] | None, _one_of(Ends, "Length of the rollouts that ψ learns from.")] = None,
    epochs: Annotated[
        list[int] | None,
        typer.Option(
            "--epochs", min=1, metavar="N", help="Passes over the data for ψ or a baseline.", rich_help_panel=WHAT
        ),
    ] = None,
    problems: Annotated[
        list[int] | None,
        typer.Option(
            "--problems",
            min=1,
            metavar="N",
            help="Training problems to learn from, the first ones. Default: all that precompute stored.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option("--seed", metavar="N", help="Seed of selection and training.", rich_help_panel=WHAT),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="NAME=V1,V2,…",
            help="Vary any setting of score, train_phi or train_psi; repeat it for several.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    test: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Compare on N test problems, once all choices are made. Default: on validation problems.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    track: TrackOption = None,
    sets: SetOption = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw exact match into a .png or .svg.", rich_help_panel=WHERE),
    ] = None,
    format: TableFormatOption = "text",
) -> None:
    """Train methods over a grid of settings and compare them; repeat an option to vary it.

    ccot sweep --ratio 0.05 --ratio 0.1 --ratio 0.2
    ccot sweep --ratio 0.1 --layer 2 --layer 4 --layer 6 --plot layers.svg
    ccot sweep --ratio 0.1 --selector predictive --selector even --seed 0 --seed 1
    ccot sweep --ratio 0.1 --method ccot --method direct --seed 0 --seed 1 --test 1000
    ccot sweep --ratio 0.1 --vary train_phi.learning_rate=0.005,0.01,0.02
    ccot sweep --ratio 0.1 --problems 1000 --problems 4000 --plot curve.svg

    Finished results are used again, so a stopped sweep continues. Results that do not have the workspace's own
    settings are kept beside its own, under other keys.
    """
    changes = {"model.device": device, "model.threads": threads}
    workspace, settings, overrides = resolve(folder, changes, sets, fixed=MODEL_AND_DATA)
    ratios = between_zero_and_one(ratio, settings)
    grid: dict[str, Any] = {
        "layer": layer,
        "selector": selector,
        "schedule": schedule,
        "unfreeze": unfreeze,
        "ends": ends,
        "epochs": epochs,
        "problems": problems,
        "seed": seed,
    }
    if plot:
        check_plot(plot)
    from ccot_cli.stages.sweep import run, with_varied

    varied_settings: dict[str, list[object]] = {}
    for name, values in map(read_vary, vary or ()):
        varied_settings.setdefault(name, []).extend(values)
    rows = run(
        workspace,
        settings,
        ratios,
        with_varied(settings, {name: values for name, values in grid.items() if values}, varied_settings),
        methods=method or ("ccot",),
        num_test=test,
        overrides=overrides,
        progress=progress_for(track, workspace),
    )
    json_rows = [asdict(row) for row in rows]
    if format == "json":
        print_json({"rows": json_rows})
    else:
        show_sweep(json_rows, format)
    if plot:
        draw_sweep(json_rows, plot)
        print_note(f"drawn into {plot}")


def show_sweep(rows: list[dict[str, Any]], style: Style) -> None:
    """Print a table of the dimensions that vary; as text also a bar for each row."""
    dimensions = [name for name in dimensions_of(rows) if name in ("method", "ratio") or name in varied(rows)]
    figures = [name for name in FIGURES if any(row[name] is not None for row in rows)]
    head = [symbol(name) for name in dimensions]
    head += ["seeds", "exact match", "95 % interval", "steps", "tokens", *(FIGURES[name][0] for name in figures)]
    cells = [
        (
            *(shown(value_of(row, name)) for name in dimensions),
            str(len(row["seeds"])),
            f"{row['accuracy']:.3f}",
            f"{row['low']:.3f} – {row['high']:.3f}",
            f"{row['num_steps']:,}",
            f"{row['mean_tokens']:.1f}",
            *("" if row[name] is None else FIGURES[name][1](row[name]) for name in figures),
        )
        for row in rows
    ]
    align = "".join(">" if is_numeric(rows, name) else "<" for name in dimensions) + ">" * (5 + len(figures))
    caption = f"{rows[0]['n']:,} {rows[0]['split']} problems"
    print_line(render(Table(caption, align, tuple(head), cells), style))
    if style == "text" and len(rows) > 1:
        print_line("")
        for line in bars(rows):
            print_line(line)


FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("time", lambda seconds: f"{1000 * seconds:.1f} ms"),
    "end_accuracy": ("END", "{:.1%}".format),
    "rollout_error": ("error", "{:.3f}".format),
    "numbers_read": ("read at L", "{:.3f}".format),
}
"""Titles and formats of the figures that not every row has."""

BAR_WIDTH = 40


def bars(rows: list[dict[str, Any]]) -> list[str]:
    """Draw each row's exact match as a bar with its interval in brackets, named by the dimensions that vary."""
    dimensions = varied(rows)
    names = [choice(row, dimensions) for row in rows]
    longest = max(map(len, names))
    lines = []
    for name, row in zip(names, rows, strict=True):
        bar = ["█"] * round(row["accuracy"] * BAR_WIDTH)
        bar += [" "] * (BAR_WIDTH + 1 - len(bar))
        for end, bracket in ((row["low"], "["), (row["high"], "]")):
            bar[min(BAR_WIDTH, round(end * BAR_WIDTH))] = bracket
        lines.append(f"{name:<{longest}}  {''.join(bar).rstrip()}  {row['accuracy']:.3f}")
    return lines
