"""`ccot init`: make a workspace."""

from pathlib import Path
from typing import Annotated

import typer

from ccot_cli.cli.console import print_line, print_next
from ccot_cli.cli.options import WHAT, WHERE, SetOption, read_sets, starting_with
from ccot_cli.names import EMBEDDED, PRESETS, SETTINGS_FILE


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.", rich_help_panel=WHERE)],
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            autocompletion=starting_with(PRESETS),
            help=f"Settings to start from: {', '.join(PRESETS)}.",
            rich_help_panel=WHAT,
        ),
    ] = EMBEDDED,
    sets: SetOption = None,
) -> None:
    """Make a workspace: a folder with a settings file that explains each setting.

    ccot init my-run
    ccot init llama --preset gsm8k-llama2-7b
    ccot init smol --preset smollm2 --set model.prompt=auto --set data.limit=1000
    """
    from ccot_cli.overrides import with_absolute_paths
    from ccot_cli.workspace.workspace import Workspace

    changes = with_absolute_paths(read_sets(sets or ()), Path.cwd())
    workspace = Workspace.create(folder, preset, changes)
    print_line(str(workspace.root / SETTINGS_FILE))
    print_next(workspace.command("precompute"))
