"""Choose which chain tokens to keep."""

from dataclasses import asdict
from typing import Annotated

import typer

from ccot_cli.cli.console import TerminalProgress, print_json, print_line
from ccot_cli.cli.options import (
    WHAT,
    DeviceOption,
    FormatOption,
    RatioOption,
    SeedOption,
    WorkspaceOption,
    between_zero_and_one,
    resolve,
)
from ccot_cli.names import SelectorName


def score(
    workspace: WorkspaceOption = None,
    ratio: RatioOption = None,
    selector: Annotated[SelectorName | None, typer.Option(help="How tokens are chosen.", rich_help_panel=WHAT)] = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    format: FormatOption = "text",
) -> None:
    """Choose which tokens of each chain the contemplation tokens shall imitate.

    ccot score --ratio 0.05 --ratio 0.1
    ccot score --selector even
    """
    changes = {"score.selector": selector, "score.seed": seed, "model.device": device}
    found, settings, overrides = resolve(workspace, changes)
    ratios = between_zero_and_one(ratio, settings)
    from ccot_cli.stages.score import run

    progress = TerminalProgress()
    results = []
    for each in ratios:
        result = run(found, settings, each, overrides=overrides, progress=progress)
        results.append(result)
        if format == "text":
            kinds = ", ".join(f"{share:.0%} {kind}" for kind, share in result.kinds.items())
            print_line(
                f"r = {each:f}: {result.selector} keeps {result.mean_kept:.1f} of {result.mean_chain:.1f} chain tokens"
                f" ({kinds}); {result.overlap_with_even:.0%} of them even spacing keeps too"
            )
        if result.was_ready:
            progress.say("ready already; nothing to do")
    if format == "json":
        print_json([asdict(result) for result in results])
    else:
        for example in results[-1].examples:
            print_line(f"example at r = {results[-1].ratio}:")
            for line in example.splitlines():
                print_line(f"  {line}")
    progress.say(f"next:  {found.command('train-phi', *(f'--ratio={each:f}' for each in ratios if ratio))}")
