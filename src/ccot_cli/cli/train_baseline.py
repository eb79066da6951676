"""Train a method to compare with."""

from dataclasses import asdict
from typing import Annotated

import typer

from ccot_cli.cli.console import TerminalProgress, print_json, print_line
from ccot_cli.cli.options import (
    WHAT,
    DeviceOption,
    EpochsOption,
    FormatOption,
    RatioOption,
    SeedOption,
    WorkspaceOption,
    between_zero_and_one,
    resolve,
)
from ccot_cli.config import BaselineName


def train_baseline(
    method: Annotated[
        BaselineName,
        typer.Argument(help="pause: copies of a learned token before the answer.", rich_help_panel=WHAT),
    ],
    workspace: WorkspaceOption = None,
    ratio: RatioOption = None,
    epochs: EpochsOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    format: FormatOption = "text",
) -> None:
    """Train a method to compare with, on the same base, data and steps; eval then shows it too.

    ccot train-baseline pause --ratio 0.1

    Answering at once and writing the chain are ratios 0 and 1 of train-psi.
    """
    changes = {"train_psi.epochs": epochs, "train_psi.seed": seed, "model.device": device}
    found, settings, overrides = resolve(workspace, changes)
    ratios = between_zero_and_one(ratio, settings)
    from ccot_cli.stages.train_baseline import run

    progress = TerminalProgress()
    results = []
    for each in ratios:
        result = run(found, settings, method, each, overrides=overrides, progress=progress)
        results.append(result)
        if result.was_ready:
            progress.say("ready already; nothing to do")
        if format == "text":
            print_line(
                f"{method} at r = {each:f}, {result.num_tokens} tokens: validation accuracy"
                f" {result.validation_accuracy:.3f} on {result.num_validation:,} problems"
                f" after {result.num_steps:,} steps"
            )
    if format == "json":
        print_json([asdict(result) for result in results])
    progress.say(f"next:  {found.command('eval')}")
