"""`ccot clean`: remove what interrupted commands have left and nothing uses any more."""

import sys
from typing import Annotated

import typer

from ccot_cli.cli.console import print_line, print_note
from ccot_cli.cli.options import HOW, WorkspaceOption, find_workspace
from ccot_cli.errors import UsageError
from ccot_cli.files import human_bytes


def clean(
    folder: WorkspaceOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would go; remove nothing.", rich_help_panel=HOW)
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", rich_help_panel=HOW)] = False,
) -> None:
    """Remove what interrupted commands have left and no command would use.

    ccot clean --dry-run
    ccot clean --yes -w my-run

    That is: partial files, work that was begun with other settings, results that were replaced, and cached queries of
    other problems. Finished results stay, and so does work that the same command would resume.
    """
    from ccot_cli.workspace import upkeep

    workspace = find_workspace(folder)
    found = upkeep.leftovers(workspace)
    for each in found:
        print_line(f"{human_bytes(each.num_bytes):>7}  {each.path}: {each.reason}")
    total = human_bytes(sum(each.num_bytes for each in found))
    if dry_run or not found:
        print_line(f"{total} would be freed" if found else "there is nothing to remove")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "nothing was removed: there is no terminal to ask on", fix=workspace.command("clean", "-y")
            )
        try:
            is_agreed = typer.confirm(f"remove these, {total}?", err=True)
        except typer.Abort:  # the input ended without an answer
            is_agreed = False
        if not is_agreed:
            print_note("nothing was removed")
            return
    print_line(f"{human_bytes(upkeep.clean(workspace, found))} freed")
