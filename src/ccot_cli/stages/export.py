"""Write trained methods into an archive: all that answering needs, and nothing more."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccot_cli.config import PATH_SETTINGS, ModelConfig, Settings, by_dotted_name
from ccot_cli.data.rows import names_file
from ccot_cli.errors import CorruptError, MissingError, UsageError
from ccot_cli.files import check_new, json_bytes, sha256_of, strict_json
from ccot_cli.models.base.merged import adapter_files, adapter_hash
from ccot_cli.names import (
    CCOT,
    EVAL,
    METRICS_FILE,
    MODELS,
    PRECOMPUTE,
    SETTINGS_FILE,
    TRAIN_DECODER,
    TRAIN_PSI,
    parse_ratio,
)
from ccot_cli.overrides import override
from ccot_cli.presets import settings_text
from ccot_cli.stages.card import card
from ccot_cli.stages.inputs import recorded_model
from ccot_cli.stages.methods import own_methods
from ccot_cli.stages.problems import recorded_data
from ccot_cli.version import __version__
from ccot_cli.workspace.archive import (
    ADAPTER_FILES,
    ADAPTER_FOLDER,
    ARCHIVE_FORMAT,
    CARD_FILE,
    RESULTS_FILE,
    SETTINGS_TITLE,
    ArchivedMethod,
    ArchivedModel,
    ArchiveIndex,
    Contents,
    write_archive,
)
from ccot_cli.workspace.artifact import MANIFEST_FILE, Artifact, FileRecord, Manifest, manifest_bytes
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class ExportResult:
    """What was written."""

    file: str
    num_bytes: int
    methods: list[str]
    """Stage and key of each."""
    model: str
    """The θ that they need; it is not in the archive."""
    is_model_local: bool
    """Whether θ is a folder or a file, which whoever imports the archive has to have."""
    num_results: int
    """Evaluations whose figures are in it."""


def run(workspace: Workspace, target: Path, keys: Sequence[str] = (), *, force: bool = False) -> ExportResult:
    """Write trained methods, settings, results and a card into a file.

    Args:
        keys: Of the methods, such as `r0.10` or `direct`, or their names; by default all that were trained with the
            workspace's own settings.
        force: Replace a file that exists.

    Raises:
        UsageError: if the file exists, is a folder, or would be in a folder that does not exist.
        MissingError: if a method was not trained.
        CorruptError: if a file is damaged.
        ResourceError: if the disk is full.
    """
    if not target.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", fix=f"mkdir {shlex.quote(str(target.parent))}")
    if target.is_dir():
        raise UsageError(f"{target} is a folder", fix="name a file in it, or another one")
    if not force:
        check_new(target, fix="name another file, or replace it with --force")
    index, contents = collect(workspace, keys)
    write_archive(target, index, contents)
    results = contents.get(RESULTS_FILE)
    return ExportResult(
        file=str(target),
        num_bytes=target.stat().st_size,
        methods=[f"{each.stage}/{each.key}" for each in index.methods],
        model=index.model.name,
        is_model_local=index.model.is_local,
        num_results=len(strict_json(results)) if isinstance(results, bytes) else 0,
    )


def collect(workspace: Workspace, keys: Sequence[str] = ()) -> tuple[ArchiveIndex, Contents]:
    """Return an archive's index and its other files; see `run`."""
    methods = _choose(workspace, keys)
    source = workspace.artifact(PRECOMPUTE) or workspace.require(PRECOMPUTE)
    # Not what ccot.yaml names by now.
    recorded = recorded_model(workspace.settings, source)
    model, data = source.read_as(ModelConfig, recorded), recorded_data(workspace.settings, source)
    settings = _portable_settings(workspace.settings.model_copy(update={"model": model, "data": data}))
    contents: dict[str, bytes | Path] = {SETTINGS_FILE: settings_text(settings, SETTINGS_TITLE).encode()}
    records: dict[str, FileRecord] = {}
    exported = [*methods, *_decoders(workspace, methods)]
    for artifact in (source, *exported):
        contents[f"{artifact.name}/{MANIFEST_FILE}"] = manifest_bytes(_portable_manifest(artifact.manifest))
    for artifact in exported:
        artifact.check()
        contents |= {f"{artifact.name}/{name}": artifact.path(name) for name in artifact.manifest.files}
        records |= {f"{artifact.name}/{name}": record for name, record in artifact.manifest.files.items()}
    files = _adapter(workspace, source, model.adapter) if model.adapter else {}
    contents |= files
    records |= {name: FileRecord(sha256=sha256_of(path), size=path.stat().st_size) for name, path in files.items()}
    if results := _results(workspace, methods):
        contents[RESULTS_FILE] = json_bytes(results)
    records |= {name: _record(content) for name, content in contents.items() if isinstance(content, bytes)}
    index = ArchiveIndex(
        format=ARCHIVE_FORMAT,
        ccot=__version__,
        model=_model(source),
        methods=[_describe(artifact) for artifact in exported],
        files=dict(sorted(records.items())),
    )
    contents[CARD_FILE] = card(index, settings, source, methods, results).encode()
    return index, contents


def _choose(workspace: Workspace, keys: Sequence[str]) -> list[Artifact]:
    """Find the artifacts of methods by their keys or names, all if none is given."""
    usable, unusable = own_methods(workspace)
    chosen = [each for each in usable if not keys or {each.manifest.key, _describe(each).method} & {*keys}]
    found = {name for each in chosen for name in (each.manifest.key, _describe(each).method)}
    for key in keys or unusable:
        if key in unusable:
            raise unusable[key]
        if key not in found:
            trained = ", ".join(str(each.manifest.key) for each in usable) or "none"
            raise MissingError(
                f"no method {key} was trained in {workspace.name} (trained: {trained})", fix=workspace.command("status")
            )
    if not chosen:
        raise MissingError(f"no method was trained in {workspace.name}", fix=workspace.command("status"))
    return chosen


def _decoders(workspace: Workspace, methods: Sequence[Artifact]) -> list[Artifact]:
    """Return the chain decoders of these methods that were trained, and are not stale."""
    keys = {each.manifest.key for each in methods if each.manifest.stage == TRAIN_PSI}
    return [workspace.require(TRAIN_DECODER, key) for key in workspace.keys(TRAIN_DECODER) if key in keys]


def _describe(artifact: Artifact) -> ArchivedMethod:
    manifest = artifact.manifest
    ratio = f"{parse_ratio(manifest.summary['ratio']):f}"
    method = manifest.summary.get("method", CCOT)
    return ArchivedMethod(stage=manifest.stage, key=str(manifest.key), method=method, ratio=ratio)


def _model(source: Artifact) -> ArchivedModel:
    recorded = source.manifest.config["model"]
    return ArchivedModel(
        name=_portable("model.name", recorded["name"]),
        revision=recorded["revision"],
        fingerprint=source.manifest.inputs["model"],
        is_local=_is_local(recorded["name"]),
        has_adapter="adapter" in source.manifest.inputs,
    )


def _adapter(workspace: Workspace, source: Artifact, folder: str) -> dict[str, Path]:
    """Return the files of the adapter that was merged into θ, by their names in the archive."""
    if adapter_hash(folder) != source.manifest.inputs["adapter"]:
        raise CorruptError(
            f"adapter {folder} has changed since {source.folder} was made with it",
            fix=f"put it back, or run {workspace.command(PRECOMPUTE)!r} again",
        )
    return dict(zip(ADAPTER_FILES, adapter_files(folder), strict=True))


def _is_local(name: object) -> bool:
    """Tell whether a setting names a file or folder of this machine."""
    is_path = isinstance(name, str) and name not in MODELS
    return is_path and (str(name).startswith((".", "/", "~")) or Path(str(name)).exists())


def _portable(name: str, value: Any) -> Any:
    """Return a setting as others can use it: of a path what it ends with, of the adapter its place in the archive.

    Where something lies on this machine concerns nobody else, and what training started from is not in the archive.
    """
    if name.endswith(".start") and _is_local(value):
        return None
    if value is not None and name == "model.adapter":
        return ADAPTER_FOLDER
    return Path(value).name if name in PATH_SETTINGS and _is_local(value) else value


def _portable_settings(settings: Settings) -> Settings:
    values = by_dotted_name(settings.model_dump())
    return override(settings, {name: _portable(name, values[name]) for name in PATH_SETTINGS})


def _portable_manifest(manifest: Manifest) -> Manifest:
    """Return a manifest without paths and without the command line; its fingerprint is the same."""
    config = {
        section: {name: _portable(f"{section}.{name}", value) for name, value in values.items()}
        for section, values in manifest.config.items()
    }
    return manifest.model_copy(update={"config": config, "command": ()})


def _results(workspace: Workspace, methods: Sequence[Artifact]) -> list[dict[str, Any]]:
    """Return the figures that evaluations of the workspace, or of where it was imported from, give of these methods."""
    found: list[dict[str, Any]] = []
    if (imported := workspace.root / RESULTS_FILE).is_file():
        found += _imported_results(imported)
    for key in workspace.finished(EVAL):
        if artifact := workspace.artifact(EVAL, key):
            artifact.check(METRICS_FILE)
            metrics = strict_json(artifact.path(METRICS_FILE).read_bytes())
            kept = {name: metrics[name] for name in ("rows", "batch_size", "device", "versions")}
            data, asked = _portable("data.source", metrics["data"]), artifact.manifest.config
            which = {
                "split": None if names_file(metrics["data"]) else asked["data"]["test_split"],
                "seed": asked["eval"]["seed"],
                "steps": asked["eval"]["steps"],
            }
            found.append({"run": key, "inputs": artifact.manifest.inputs, "data": data, **which, **kept})
    ours = [{**each, "rows": _rows(each, methods)} for each in found]
    return [each for each in ours if each["rows"]]


def _imported_results(path: Path) -> list[dict[str, Any]]:
    try:
        results = strict_json(path.read_bytes())
    except ValueError:
        results = None
    if not isinstance(results, list) or not all(
        isinstance(each, dict) and {"rows", "inputs"} <= each.keys() for each in results
    ):
        raise CorruptError(f"{path} does not hold the results of an import", fix="move or remove it")
    return results


def _rows(result: Mapping[str, Any], methods: Sequence[Artifact]) -> list[dict[str, Any]]:
    """Return the rows of the methods that were the same when they were evaluated, and of θ's chain beside them."""
    evaluated = [each for each in methods if result["inputs"].get(each.name) == each.fingerprint]
    names = {(each.method, float(each.ratio)) for each in map(_describe, evaluated)}
    if names and "train-baseline/cot" not in result["inputs"]:
        names.add(("cot", 1.0))
    return [row for row in result["rows"] if (row["method"], row["ratio"]) in names]


def _record(content: bytes) -> FileRecord:
    return FileRecord(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
