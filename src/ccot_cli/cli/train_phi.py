"""`ccot train-phi`: train φ, the generator of contemplation tokens."""

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ccot_cli.cli.console import print_line, print_next, print_table
from ccot_cli.cli.each_ratio import run_each
from ccot_cli.cli.options import (
    HOW,
    MODEL_AND_DATA,
    DeviceOption,
    FormatOption,
    RatioOption,
    SeedOption,
    SetOption,
    ThreadsOption,
    WorkspaceOption,
    between_zero_and_one,
    resolve,
)
from ccot_cli.cli.tracking import TrackOption, progress_for
from ccot_cli.names import Schedule

if TYPE_CHECKING:
    from ccot_cli.stages.train_phi import TrainPhiResult


def train_phi(
    folder: WorkspaceOption = None,
    ratio: RatioOption = None,
    schedule: Annotated[
        Schedule | None,
        typer.Option(
            help="joint: all layers at once, at last on φ's own rollouts. layerwise: one by one, as in the paper.",
            rich_help_panel=HOW,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(min=1, metavar="L", help="Layer whose state is fed back (l in the paper).", rich_help_panel=HOW),
    ] = None,
    taught_epochs: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Passes with gold inputs, before those on rollouts; 0: no input is ever gold.",
            rich_help_panel=HOW,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Passes on rollouts (joint), or for each layer (layerwise).", rich_help_panel=HOW
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="RATIO", help="Ratio or key of a trained φ to start from, or its folder.", rich_help_panel=HOW
        ),
    ] = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    track: TrackOption = None,
    sets: SetOption = None,
    format: FormatOption = "text",
) -> None:
    """Train φ, which generates the contemplation tokens.

    ccot train-phi --ratio 0.1
    ccot train-phi --ratio 0.05 --ratio 0.1 --layer 4
    ccot train-phi --schedule layerwise         (the paper's, after 'ccot score --selector even')
    ccot train-phi --ratio 0.2 --start 0.1 --taught-epochs 0 --epochs 3
    """
    changes = {
        "train_phi.schedule": schedule,
        "train_phi.autoregressive_layer": layer,
        "train_phi.taught_epochs": taught_epochs,
        "train_phi.epochs": epochs,
        "train_phi.start": start,
        "train_phi.seed": seed,
        "model.device": device,
        "model.threads": threads,
    }
    workspace, settings, overrides = resolve(folder, changes, sets, fixed=MODEL_AND_DATA)
    ratios = between_zero_and_one(ratio, settings)
    from ccot_cli.stages.train_phi import run

    progress = progress_for(track, workspace)
    stage = partial(run, workspace, settings, overrides=overrides, progress=progress)
    run_each(ratios, stage, _show, format=format, progress=progress)
    print_next(workspace.command("train-psi", *(f"--ratio={each:f}" for each in ratios if ratio)))


def _show(ratio: Decimal, result: "TrainPhiResult") -> None:
    """Print the errors of φ's rollouts on validation problems, and what a probe reads from them."""
    report = result.report
    losses = report["losses"]
    probed = list(zip(report["gold_read"], report["generated_read"], strict=True))
    print_line(
        f"r = {ratio:f}: {result.schedule}, {result.num_steps:,} steps; φ's rollouts on validation"
        " (error: 0 is perfect, 1 no better than a mean)"
    )
    head = ("  state at", "error", "a probe reads the next number: gold", "generated")
    body = [
        ("  l", f"{losses[0]:.3f}", *(f"{accuracy:.3f}" for accuracy in probed[0])),
        ("  L", f"{losses[-1]:.3f}", *(f"{accuracy:.3f}" for accuracy in probed[1])),
    ]
    print_table([head, *body], align="<>>>")
    errors = [f"{error:.2f}" for error in report["position_errors"][:12]]
    print_line(f"  error by token: {' '.join(errors)}{' …' if len(report['position_errors']) > len(errors) else ''}")
