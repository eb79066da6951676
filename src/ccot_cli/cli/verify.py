"""`ccot verify`: compare every file of a workspace with its checksum, and remove damaged ones that come back."""

from typing import Annotated

import typer

from ccot_cli.cli.console import TerminalProgress, counted, print_json, print_line
from ccot_cli.cli.options import HOW, FormatOption, WorkspaceOption, find_workspace
from ccot_cli.errors import CorruptError


def verify(
    folder: WorkspaceOption = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Remove damaged files that come back byte by byte: of precompute, score and the cache.",
            rich_help_panel=HOW,
        ),
    ] = False,
    format: FormatOption = "text",
) -> None:
    """Read every file of the finished artifacts and the cache, and compare it with its checksum.

    ccot verify -w my-run
    ccot verify --repair
    ccot verify --format json | jq -r '.damaged[].path'

    A trained file is never removed: the command that trains it again is named.
    """
    from ccot_cli.workspace import upkeep

    workspace, progress = find_workspace(folder), TerminalProgress()
    total = len(upkeep.finished_artifacts(workspace))
    with progress.task("checking", total=total, unit="artifacts") as advance:
        found, removed = upkeep.repair(workspace, advance) if repair else (upkeep.verify(workspace, advance), [])
    damaged = [
        {"path": str(each.path), "reason": each.reason, "fix": each.fix, "removed": each in removed}
        for each in found.damages
    ]
    if format == "json":
        print_json({"artifacts": found.num_artifacts, "files": found.num_files, "damaged": damaged})
    else:
        for file in damaged:
            print_line(f"{file['path']}: {file['reason']}; {'removed' if file['removed'] else file['fix']}")
        for command in dict.fromkeys(each.command for each in removed if each.command):
            print_line(f"makes what was removed again: {command}")
        state = f"{len(damaged)} damaged" if damaged else "sound"
        print_line(f"{counted(found.num_artifacts, 'artifacts')}, {counted(found.num_files, 'files')}: {state}")
    if len(removed) < len(damaged):
        raise typer.Exit(CorruptError.exit_code)
