"""`ccot import`: make a workspace from a file that `ccot export` wrote."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ccot_cli.cli.console import loading, print_json, print_line, print_next
from ccot_cli.cli.options import WHERE, FormatOption, ModelOption, announce_model


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="The archive, a folder with its files, or hf://USER/NAME for a repository of the hub.",
            rich_help_panel=WHERE,
        ),
    ],
    target: Annotated[
        Path, typer.Option("--workspace", "-w", metavar="DIR", help="The workspace to make.", rich_help_panel=WHERE)
    ],
    model: ModelOption = None,
    format: FormatOption = "text",
) -> None:
    """Make a workspace from methods that ccot export wrote; ccot ask, eval and serve then answer from it.

    ccot import methods.zip -w new-run
    ccot import methods.zip -w new-run --model my-model
    ccot import hf://me/my-methods -w new-run

    A base model of the package or of the Hugging Face hub is found by its name. One that was a folder has to be given
    with --model, and is compared with the one that the methods were trained on.
    """
    if model is not None:
        announce_model(model)
    from ccot_cli.stages.import_ import run

    with loading(source):
        result = run(source, target, model=model)
    if format == "json":
        print_json(asdict(result))
    else:
        print_line(f"{result.folder}: on the model {result.model}")
        for name in result.methods:
            print_line(f"  {name}")
    print_next(shlex.join(["ccot", "ask", "-w", result.folder, "…"]))
