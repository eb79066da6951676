"""`ccot train-baseline`: train a method to compare with."""

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ccot_cli.cli.console import print_line, print_next, steps_taken
from ccot_cli.cli.each_ratio import run_each
from ccot_cli.cli.options import (
    MODEL_AND_DATA,
    WHAT,
    DeviceOption,
    EpochsOption,
    FormatOption,
    RatioOption,
    SeedOption,
    SetOption,
    StartOption,
    ThreadsOption,
    WorkspaceOption,
    between_zero_and_one,
    psi_settings,
    resolve,
)
from ccot_cli.cli.tracking import TrackOption, progress_for
from ccot_cli.names import BaselineName

if TYPE_CHECKING:
    from ccot_cli.stages.train_baseline import TrainBaselineResult


def train_baseline(
    method: Annotated[
        BaselineName,
        typer.Argument(
            help="direct: answer at once (r = 0). cot: write the chain (r = 1). pause: read copies of a learned token"
            " first. filler: read full stops first. coconut: feed hidden states back, taught by a curriculum. icot:"
            " unlearn the chain from its beginning, more with every epoch. short-cot: write a chain cut to CCoT's"
            " number of tokens. gold: read gold states, as from a perfect φ.",
            rich_help_panel=WHAT,
        ),
    ],
    folder: WorkspaceOption = None,
    ratio: RatioOption = None,
    epochs: EpochsOption = None,
    start: StartOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    track: TrackOption = None,
    sets: SetOption = None,
    format: FormatOption = "text",
) -> None:
    """Train a method to compare with, on the same model and data for as many steps as ψ; eval then shows it too.

    ccot train-baseline direct
    ccot train-baseline pause --ratio 0.1
    ccot train-baseline coconut --epochs 12

    pause, filler, short-cot and gold are trained for a ratio, as CCoT is. coconut and icot
    are taught by a curriculum, which needs at least two epochs.
    """
    changes = psi_settings(epochs=epochs, start=start, seed=seed, device=device, threads=threads)
    workspace, settings, overrides = resolve(folder, changes, sets, fixed=MODEL_AND_DATA)
    from ccot_cli.models.methods.loading import fixed_ratio
    from ccot_cli.stages.train_baseline import run

    fixed = fixed_ratio(method)
    ratios = between_zero_and_one(ratio, settings) if fixed is None else [fixed]
    progress = progress_for(track, workspace)
    if fixed is not None and any(each != fixed for each in ratio or ()):
        progress.say(f"{method} always has ratio {fixed:f}: --ratio is not read")

    def show(each: Decimal, result: "TrainBaselineResult") -> None:
        print_line(
            f"{method}{f' at r = {each:f}' if fixed is None else ''}: validation accuracy"
            f" {result.validation_accuracy:.3f} on {result.num_validation:,} problems after"
            f" {steps_taken(result.num_steps, result.kept_step)}, {result.mean_tokens:.1f} tokens before the answer"
        )

    stage = partial(run, workspace, settings, method, overrides=overrides, progress=progress)
    run_each(ratios, stage, show, format=format, progress=progress)
    print_next(workspace.command("eval"))
