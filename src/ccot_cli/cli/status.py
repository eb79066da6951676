"""Show what a workspace holds."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ccot_cli.cli.console import print_json, print_line, print_table
from ccot_cli.cli.options import FormatOption, WorkspaceOption, find_workspace
from ccot_cli.errors import CorruptError
from ccot_cli.files import human_bytes
from ccot_cli.names import KEYED_STAGES, STAGES, ratio_name

if TYPE_CHECKING:
    from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class Row:
    """One artifact, there or still to be made."""

    stage: str
    key: str | None
    state: str
    reason: str = ""
    bytes: int | None = None
    created: str | None = None
    summary: dict[str, Any] | None = None


def status(workspace: WorkspaceOption = None, format: FormatOption = "text") -> None:
    """Show what is done in a workspace, what is out of date, and what comes next.

    ccot status -w my-run
    ccot status --format json | jq -r .next
    """
    found = find_workspace(workspace)
    rows = [_row(found, stage, key) for stage in STAGES for key in _keys(found, stage)]
    following = _next_command(found, rows)
    if format == "json":
        model, data = _origin(found)
        head = {"workspace": str(found.root), "model": model["name"], "data": data["source"]}
        artifacts = [asdict(row) for row in rows]
        print_json({**head, "artifacts": artifacts, "cache_bytes": found.cache_bytes(), "next": following})
        return
    print_line(_title(found))
    print_table([_cells(row, datetime.now().astimezone()) for row in rows], align="<<<>><")
    if cached := found.cache_bytes():
        print_line(f"{human_bytes(cached)} in {found.cache} may be deleted at any time; training makes it again")
    print_line(f"next:  {following}")


def _keys(workspace: "Workspace", stage: str) -> Sequence[str | None]:
    """The artifacts that the settings ask for, and those that are there besides."""
    there = workspace.finished(stage)
    if stage == "train-baseline":
        return there
    if stage in KEYED_STAGES:
        return sorted({*map(ratio_name, workspace.settings.ratios), *filter(None, there)})
    return there or [None]


def _row(workspace: "Workspace", stage: str, key: str | None) -> Row:
    if stage == "eval" and key is None:
        return Row(stage, key, "missing")
    try:
        state, artifact = workspace.state(stage, key), workspace.artifact(stage, key)
    except CorruptError as error:
        return Row(stage, key, "corrupt", f"{error.message}; {error.fix}")
    if artifact is None:
        return Row(stage, key, *state)
    manifest = artifact.manifest
    return Row(stage, key, *state, artifact.num_bytes, manifest.created.isoformat(), manifest.summary)


def _next_command(workspace: "Workspace", rows: list[Row]) -> str:
    wanted = {ratio_name(ratio): f"{ratio:f}" for ratio in workspace.settings.ratios}
    for stage in STAGES:
        if stage == "train-baseline":
            continue  # Nobody needs one.
        those = [row for row in rows if row.stage == stage and (stage not in KEYED_STAGES or row.key in wanted)]
        left = [row.key for row in those if row.state != "ready"]
        if any(row.state == "being made" for row in those):
            return workspace.command("status")  # There is nothing to do but wait.
        # One finished run is enough to have evaluated; every other artifact must be there.
        if stage == "eval" and len(left) < len(those):
            continue
        if left:
            typed = workspace.typed_for(stage, left[0])
            some = [wanted[key] for key in left if key in wanted] if len(left) < len(those) else []
            return typed or workspace.command(stage, *(word for ratio in some for word in ("--ratio", ratio)))
    return workspace.command("ask", "…")


def _title(workspace: "Workspace") -> str:
    model, data = _origin(workspace)
    source = f"{data['source']} {data['subset']}" if data["subset"] else data["source"]
    return f"{workspace.name} · {model['name']} · {source}"


def _origin(workspace: "Workspace") -> tuple[dict[str, Any], dict[str, Any]]:
    """Model and data: what the settings name, but what `precompute` was given on its command line stands."""
    settings = workspace.settings
    origin = {"model": settings.model.model_dump(), "data": settings.data.model_dump()}
    with suppress(CorruptError):
        if made := workspace.artifact("precompute"):
            for section, _, name in (each.partition(".") for each in made.manifest.overrides):
                if section in origin:
                    origin[section][name] = made.manifest.config[section].get(name)
    return origin["model"], origin["data"]


def _cells(row: Row, now: datetime) -> list[str]:
    size = "" if row.bytes is None else human_bytes(row.bytes)
    made = "" if row.created is None else _when(datetime.fromisoformat(row.created).astimezone(), now)
    figures = [_figure(name, value) for name, value in (row.summary or {}).items() if name not in _NOT_SHOWN]
    said = row.reason or " · ".join(filter(None, figures))
    return [f"  {row.stage}", row.key or "", row.state, size, made, said]


_NOT_SHOWN = ("batch_tokens", "num_bytes", "ratio", "seconds")
"""Figures of a summary that the table shows elsewhere, or nobody asks for."""


def _figure(name: str, value: object) -> str:
    """`num_shards=94` as `94 shards`, `train_loss=0.123` as `train loss 0.123`; nothing for what is no figure."""
    words = name.removeprefix("num_").replace("_", " ")
    match value:
        case bool() | None | dict() | list():
            return ""
        case int():
            return f"{value:,} {words}" if name.startswith("num_") else f"{words} {value:,}"
        case float():
            return f"{words} {value:.3g}"
    return f"{words} {value}"


def _when(moment: datetime, now: datetime) -> str:
    """A moment as people say it: `18:02`, `yesterday 18:02`, `2026-11-03 18:02`."""
    clock = moment.strftime("%H:%M")
    if moment.date() == now.date():
        return clock
    return f"yesterday {clock}" if moment.date() == now.date() - timedelta(days=1) else f"{moment.date()} {clock}"
