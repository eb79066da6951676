"""`ccot status`: show what a workspace holds."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ccot_cli.cli.console import counted, print_json, print_line, print_note, print_table
from ccot_cli.cli.curves import draw_curves
from ccot_cli.cli.options import WHERE, FormatOption, WorkspaceOption, find_workspace
from ccot_cli.cli.plots import check_plot
from ccot_cli.errors import CorruptError
from ccot_cli.files import human_bytes
from ccot_cli.names import EVAL, KEYED_STAGES, OPTIONAL_STAGES, STAGES, TRAIN_PSI, ratio_name

if TYPE_CHECKING:
    from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class StatusRow:
    """One artifact, finished or not."""

    stage: str
    key: str | None
    state: str
    reason: str = ""
    bytes: int | None = None
    created: str | None = None
    summary: dict[str, Any] | None = None


def status(
    folder: WorkspaceOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw loss and validation of all trainings, finished or not, into a .png or .svg.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    format: FormatOption = "text",
) -> None:
    """Show what is done in a workspace, what is out of date, and what comes next.

    ccot status -w my-run
    ccot status --plot curves.svg
    ccot status --format json | jq -r .next
    """
    workspace = find_workspace(folder)
    if plot:
        check_plot(plot)
        count = draw_curves(workspace, plot)
        print_note(f"{counted(count, 'trainings')} drawn into {plot}")
    rows = [_row(workspace, stage, key) for stage in STAGES for key in _keys(workspace, stage)]
    next_command = _next_command(workspace, rows)
    if format == "json":
        model, data = _origin(workspace)
        head = {"workspace": str(workspace.root), "model": model["name"], "data": data["source"]}
        artifacts = [asdict(row) for row in rows]
        print_json({**head, "artifacts": artifacts, "cache_bytes": workspace.cache_bytes(), "next": next_command})
        return
    print_line(_title(workspace))
    print_table([_cells(row, datetime.now().astimezone()) for row in rows], align="<<<>><", fits=True)
    if cached := workspace.cache_bytes():
        print_line(f"{human_bytes(cached)} in {workspace.cache} may be deleted at any time; training makes it again")
    print_line(f"next:  {next_command}")


def _keys(workspace: "Workspace", stage: str) -> Sequence[str | None]:
    """Return the keys of the artifacts that the settings ask for, and of any others that are finished or begun."""
    found = sorted({*filter(None, workspace.finished(stage)), *workspace.unfinished(stage)})
    if stage in OPTIONAL_STAGES:
        return found
    if stage in KEYED_STAGES:
        return sorted({*map(ratio_name, workspace.settings.ratios), *found})
    return found or [None]


def _row(workspace: "Workspace", stage: str, key: str | None) -> StatusRow:
    if stage == "eval" and key is None:
        return StatusRow(stage, key, "missing")
    try:
        state, artifact = workspace.state(stage, key), workspace.artifact(stage, key)
    except CorruptError as error:
        return StatusRow(stage, key, "corrupt", f"{error.message}; {error.fix}")
    if artifact is None:
        return StatusRow(stage, key, *state)
    manifest = artifact.manifest
    return StatusRow(stage, key, *state, artifact.num_bytes, manifest.created.isoformat(), manifest.summary)


def _next_command(workspace: "Workspace", rows: list[StatusRow]) -> str:
    """Return the command of the first stage that is not done for every ratio of the settings."""
    from ccot_cli.config import DataConfig
    from ccot_cli.data.problems import lacks_test

    ratios = {ratio_name(ratio): f"{ratio:f}" for ratio in workspace.settings.ratios}
    # What was imported, or what was deleted after training, is not made again for ratios that can answer.
    answering = {row.key for row in rows if row.stage == TRAIN_PSI and row.state == "ready"}
    for stage in STAGES:
        if stage in OPTIONAL_STAGES:
            continue
        wanted = [row for row in rows if row.stage == stage and (stage not in KEYED_STAGES or row.key in ratios)]
        left = [row.key for row in wanted if row.state != "ready" and not _is_spare(row, answering, {*ratios})]
        if any(row.state == "being made" for row in wanted):
            return workspace.command("status")  # There is nothing to do but wait.
        # One finished evaluation is enough; every other artifact must be there.
        if stage == EVAL and len(left) < len(wanted):
            continue
        if stage == EVAL and lacks_test(DataConfig(**_origin(workspace)[1])):
            return f"{workspace.command(stage)} --data FILE"
        if left:
            typed = workspace.typed_for(stage, left[0])
            ratios_left = [ratios[key] for key in left if key in ratios] if len(left) < len(wanted) else []
            return typed or workspace.command(stage, *(word for ratio in ratios_left for word in ("--ratio", ratio)))
    return workspace.command("ask", "…")


def _is_spare(row: StatusRow, answering: set[str | None], ratios: set[str]) -> bool:
    """Tell whether a missing artifact is needed by no ratio of the settings, because ψ is there already."""
    is_used_up = row.key in answering or (row.key is None and answering >= ratios)
    return row.stage != EVAL and row.state == "missing" and is_used_up


def _title(workspace: "Workspace") -> str:
    model, data = _origin(workspace)
    source = f"{data['source']} {data['subset']}" if data["subset"] else data["source"]
    return f"{workspace.name} · {model['name']} · {source}"


def _origin(workspace: "Workspace") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of model and data; options that were given to `precompute` count more than `ccot.yaml`."""
    settings = workspace.settings
    origin = {"model": settings.model.model_dump(), "data": settings.data.model_dump()}
    with suppress(CorruptError):
        if states := workspace.artifact("precompute"):
            for section, _, name in (each.partition(".") for each in states.manifest.overrides):
                # `precompute` does not record what the test problems are.
                if section in origin and name in (recorded := states.manifest.config[section]):
                    origin[section][name] = recorded[name]
    return origin["model"], origin["data"]


def _cells(row: StatusRow, now: datetime) -> list[str]:
    size = "" if row.bytes is None else human_bytes(row.bytes)
    created = "" if row.created is None else _when(datetime.fromisoformat(row.created).astimezone(), now)
    figures = [_figure(name, value) for name, value in (row.summary or {}).items() if name not in _NOT_SHOWN]
    remark = row.reason or " · ".join(filter(None, figures))
    return [f"  {row.stage}", row.key or "", row.state, size, created, remark]


_NOT_SHOWN = ("batch_tokens", "num_bytes", "ratio", "seconds")
"""Figures of a summary that the table leaves out."""


def _figure(name: str, value: object) -> str:
    """Show `num_shards=94` as `94 shards`, `train_loss=0.123` as `train loss 0.123`, a list or dict as nothing."""
    words = name.removeprefix("num_").replace("_", " ")
    match value:
        case bool() | None | dict() | list():
            return ""
        case int():
            if not name.startswith("num_"):
                return f"{words} {value:,}"
            return counted(value, words)
        case float():
            return f"{words} {value:.3g}"
    return f"{words} {value}"


def _when(moment: datetime, now: datetime) -> str:
    """Write a moment as people say it: `18:02`, `yesterday 18:02`, `2026-11-03 18:02`."""
    clock = moment.strftime("%H:%M")
    if moment.date() == now.date():
        return clock
    return f"yesterday {clock}" if moment.date() == now.date() - timedelta(days=1) else f"{moment.date()} {clock}"
