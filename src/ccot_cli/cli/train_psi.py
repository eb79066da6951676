"""`ccot train-psi`: train ψ, the answer decoder, and END, the stop classifier."""

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

from ccot_cli.cli.console import print_line, print_next, steps_taken
from ccot_cli.cli.each_ratio import run_each
from ccot_cli.cli.options import (
    MODEL_AND_DATA,
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

if TYPE_CHECKING:
    from ccot_cli.stages.train_psi import TrainPsiResult


def train_psi(
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
    """Train ψ, which answers from the contemplation tokens, and END, which stops them.

    ccot train-psi --ratio 0.1
    ccot train-psi --ratio 0.05 --ratio 0.1 --epochs 2
    """
    changes = psi_settings(epochs=epochs, start=start, seed=seed, device=device, threads=threads)
    workspace, settings, overrides = resolve(folder, changes, sets, fixed=MODEL_AND_DATA)
    ratios = between_zero_and_one(ratio, settings)
    from ccot_cli.stages.train_psi import run

    progress = progress_for(track, workspace)
    stage = partial(run, workspace, settings, overrides=overrides, progress=progress)
    run_each(ratios, stage, _show, format=format, progress=progress)
    print_next(workspace.command("eval"))


def _show(ratio: Decimal, result: "TrainPsiResult") -> None:
    print_line(
        f"r = {ratio:f}: validation accuracy {result.validation_accuracy:.3f}"
        f" on {result.num_validation:,} problems after {steps_taken(result.num_steps, result.kept_step)}"
    )
    print_line(
        f"  END is right at {result.end['accuracy']:.1%} of tokens; it lets {result.mean_tokens:.1f} pass,"
        f" {result.target_tokens:.1f} is the target"
    )
    print_line(f"  the last token tells what the answer begins with in {result.draft:.1%} of problems")
