"""Options that several commands share, and how they change a workspace's settings."""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from ccot_cli.cli.console import print_note
from ccot_cli.errors import UsageError
from ccot_cli.names import (
    EMBEDDED,
    ENVIRONMENT_VARIABLE,
    MODELS,
    PRECOMPUTE,
    EngineName,
    MethodName,
    PromptingName,
    check_between,
    model_name_meant,
    parse_ratio,
)

if TYPE_CHECKING:
    from ccot_cli.config import Settings
    from ccot_cli.workspace.workspace import Workspace

command_line: ContextVar[tuple[str, ...]] = ContextVar("command_line", default=())
"""The words typed after `ccot`; manifests, the lock and errors repeat them."""

WHAT, HOW, WHERE = "What", "How", "Where"
"""The panels of `--help`."""

MODEL_AND_DATA = ("model", "data")
"""Sections of settings that `precompute` records, and later commands take from there."""


def read_ratio(text: str) -> Decimal:
    """Read a ratio from the command line.

    Raises:
        typer.BadParameter: if it is no number from 0 to 1.
    """
    try:
        return parse_ratio(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def read_confidence(text: str) -> float:
    """Read a confidence from the command line.

    Raises:
        typer.BadParameter: if it is no number from 0 to 1.
    """
    try:
        confidence = float(text)
    except ValueError:
        raise typer.BadParameter(f"a confidence is a number like 0.5, not {text!r}") from None
    if not 0 <= confidence <= 1:
        raise typer.BadParameter(f"a confidence lies between 0 and 1, not at {text}")
    return confidence


def starting_with(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Make a function that completes the beginning of a name, for the shell."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


METHOD_NAMES = (*get_args(MethodName), *get_args(PromptingName))
"""What may be asked and evaluated."""

WorkspaceOption = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        "-w",
        metavar="DIR",
        help=f"A folder with ccot.yaml. Default: ${ENVIRONMENT_VARIABLE}, else the nearest one from here upwards.",
        rich_help_panel=WHERE,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Base model (θ in the paper): 'embedded', 'smollm2', a folder, a .gguf file, or a Hugging Face name.",
        rich_help_panel=WHAT,
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="SOURCE",
        help="Problems: 'embedded', a .jsonl, .csv or .parquet file, or a Hugging Face data set.",
        rich_help_panel=WHAT,
    ),
]


def ratio_option(text: str) -> Any:
    """Make an option for one ratio or several."""
    return typer.Option("--ratio", "-r", parser=read_ratio, metavar="RATIO", help=text, rich_help_panel=WHAT)


def _ratios_option(default: str) -> Any:
    return ratio_option(
        f"Compression ratio (r in the paper) between 0 and 1; repeat it for several. Default: {default}."
    )


def method_option(text: str) -> Any:
    """Make the option of a command that takes a single method by its name."""
    return typer.Option(metavar="NAME", autocompletion=starting_with(METHOD_NAMES), help=text, rich_help_panel=WHAT)


def min_confidence_option(text: str) -> Any:
    """Make the option that lets the chain be written where a method is not sure."""
    return typer.Option("--min-confidence", parser=read_confidence, metavar="P", help=text, rich_help_panel=WHAT)


RatioOption = Annotated[list[Decimal] | None, _ratios_option("those of ccot.yaml")]
TrainedRatioOption = Annotated[list[Decimal] | None, _ratios_option("all that were trained")]


def limit_option(text: str) -> Any:
    """Make the option that limits problems."""
    return typer.Option("--limit", min=1, metavar="N", help=text, rich_help_panel=WHAT)


def _check_steps(steps: tuple[int, int] | None) -> tuple[int, int] | None:
    if steps is None:
        return None
    from ccot_cli.config import check_steps

    try:
        return check_steps(steps)
    except ValueError as error:
        raise UsageError(f"--steps {steps[0]} {steps[1]}: {error}", fix="--steps 9 10") from None


StepsOption = Annotated[
    tuple[int, int] | None,
    typer.Option(
        "--steps",
        callback=_check_steps,
        metavar="MIN MAX",
        help="Only problems with MIN to MAX reasoning steps. Default: those of the settings, else any.",
        rich_help_panel=WHAT,
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Seed of all random choices.", rich_help_panel=HOW)
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.", rich_help_panel=HOW),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        metavar="N",
        help="Threads of the CPU. Default: as many as other processes leave cores free.",
        rich_help_panel=HOW,
    ),
]
EngineOption = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help="fast, or reference: the paper's algorithm, token by token. The answers agree up to rounding.",
        rich_help_panel=HOW,
    ),
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", min=1, metavar="N", help="Passes over the data.", rich_help_panel=HOW)
]
StartOption = Annotated[
    str | None,
    typer.Option("--start", metavar="FOLDER", help="Adapter to start from, such as another ψ.", rich_help_panel=HOW),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set any setting of ccot.yaml, such as train_phi.batch_size=32; repeat it for several.",
        rich_help_panel=HOW,
    ),
]
KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="KEY",
        help="A key of 'ccot status', such as r0.10, direct or pause-r0.10, or a method's name for all its ratios;"
        " repeat it for several. Default: all that were trained with the settings of ccot.yaml.",
        rich_help_panel=WHAT,
    ),
]
FormatOption = Annotated[
    Literal["text", "json"], typer.Option("--format", help="Format of stdout.", rich_help_panel=HOW)
]

TableFormatOption = Annotated[
    Literal["text", "markdown", "latex", "json"],
    typer.Option("--format", help="Format of stdout.", rich_help_panel=HOW),
]


def psi_settings(
    *, epochs: int | None, start: str | None, seed: int | None, device: str | None, threads: int | None
) -> dict[str, object]:
    """Return the settings that the options of a training in ψ's place change; None changes nothing."""
    return {
        "train_psi.epochs": epochs,
        "train_psi.start": start,
        "train_psi.seed": seed,
        "model.device": device,
        "model.threads": threads,
    }


# The functions below import what reads settings: that import takes longer than all of `--help`.


def find_workspace_if_any(folder: Path | None) -> "Workspace | None":
    """Open the workspace of a command that can also do without one.

    Args:
        folder: The value of `--workspace`; None searches the environment and the folders from here upwards.

    Raises:
        UsageError: if the named folder is no workspace.
    """
    from ccot_cli.workspace.workspace import Workspace

    return Workspace.find(folder, os.environ, Path.cwd(), command_line.get())


def find_workspace(folder: Path | None) -> "Workspace":
    """Open the workspace of a command that needs one; see `find_workspace_if_any`.

    Raises:
        UsageError: if there is none.
    """
    workspace = find_workspace_if_any(folder)
    if workspace is None:
        raise UsageError("there is no workspace here", fix="ccot init my-run, or name one with -w")
    return workspace


def resolve(
    folder: Path | None,
    changes: Mapping[str, object],
    sets: Sequence[str] | None = None,
    *,
    fixed: Sequence[str] = (),
) -> "tuple[Workspace, Settings, tuple[str, ...]]":
    """Open the workspace and apply the options of the command line to its settings.

    Args:
        folder: The value of `--workspace`.
        changes: Values by setting, such as `data.limit`; None stands for an option that was not given.
        sets: The values of `--set`.
        fixed: Sections of which the command uses what `precompute` has recorded.

    Returns:
        The workspace, the changed settings, and the names of the settings that were given.

    Raises:
        UsageError: if there is no workspace, a value is refused, or a setting that is fixed is given.
    """
    workspace = find_workspace(folder)
    settings, given = _changed_settings(workspace, changes, sets or ())
    _refuse_fixed(workspace, given, fixed)
    return workspace, settings, given


def resolve_anywhere(
    folder: Path | None, changes: Mapping[str, object], sets: Sequence[str] | None = None
) -> "tuple[Workspace | None, Settings, tuple[str, ...]]":
    """Resolve as `resolve` does, but without a workspace take the settings of the model in the package.

    Raises:
        UsageError: if a value is refused, or the named folder is no workspace.
    """
    workspace = find_workspace_if_any(folder)
    return workspace, *_changed_settings(workspace, changes, sets or ())


def resolve_trained(
    folder: Path | None, changes: Mapping[str, object], sets: Sequence[str] | None = None
) -> "tuple[Workspace | None, Settings, tuple[str, ...]]":
    """Resolve as `resolve_anywhere` does, for a command that uses what a workspace has trained.

    Raises:
        UsageError: if a setting is given that training has fixed: it would have no effect.
    """
    workspace, settings, given = resolve_anywhere(folder, changes, sets)
    _refuse_fixed(workspace, given, MODEL_AND_DATA)
    return workspace, settings, given


def _refuse_fixed(workspace: "Workspace | None", given: Sequence[str], sections: Sequence[str]) -> None:
    """Refuse settings of sections that `precompute` has recorded, unless they do not change what it made."""
    from ccot_cli.config import WITHOUT_EFFECT

    free = {f"{section}.{name}" for section in sections for name in WITHOUT_EFFECT[section]}
    fixed = [name for name in given if name.partition(".")[0] in sections and name not in free]
    if fixed and workspace and workspace.artifact(PRECOMPUTE):
        raise UsageError(
            f"{fixed[0]} has no effect: {workspace.name} was trained with its own",
            fix="leave it out, or train in another workspace: ccot init",
        )


def _changed_settings(
    workspace: "Workspace | None", changes: Mapping[str, object], sets: Sequence[str]
) -> "tuple[Settings, tuple[str, ...]]":
    from ccot_cli.config import Settings
    from ccot_cli.overrides import override, with_absolute_paths

    options = {name: value for name, value in changes.items() if value is not None}
    given = with_absolute_paths({**options, **read_sets(sets, options)}, Path.cwd())
    return override(workspace.settings if workspace else Settings(), given), tuple(given)


def read_sets(texts: Sequence[str], options: Collection[str] = ()) -> dict[str, object]:
    """Read the values of `--set`, by setting.

    Args:
        options: Settings that other options give.

    Raises:
        UsageError: if one is no setting with a value, or is given twice.
    """
    given: dict[str, object] = {}
    for name, value in map(read_set, texts):
        if name in given or name in options:
            raise UsageError(f"{name} is given twice", fix=f"leave out --set {name}=…, or the other")
        given[name] = value
    return given


def read_set(text: str) -> tuple[str, object]:
    """Read `NAME=VALUE`, whose value is YAML, as in `ccot.yaml`."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise UsageError(f"--set {text} is no setting with a value", fix="--set train_phi.batch_size=32")
    return name.strip(), _read_value(value)


def read_vary(text: str) -> tuple[str, list[object]]:
    """Read `SECTION.SETTING=V1,V2,...`, whose values are YAML; paths among them are those of the current folder.

    Raises:
        UsageError: if it is no setting of a section, or a value is missing.
    """
    from ccot_cli.overrides import with_absolute_paths

    name, _, listed = text.partition("=")
    name, values = name.strip(), listed.split(",")
    if not re.fullmatch(r"\w+\.\w+", name) or not all(map(str.strip, values)):
        raise UsageError(
            f"--vary {text} is no setting of a section with values", fix="--vary train_phi.learning_rate=0.005,0.01"
        )
    changes = [with_absolute_paths({name: _read_value(value.strip())}, Path.cwd()) for value in values]
    return name, [change[name] for change in changes]


def _read_value(text: str) -> object:
    import yaml

    try:
        read = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError):
        # Also for a tag that its value does not fit, such as `!!int`: the text is then refused like any other.
        read = text
    # No setting is a mapping, so `Q: {question}` is text. Text without quotes is taken as it is: YAML would end it at a
    # `#`, and drop spaces around it.
    if read is None:
        return None if text.strip().lower() in ("", "null", "~") else text
    is_quoted = text.lstrip().startswith(('"', "'", "|", ">"))
    return text if isinstance(read, dict) or (isinstance(read, str) and not is_quoted) else read


def announce_unpacking(model: str) -> bool:
    """Say that a GGUF file will be unpacked, if it was not yet; return whether the model is such a file."""
    from ccot_cli.models.base.gguf import gguf_file, unpacked_folder

    file = gguf_file(model)
    if file and not (folder := unpacked_folder(file)).exists():
        print_note(f"unpacking {file.name} once, into {folder} …")
    return file is not None


def _may_be_on_hub(name: str) -> bool:
    return not name.startswith((".", "/", "~")) and not Path(name).exists()


def announce_data(source: str) -> None:
    """Say that a data set is looked for on the hub, which takes a while; nothing for other sources."""
    from ccot_cli.data.rows import names_file

    if source != EMBEDDED and not names_file(source) and _may_be_on_hub(source):
        print_note(f"looking for data set {source} on the Hugging Face hub …")


def announce_model(model: str) -> None:
    """Say that a model is looked for on the hub or unpacked, which takes a while; nothing for other models."""
    if announce_unpacking(model):
        return
    if model not in MODELS and not model_name_meant(model) and _may_be_on_hub(model):
        print_note(f"looking for model {model} on the Hugging Face hub …")


def between_zero_and_one(ratios: list[Decimal] | None, settings: "Settings") -> list[Decimal]:
    """Return the given ratios, or else those of the settings, for stages that select tokens.

    Raises:
        UsageError: for 0 or 1, at which there is nothing to select.
    """
    for ratio in ratios or ():
        try:
            check_between(ratio)
        except ValueError as error:
            baseline = "cot" if ratio else "direct"
            raise UsageError(str(error), fix=f"ccot train-baseline {baseline}, or a ratio between 0 and 1") from None
    return list(ratios or settings.ratios)
