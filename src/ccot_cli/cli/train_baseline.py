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
from ccot_cli.names import BaselineName


def train_baseline(
    method: Annotated[
        BaselineName,
        typer.Argument(
            help="direct: answer at once (r = 0). cot: write the chain (r = 1). pause: copies of a learned token before"
            " the answer. filler: copies of a full stop. coconut: hidden states fed back, taught by a curriculum. icot:"
            " the chain is taken away from its beginning, more with every epoch. short-cot: the chain cut to CCoT's"
            " number of tokens. gold: from gold states, what a perfect φ would leave.",
            rich_help_panel=WHAT,
        ),
    ],
    workspace: WorkspaceOption = None,
    ratio: RatioOption = None,
    epochs: EpochsOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    format: FormatOption = "text",
) -> None:
    """Train a method to compare with, on the same base and data, for as many steps as ψ; eval then shows it too.

    ccot train-baseline direct
    ccot train-baseline pause --ratio 0.1
    ccot train-baseline coconut --epochs 12

    pause, filler, short-cot and gold come in ratios, as CCoT does. A curriculum
    (coconut, icot) needs two epochs at least.
    """
    changes = {"train_psi.epochs": epochs, "train_psi.seed": seed, "model.device": device}
    found, settings, overrides = resolve(workspace, changes)
    from ccot_cli.models.methods.loading import own_ratio
    from ccot_cli.stages.train_baseline import run

    own = own_ratio(method)
    ratios = between_zero_and_one(ratio, settings) if own is None else [own]
    progress = TerminalProgress()
    if own is not None and any(each != own for each in ratio or ()):
        progress.say(f"{method} does not come in ratios: --ratio is not read")
    results = []
    for each in ratios:
        result = run(found, settings, method, each, overrides=overrides, progress=progress)
        results.append(result)
        if result.was_ready:
            progress.say("ready already; nothing to do")
        if format == "text":
            print_line(
                f"{method}{f' at r = {each:f}' if own is None else ''}: validation accuracy"
                f" {result.validation_accuracy:.3f} on {result.num_validation:,} problems after"
                f" {result.num_steps:,} steps, {result.mean_tokens:.1f} tokens before the answer"
            )
    if format == "json":
        print_json([asdict(result) for result in results])
    progress.say(f"next:  {found.command('eval')}")
