"""`ccot export`: write trained methods into a file."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ccot_cli.cli.console import counted, print_json, print_line, print_next
from ccot_cli.cli.options import HOW, WHERE, FormatOption, KeysOption, WorkspaceOption, find_workspace
from ccot_cli.files import human_bytes


def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The archive to write, such as methods.zip.", rich_help_panel=WHERE)
    ],
    methods: KeysOption = None,
    folder: WorkspaceOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.", rich_help_panel=HOW)] = False,
    format: FormatOption = "text",
) -> None:
    """Write trained methods into one file, from which ccot import makes a workspace that answers the same.

    ccot export methods.zip -w my-run
    ccot export methods.zip --method r0.10 --method direct --force

    It holds adapters, END, drafts, settings, results and a model card; no base model, no problems, no hidden states.
    """
    workspace = find_workspace(folder)
    from ccot_cli.stages.export import run

    result = run(workspace, file, methods or (), force=force)
    if format == "json":
        print_json(asdict(result))
    else:
        size, results = human_bytes(result.num_bytes), counted(result.num_results, "evaluations")
        print_line(f"{result.file}: {size}, {results}, for the model {result.model}")
        for name in result.methods:
            print_line(f"  {name}")
    model = ["--model", "DIR"] if result.is_model_local else []
    print_next(shlex.join(["ccot", "import", result.file, "-w", "new-run", *model]))
