"""Find what is damaged in a workspace, remove what can be made again for certain, and what nothing uses any more."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ccot_cli.errors import CorruptError
from ccot_cli.files import PART, is_sealed
from ccot_cli.names import PRECOMPUTE, SCORE, STAGES
from ccot_cli.workspace.artifact import (
    MANIFEST_FILE,
    NEW,
    OTHER_BYTES,
    RETIRED,
    Artifact,
    read_whole,
)
from ccot_cli.workspace.build import BUILDING_FILE, read_draft, remove, settle
from ccot_cli.workspace.lock import lock
from ccot_cli.workspace.workspace import Workspace, queries_prefix

DERIVED = (PRECOMPUTE, SCORE)
"""Stages whose files follow from model and data alone, byte by byte: a damaged one may go, because it comes back."""


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written."""

    path: Path
    reason: str
    fix: str
    """What to do if it is not removed for you."""
    command: str
    """What makes the file again once it is removed; empty if the next training does, without being asked."""
    is_derived: bool
    """Whether it may be removed unasked, because the command makes the same bytes again and nothing else."""


@dataclass(frozen=True)
class Findings:
    """What a look at every byte has found."""

    num_artifacts: int
    num_files: int
    damages: list[Damage]


def verify(workspace: Workspace, advance: Callable[[], None] = lambda: None) -> Findings:
    """Read every file of the finished artifacts and every cached query, and compare it with its hash.

    Args:
        advance: Called after each artifact.
    """
    damages: list[Damage] = []
    names = finished_artifacts(workspace)
    num_files = 0
    for stage, key in names:
        found, count = _verify_artifact(workspace, stage, key)
        damages += found
        num_files += count
        advance()
    for path in workspace.cached_queries():
        if path.suffix == PART:
            continue
        with suppress(FileNotFoundError):  # A training deletes those of other problems, whoever reads them.
            if not is_sealed(path):
                damages.append(Damage(path, OTHER_BYTES, "remove it", "", is_derived=True))
            num_files += 1
    return Findings(len(names), num_files, damages)


def finished_artifacts(workspace: Workspace) -> list[tuple[str, str | None]]:
    """Return stage and key of every finished artifact."""
    return [(stage, key) for stage in STAGES for key in workspace.finished(stage)]


def _verify_artifact(workspace: Workspace, stage: str, key: str | None) -> tuple[list[Damage], int]:
    """Return the damages of one artifact, and its number of files."""
    folder = workspace.folder(stage, key)

    def read(artifact: Artifact | None) -> tuple[list[Damage], int]:
        artifact = artifact and workspace.artifact(stage, key)
        if artifact is None or (stage == PRECOMPUTE and artifact.is_bare()):
            return [], 0
        found = [_damage(workspace, artifact, path, reason) for path, reason in artifact.damaged()]
        return found, len(artifact.manifest.files)

    try:
        return read_whole(folder, read)
    except CorruptError as error:
        return [Damage(folder, error.message, error.fix, workspace.command_for(stage, key), is_derived=False)], 0


def _damage(workspace: Workspace, artifact: Artifact, path: Path, reason: str) -> Damage:
    stage, key = artifact.manifest.stage, artifact.manifest.key
    command = workspace.command_for(stage, key)
    # A stage makes a file again if it is missing or has another size; it does not check the content.
    fix = f"remove it, then {command}" if reason == OTHER_BYTES else command
    return Damage(path, reason, fix, command, is_derived=stage in DERIVED)


def repair(workspace: Workspace, advance: Callable[[], None] = lambda: None) -> tuple[Findings, list[Damage]]:
    """Inspect, then remove the damaged files that come back byte by byte, and those that were never written to the end.

    Returns:
        What was found, and the damages that were removed; the others are left for the user to decide.

    Raises:
        BusyError: if another process works on this workspace.
        UsageError: if the workspace cannot be written to.
    """
    with lock(workspace.root, workspace.typed):
        found = verify(workspace, advance)
        derived = [each for each in found.damages if each.is_derived]
        for path in (*(each.path for each in derived), *_partial_files(workspace)):
            remove(path)
    return found, derived


@dataclass(frozen=True)
class Leftover:
    """A file or folder that nothing uses any more."""

    path: Path
    reason: str
    num_bytes: int


def leftovers(workspace: Workspace) -> list[Leftover]:
    """Find what interrupted commands have left for good, and cached queries of other problems or models.

    Work that the same command would resume is not among it.
    """
    found: dict[Path, str] = {}
    for folder in _artifact_folders(workspace):
        found |= dict(_left_beside(workspace, folder))
    found |= dict.fromkeys(_partial_files(workspace), "was being written")
    source = workspace.artifact(PRECOMPUTE)
    for path in workspace.cached_queries():
        if source is None or not path.name.startswith(queries_prefix(source)):
            found.setdefault(path, "cached queries of other problems, or of another model")
    inner = {path for path in found if any(parent in found for parent in path.parents)}
    return [Leftover(path, found[path], _size(path)) for path in sorted(found) if path not in inner]


def clean(workspace: Workspace, chosen: list[Leftover]) -> int:
    """Remove leftovers, unless they have come into use since, and return the number of bytes.

    Raises:
        BusyError: if another process works on this workspace.
        UsageError: if the workspace cannot be written to.
    """
    freed = 0
    with lock(workspace.root, workspace.typed):
        for folder in _artifact_folders(workspace):
            settle(folder)
        still = {each.path for each in leftovers(workspace)}
        for each in chosen:
            if each.path in still or not each.path.exists():
                remove(each.path)
                freed += each.num_bytes
    return freed


def drop_begun(workspace: Workspace, stage: str, but: Path) -> None:
    """Remove what killed attempts at a stage have left, if the stage never resumes one. Call it under the lock.

    Args:
        but: Folder of the attempt that is at work.
    """
    for folder in _artifact_folders(workspace):
        if folder.parent == but.parent == workspace.folder(stage) and folder != but:
            with suppress(CorruptError):  # A damaged manifest is for `verify` to name.
                settle(folder)
            if not (folder / MANIFEST_FILE).exists():
                remove(folder)


def _artifact_folders(workspace: Workspace) -> list[Path]:
    """Return the folders of all artifacts, finished, begun or retired; each once, under its final name."""
    names = {(stage, None) for stage in STAGES} | {
        (stage, path.name.removesuffix(NEW).removesuffix(RETIRED))
        for stage in STAGES
        for path in workspace.folder(stage).glob("*/")
        if any((path / name).exists() for name in (MANIFEST_FILE, BUILDING_FILE)) or path.suffix in (NEW, RETIRED)
    }
    return sorted(workspace.folder(stage, key) for stage, key in names)


def _left_beside(workspace: Workspace, folder: Path) -> Iterator[tuple[Path, str]]:
    new, retired = folder.with_name(folder.name + NEW), folder.with_name(folder.name + RETIRED)
    if (folder / MANIFEST_FILE).exists():
        if retired.exists():
            yield retired, "was replaced"
        if (folder / BUILDING_FILE).exists() and (artifact := Artifact.open(folder)):
            kept = {MANIFEST_FILE, *(name.split("/")[0] for name in artifact.manifest.files)}
            yield from ((path, "served to resume") for path in folder.iterdir() if path.name not in kept)
    for place in (new, folder):
        if (
            place.exists()
            and not (place / MANIFEST_FILE).exists()
            and (place == new or (place / BUILDING_FILE).exists())
        ):
            draft = read_draft(place)
            if draft is None or workspace.is_outdated(draft):
                yield place, "begun with settings or inputs that have changed since"


def _partial_files(workspace: Workspace) -> list[Path]:
    """Return files that were being written when a process was killed; call it under the lock, or only to show them."""
    folders = [workspace.root, workspace.cache, *(workspace.folder(stage) for stage in STAGES)]
    top = [path for folder in folders[:2] for path in folder.glob(f"*{PART}")]
    return top + [path for folder in folders[2:] for path in folder.rglob(f"*{PART}")]


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    return sum(each.lstat().st_size for each in files)
