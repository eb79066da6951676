"""Options that several commands share, and what they make of a workspace's settings."""

import os
from collections.abc import Mapping
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ccot_cli.errors import UsageError
from ccot_cli.names import ENVIRONMENT_VARIABLE, EngineName, check_between, parse_ratio

if TYPE_CHECKING:
    from ccot_cli.config import Settings
    from ccot_cli.workspace.workspace import Workspace

command_line: ContextVar[tuple[str, ...]] = ContextVar("command_line", default=())
"""What was typed after `ccot`; manifests, the lock and errors repeat it."""

WHAT, HOW, WHERE = "What", "How", "Where"
"""The panels of `--help`."""


def read_ratio(text: str) -> Decimal:
    """A ratio from the command line."""
    try:
        return parse_ratio(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


WorkspaceOption = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        "-w",
        metavar="DIR",
        help=f"The folder with ccot.yaml; else ${ENVIRONMENT_VARIABLE}, else the nearest one upward.",
        rich_help_panel=WHERE,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Base model (θ in the paper): 'embedded', a folder, or a Hugging Face name.",
        rich_help_panel=WHAT,
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="SOURCE",
        help="Problems: 'embedded', a .jsonl, .csv or .parquet file, or a hub data set.",
        rich_help_panel=WHAT,
    ),
]


def _ratio_option(default: str) -> Any:
    return typer.Option(
        "--ratio",
        "-r",
        parser=read_ratio,
        metavar="RATIO",
        help=f"Compression ratio (r in the paper) between 0 and 1; repeat it for several. Default: {default}.",
        rich_help_panel=WHAT,
    )


RatioOption = Annotated[list[Decimal] | None, _ratio_option("those of ccot.yaml")]
TrainedRatioOption = Annotated[list[Decimal] | None, _ratio_option("all that were trained")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="Problems at most.", rich_help_panel=WHAT)
]
StepsOption = Annotated[
    tuple[int, int] | None,
    typer.Option(
        "--steps",
        metavar="MIN MAX",
        help="Only problems of so many reasoning steps; the embedded ones have 2 to 8 unless asked for others.",
        rich_help_panel=WHAT,
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Seed of what is random.", rich_help_panel=HOW)
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel=HOW),
]
EngineOption = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help="fast, or reference: the paper's algorithm to the letter; same answers to rounding.",
        rich_help_panel=HOW,
    ),
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", min=1, metavar="N", help="Passes over the data.", rich_help_panel=HOW)
]
FormatOption = Annotated[
    Literal["text", "json"], typer.Option("--format", help="What stdout receives.", rich_help_panel=HOW)
]

TableFormatOption = Annotated[
    Literal["text", "markdown", "latex", "json"],
    typer.Option("--format", help="What stdout receives.", rich_help_panel=HOW),
]


# What reads settings is imported by the commands that do: it takes longer than `--help` itself.


def find_workspace_if_any(explicit: Path | None) -> "Workspace | None":
    """The workspace that a command works on, for one that does without too."""
    from ccot_cli.workspace.workspace import Workspace

    return Workspace.find(explicit, os.environ, Path.cwd(), command_line.get())


def find_workspace(explicit: Path | None) -> "Workspace":
    """The workspace that a command works on.

    Raises:
        UsageError: where there is none.
    """
    workspace = find_workspace_if_any(explicit)
    if workspace is None:
        raise UsageError("there is no workspace here", fix="ccot init my-run, or name one with -w")
    return workspace


def resolve(workspace: Path | None, changes: Mapping[str, object]) -> "tuple[Workspace, Settings, tuple[str, ...]]":
    """The workspace, its settings as the command line changes them, and the names of those changed.

    Args:
        workspace: What `--workspace` says.
        changes: Values by setting, such as `data.limit`; None stands for an option that was not given.

    Raises:
        UsageError: where there is no workspace, or a value is refused.
    """
    found = find_workspace(workspace)
    return found, *_changed(found, changes)


def resolve_anywhere(
    workspace: Path | None, changes: Mapping[str, object]
) -> "tuple[Workspace | None, Settings, tuple[str, ...]]":
    """The same; where there is no workspace, the settings are those of the model in the package.

    Raises:
        UsageError: where a value is refused, or the named folder is no workspace.
    """
    found = find_workspace_if_any(workspace)
    return found, *_changed(found, changes)


def _changed(found: "Workspace | None", changes: Mapping[str, object]) -> "tuple[Settings, tuple[str, ...]]":
    from ccot_cli.config import Settings, located, override

    given = located({name: value for name, value in changes.items() if value is not None}, Path.cwd())
    return override(found.settings if found else Settings(), given), tuple(given)


def between_zero_and_one(ratios: list[Decimal] | None, settings: "Settings") -> list[Decimal]:
    """The ratios asked for, else those of the settings, for stages that select tokens.

    Raises:
        UsageError: for 0 or 1, where there is nothing to select.
    """
    for each in ratios or ():
        try:
            check_between(each)
        except ValueError as error:
            baseline = "cot" if each else "direct"
            raise UsageError(str(error), fix=f"ccot train-baseline {baseline}, or a ratio between 0 and 1") from None
    return list(ratios or settings.ratios)
