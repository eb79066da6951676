"""`ccot problems`: show sample problems."""

from dataclasses import asdict
from textwrap import indent
from typing import Annotated, Literal

import typer

from ccot_cli.cli.console import print_json, print_line
from ccot_cli.cli.options import (
    WHAT,
    DataOption,
    FormatOption,
    SeedOption,
    StepsOption,
    WorkspaceOption,
    resolve_anywhere,
)
from ccot_cli.names import MOST_PROBLEMS


def problems(
    folder: WorkspaceOption = None,
    split: Annotated[
        Literal["train", "validation", "test", "unseen"] | None,
        typer.Option(
            "--split",
            help="Which problems. Default: test for generated ones, validation for your own.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MOST_PROBLEMS, metavar="N", help="Most problems.", rich_help_panel=WHAT)
    ] = 5,
    data: DataOption = None,
    steps: StepsOption = None,
    seed: SeedOption = None,
    format: FormatOption = "text",
) -> None:
    """Show sample problems with chain and answer: of a workspace, of a data set, or those of the embedded model.

    ccot problems
    ccot problems --steps 3 3 --limit 2
    ccot problems --split unseen
    ccot problems --limit 20 --format json | ccot ask --input -
    """
    workspace, settings, _ = resolve_anywhere(folder, {"data.source": data})
    from ccot_cli.overrides import override
    from ccot_cli.stages.problems import run

    if data is not None:
        # What the workspace has stored, and the other sources that it names, belong to its own data.
        workspace = None
        settings = override(settings, {"data.validation_source": None, "data.test_source": None})

    for number, problem in enumerate(run(workspace, settings, split, limit=limit, steps=steps, seed=seed)):
        if format == "json":
            print_json({**asdict(problem), "steps": problem.num_steps})
            continue
        if number > 0:
            print_line("")
        print_line(problem.question)
        print_line(indent(problem.chain, "  "))
        print_line(f"answer: {problem.answer}")
