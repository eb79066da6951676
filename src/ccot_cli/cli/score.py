"""`ccot score`: choose which tokens of each chain to keep."""

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ccot_cli.cli.console import TerminalProgress, print_line, print_next
from ccot_cli.cli.each_ratio import run_each
from ccot_cli.cli.options import (
    MODEL_AND_DATA,
    WHAT,
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
from ccot_cli.names import SelectorName

if TYPE_CHECKING:
    from ccot_cli.stages.score import ScoreResult


def score(
    folder: WorkspaceOption = None,
    ratio: RatioOption = None,
    selector: Annotated[
        SelectorName | None,
        typer.Option(
            help="predictive: tokens that announce a result. learned: the choice of a trained scorer. even, random,"
            " last: by position.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    sets: SetOption = None,
    format: FormatOption = "text",
) -> None:
    """Choose the tokens of each chain that the contemplation tokens will imitate.

    ccot score --ratio 0.05 --ratio 0.1
    ccot score --selector even
    """
    changes = {"score.selector": selector, "score.seed": seed, "model.device": device, "model.threads": threads}
    workspace, settings, overrides = resolve(folder, changes, sets, fixed=MODEL_AND_DATA)
    ratios = between_zero_and_one(ratio, settings)
    from ccot_cli.stages.score import run

    progress = TerminalProgress()
    stage = partial(run, workspace, settings, overrides=overrides, progress=progress)
    results = run_each(ratios, stage, _show, format=format, progress=progress)
    if format == "text":
        for example in results[-1].examples:
            print_line(f"example at r = {results[-1].ratio}:")
            for line in example.splitlines():
                print_line(f"  {line}")
    print_next(workspace.command("train-phi", *(f"--ratio={each:f}" for each in ratios if ratio)))


def _show(ratio: Decimal, result: "ScoreResult") -> None:
    kinds = ", ".join(f"{fraction:.0%} {kind}" for kind, fraction in result.kinds.items())
    print_line(
        f"r = {ratio:f}: {result.selector} keeps {result.mean_kept:.1f} of {result.mean_chain:.1f} chain tokens"
        f" ({kinds}); {result.overlap_with_even:.0%} of them even spacing keeps too"
    )
    if result.autoregressive_layer is not None:
        read = " ".join(f"{accuracy:.2f}" for accuracy in result.probe)
        print_line(f"  a probe reads the next number at 0 to L: {read}; l = auto is {result.autoregressive_layer}")
