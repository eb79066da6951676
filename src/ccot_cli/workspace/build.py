"""Make an artifact: reuse what an interrupted attempt has finished, and put the result in place in one step."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ccot_cli.files import PART, flush_to_disk, set_usual_mode, sha256_of, write_json
from ccot_cli.workspace.artifact import MANIFEST_FILE, Artifact, FileRecord, Manifest, now, write_manifest

BUILDING_FILE = "building.json"
NEW, RETIRED = ".new", ".old"
"""Suffixes of folders beside an artifact's: of one that will replace it, and of one that was replaced."""


@dataclass
class Build:
    """An artifact that is being made."""

    folder: Path
    is_resumed: bool
    """Whether the folder holds work that an earlier attempt at the same artifact has finished."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Figures for `status`, which the stage fills in."""
    _scratch: list[Path] = field(default_factory=list)
    _hashes: dict[Path, tuple[tuple[int, int], str]] = field(default_factory=dict)
    """Stamp and hash of files that were hashed early."""

    def hash_early(self, path: Path) -> None:
        """Hash a finished file while others are still being made, so that `finish` need not read it."""
        stamp = _stamp(path)  # Taken first, so that a change during the reading shows.
        self._hashes[path] = stamp, sha256_of(path)

    def _hash(self, path: Path) -> str:
        stamp, known = self._hashes.get(path, (None, ""))
        return known if stamp == _stamp(path) else sha256_of(path)

    def scratch(self, name: str) -> Path:
        """Return the path of a file or folder that serves to resume and is no part of the result."""
        self._scratch.append(self.folder / name)
        return self._scratch[-1]

    def finish(self, draft: Manifest, folder: Path) -> None:
        """Flush all files to the disk, move the build to `folder`, and then write the manifest.

        An artifact that was in `folder` is removed once the new one is complete.
        """
        manifest = draft.model_copy(update={"files": self._records(), "created": now(), "summary": self.summary})
        temporary = [path.relative_to(self.folder) for path in (*self._scratch, self.folder / BUILDING_FILE)]
        retired = folder.with_name(folder.name + RETIRED)
        if self.folder != folder:
            remove(retired)
            if folder.exists():
                folder.rename(retired)
            self.folder.rename(folder)
            flush_to_disk(folder.parent)
        write_manifest(folder / MANIFEST_FILE, manifest)
        for path in (retired, *(folder / name for name in temporary)):
            remove(path)

    def _records(self) -> dict[str, FileRecord]:
        """Flush all files and folders to the disk, and return the records of the files of the result."""
        records = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                set_usual_mode(path)
            flush_to_disk(path)
            if path.is_file() and not self._is_left_out(path):
                name = path.relative_to(self.folder).as_posix()
                records[name] = FileRecord(sha256=self._hash(path), size=path.stat().st_size)
        return records

    def _is_left_out(self, path: Path) -> bool:
        is_scratch = any(path.is_relative_to(scratch) for scratch in self._scratch)
        return is_scratch or path.suffix == PART or path == self.folder / BUILDING_FILE


def open_folder(folder: Path, draft: Manifest, old: Artifact | None) -> bool:
    """Prepare a folder to build in: remove from it what the new build cannot reuse.

    Args:
        draft: Manifest of the artifact that will be built.
        old: The finished artifact of that folder, if there is one. If it was made from the same settings and inputs,
            its damaged files are removed and the others are reused.

    Returns:
        Whether anything is reused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    useless = [path for path, _ in old.damaged()] if old and old.manifest.spec.request == draft.spec.request else []
    unfinished = read_draft(folder)
    is_resumed = bool(useless) or (unfinished is not None and unfinished.spec.request == draft.spec.request)
    if not is_resumed:
        # The manifest goes first: an artifact without its files must not seem to exist.
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        useless = list(folder.iterdir())
    else:
        # A killed process leaves partial files: ours, and hidden ones that safetensors writes beside them.
        useless += [path for path in folder.iterdir() if path.suffix == PART or path.name.startswith(".")]
    for path in useless:
        remove(path)
    write_json(folder / BUILDING_FILE, draft.model_dump(mode="json"))
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    return is_resumed


def left_over(artifact: Artifact) -> list[Path]:
    """Return what a process that was killed after it had written the manifest has left of its work."""
    folder = artifact.folder
    if not (folder / BUILDING_FILE).exists():
        return []
    kept = {MANIFEST_FILE, BUILDING_FILE, *(name.split("/")[0] for name in artifact.manifest.files)}
    others = [path for path in folder.iterdir() if path.name not in kept]
    # The draft goes last, because it tells that there is something to remove.
    return [folder.with_name(folder.name + RETIRED), *others, folder / BUILDING_FILE]


def replacement_folder(folder: Path) -> Path:
    """Return the folder in which an artifact is made that will replace the finished one of `folder`."""
    return folder.with_name(folder.name + NEW)


def read_draft(folder: Path) -> Manifest | None:
    """Return the manifest of an attempt that did not finish; None if there is no such attempt."""
    try:
        return Manifest.model_validate_json((folder / BUILDING_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _stamp(path: Path) -> tuple[int, int]:
    """Return a value that changes whenever a file is written to."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def remove(path: Path) -> None:
    """Delete a file, a link (never what it points to) or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
