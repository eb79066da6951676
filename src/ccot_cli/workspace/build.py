"""Make an artifact: keep what an interrupted attempt has finished, and put the result in place in one step."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ccot_cli.files import PART, flush_to_disk, sha256_of, write_json
from ccot_cli.workspace.artifact import MANIFEST_FILE, Artifact, FileRecord, Manifest, now

BUILDING_FILE = "building.json"
NEW, RETIRED = ".new", ".old"
"""Suffixes of the folders beside an artifact's: of one that will replace it, and of one that was replaced."""


@dataclass
class Build:
    """An artifact in the making."""

    folder: Path
    is_resumed: bool
    """Whether the folder holds what an earlier attempt at the same work has finished."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Figures for `status`, to be filled in."""
    _scratch: list[Path] = field(default_factory=list)
    _noted: dict[Path, tuple[tuple[int, int], str]] = field(default_factory=dict)

    def note(self, path: Path) -> None:
        """Hash a file that is finished while others are still being made; unless it changes, it is not read again."""
        before = _stamp(path)
        self._noted[path] = before, sha256_of(path)

    def _hash(self, path: Path) -> str:
        stamp, known = self._noted.get(path, (None, ""))
        return known if stamp == _stamp(path) else sha256_of(path)

    def scratch(self, name: str) -> Path:
        """The path of a file that serves to resume and is no part of the result."""
        self._scratch.append(self.folder / name)
        return self._scratch[-1]

    def finish(self, draft: Manifest, folder: Path) -> None:
        """Write the manifest, now that all it speaks of is on the disk, in the place of what was in `folder` before."""
        manifest = draft.model_copy(update={"files": self._records(), "created": now(), "summary": self.summary})
        passing = [path.relative_to(self.folder) for path in (*self._scratch, self.folder / BUILDING_FILE)]
        retired = folder.with_name(folder.name + RETIRED)
        if self.folder != folder:
            remove(retired)
            if folder.exists():
                folder.rename(retired)
            self.folder.rename(folder)
            flush_to_disk(folder.parent)
        write_json(folder / MANIFEST_FILE, manifest.model_dump(mode="json"))
        for path in (retired, *(folder / each for each in passing)):
            remove(path)

    def _records(self) -> dict[str, FileRecord]:
        records = {}
        for path in sorted(self.folder.rglob("*")):
            flush_to_disk(path)
            if path.is_file() and not self._is_left_out(path):
                name = path.relative_to(self.folder).as_posix()
                records[name] = FileRecord(sha256=self._hash(path), size=path.stat().st_size)
        return records

    def _is_left_out(self, path: Path) -> bool:
        is_scratch = any(path.is_relative_to(scratch) for scratch in self._scratch)
        return is_scratch or path.suffix == PART or path == self.folder / BUILDING_FILE


def open_folder(folder: Path, draft: Manifest, old: Artifact | None) -> bool:
    """Leave in the folder what may be kept, and return whether anything may."""
    folder.mkdir(parents=True, exist_ok=True)
    doomed = [path for path, _ in old.damaged()] if old and old.manifest.spec.request == draft.spec.request else []
    begun = begun_in(folder)
    is_resumed = bool(doomed) or (begun is not None and begun.spec.request == draft.spec.request)
    if not is_resumed:
        # First of all, for an artifact whose files are going must not exist.
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        doomed = list(folder.iterdir())
    else:
        # What a killed process was writing: our own partial files, and those that safetensors makes beside them.
        doomed += [path for path in folder.iterdir() if path.suffix == PART or path.name.startswith(".")]
    for path in doomed:
        remove(path)
    write_json(folder / BUILDING_FILE, draft.model_dump(mode="json"))
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    return is_resumed


def replacement_folder(folder: Path) -> Path:
    """Where an artifact is made that will take the place of a finished one."""
    return folder.with_name(folder.name + NEW)


def begun_in(folder: Path) -> Manifest | None:
    """The draft of an attempt that did not finish."""
    try:
        return Manifest.model_validate_json((folder / BUILDING_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _stamp(path: Path) -> tuple[int, int]:
    """Changes whenever a file is written to."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def remove(path: Path) -> None:
    """Delete a file, a link (never what it points to) or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
