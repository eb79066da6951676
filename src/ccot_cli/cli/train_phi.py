"""Train the generator of contemplation tokens."""

from dataclasses import asdict
from typing import Annotated

import typer

from ccot_cli.cli.console import TerminalProgress, print_json, print_line, print_table
from ccot_cli.cli.options import (
    HOW,
    DeviceOption,
    EpochsOption,
    FormatOption,
    RatioOption,
    SeedOption,
    WorkspaceOption,
    between_zero_and_one,
    resolve,
)


def train_phi(
    workspace: WorkspaceOption = None,
    ratio: RatioOption = None,
    layer: Annotated[
        int | None,
        typer.Option(min=1, metavar="L", help="Layer whose state is fed back (l in the paper).", rich_help_panel=HOW),
    ] = None,
    epochs: EpochsOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    format: FormatOption = "text",
) -> None:
    """Train φ, which generates the contemplation tokens, layer by layer.

    ccot train-phi --ratio 0.1
    ccot train-phi --ratio 0.05 --ratio 0.1 --layer 4
    """
    changes = {
        "train_phi.autoregressive_layer": layer,
        "train_phi.epochs": epochs,
        "train_phi.seed": seed,
        "model.device": device,
    }
    found, settings, overrides = resolve(workspace, changes)
    ratios = between_zero_and_one(ratio, settings)
    from ccot_cli.stages.train_phi import run

    progress = TerminalProgress()
    results = []
    for each in ratios:
        results.append(run(found, settings, each, overrides=overrides, progress=progress))
        if results[-1].was_ready:
            progress.say("ready already; nothing to do")
        if format == "text":
            print_line(f"r = {each:f}: scaled error of every layer on validation (0 perfect, 1 no better than a mean)")
            names = ("layer", "untrained_loss", "validation_loss", "train_loss")
            head = ("  layer", "untrained", "validation", "train")
            body = [(f"  {row['layer']}", *(f"{row[name]:.3f}" for name in names[1:])) for row in results[-1].layers]
            print_table([head, *body], align="<>>>")
    if format == "json":
        print_json([asdict(result) for result in results])
    progress.say(f"next:  {found.command('train-psi', *(f'--ratio={each:f}' for each in ratios if ratio))}")
