"""Make an artifact: reuse what an interrupted attempt has finished, and put the result in place in one step."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from ccot_cli.errors import CorruptError
from ccot_cli.files import PART, flush_to_disk, set_usual_mode, sha256_of, write_json
from ccot_cli.workspace.artifact import (
    MANIFEST_FILE,
    NEW,
    RETIRED,
    Artifact,
    FileRecord,
    Manifest,
    now,
    write_manifest,
)

BUILDING_FILE = "building.json"


@dataclass
class Build:
    """An artifact that is being made."""

    folder: Path
    draft: Manifest
    """The manifest to be, with the files that are hashed so far: what is resumed is checked against it."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Figures for `status`, which the stage fills in."""
    draft_file: str = BUILDING_FILE
    made: dict[str, FileRecord] = field(default_factory=dict)
    """Files that this process has made and hashed early."""
    _scratch: list[Path] = field(default_factory=list)
    _hashes: dict[Path, tuple[tuple[int, int], str]] = field(default_factory=dict)
    """Stamp and hash of files that were hashed early."""

    def part(self, number: int) -> Self:
        """Return the build of one of several processes that make this artifact together, numbered from 0.

        Each writes its hashes into a draft of its own; an attempt that resumes reads all of them.
        """
        return replace(self, draft_file=f"{Path(BUILDING_FILE).stem}-{number}.json", made={}) if number else self

    def hash_early(self, path: Path) -> None:
        """Hash a finished file while others are still being made, so that `finish` need not read it.

        The hash is written down too: if this attempt is interrupted, the next one reuses the file only if it fits.
        """
        stamp = _stamp(path)  # Taken first, so that a change during the reading shows.
        self._hashes[path] = stamp, sha256_of(path)
        name = path.relative_to(self.folder).as_posix()
        self.draft.files[name] = self.made[name] = FileRecord(sha256=self._hashes[path][1], size=stamp[1])
        write_json(self.folder / self.draft_file, self.draft.model_dump(mode="json"))

    def drop_unknown(self) -> None:
        """Remove what an interrupted attempt has left and no hash vouches for."""
        for path in self.folder.iterdir():
            if path not in self._hashes and path.name != BUILDING_FILE:
                remove(path)

    def remember(self, records: Mapping[str, FileRecord]) -> None:
        """Take over the hashes of files that were checked against them just now."""
        for name, record in records.items():
            path = self.folder / name
            self._hashes[path] = _stamp(path), record.sha256

    def _hash(self, path: Path) -> str:
        stamp, known = self._hashes.get(path, (None, ""))
        return known if stamp == _stamp(path) else sha256_of(path)

    def scratch(self, name: str) -> Path:
        """Return the path of a file or folder that serves to resume and is no part of the result."""
        self._scratch.append(self.folder / name)
        return self._scratch[-1]

    def finish(self, folder: Path) -> None:
        """Flush all files to the disk, write the manifest, and settle the build in `folder`."""
        manifest = self.draft.model_copy(update={"files": self._records(), "created": now(), "summary": self.summary})
        write_manifest(self.folder / MANIFEST_FILE, manifest)
        settle(folder)

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
        return is_scratch or path.suffix == PART or path in _drafts(self.folder)


def open_folder(folder: Path, draft: Manifest, old: Artifact | None, damaged: Sequence[Path]) -> Build:
    """Prepare a folder to build in: remove from it what the new build cannot reuse.

    Args:
        draft: Manifest of the artifact that will be built.
        old: The finished artifact of the folder, if the build makes its damaged files again and reuses the others.
        damaged: These files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = read_draft(folder)
    known = dict(old.manifest.files) if old else {}
    is_resumed = old is not None
    if unfinished and unfinished.spec.request == draft.spec.request:
        is_resumed = True
        known |= unfinished.files
        damaged = [*damaged, *(path for path, _ in Artifact(folder, unfinished).damaged())]
    if is_resumed:
        # A killed process leaves partial files: ours, and hidden ones that safetensors writes beside them.
        partial = [path for path in folder.iterdir() if path.suffix == PART or path.name.startswith(".")]
        useless = [*damaged, *partial]
    else:
        # The manifest goes first: an artifact without its files must not seem to exist.
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        useless = list(folder.iterdir())
    for path in useless:
        remove(path)
    sound = {name: record for name, record in known.items() if (folder / name).exists()}
    build = Build(folder, draft.model_copy(update={"files": sound}))
    build.remember(sound)
    write_json(folder / BUILDING_FILE, build.draft.model_dump(mode="json"))
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    return build


def settle(folder: Path) -> None:
    """Move a finished replacement to its artifact's folder, then remove what was needed only while it was made.

    It ends whatever a killed process has begun of this. At every moment `Artifact.open` finds the old artifact or the
    new one, whole.

    Raises:
        CorruptError: if the manifest in the folder cannot be read.
    """
    new, retired = replacement_folder(folder), folder.with_name(folder.name + RETIRED)
    if _is_finished(new):
        _move_aside(folder)
        new.rename(folder)
        flush_to_disk(folder.parent)
    artifact = Artifact.open(folder)
    if artifact is None:
        return
    if artifact.folder == retired:  # A process was killed between the moves, and then the replacement was lost.
        remove(folder)
        retired.rename(folder)
    _remove_artifact(retired)
    if (folder / BUILDING_FILE).exists():
        kept = {MANIFEST_FILE, BUILDING_FILE, *(name.split("/")[0] for name in artifact.manifest.files)}
        # The draft goes last, because it tells that there is something to remove.
        others = [path for path in folder.iterdir() if path.name not in kept]
        for path in (*others, folder / BUILDING_FILE):
            remove(path)


def is_settled(folder: Path) -> bool:
    """Tell whether `settle` has nothing to do."""
    retired = folder.with_name(folder.name + RETIRED)
    is_cleaned = not ((folder / MANIFEST_FILE).exists() and (folder / BUILDING_FILE).exists())
    return is_cleaned and not retired.exists() and not _is_finished(replacement_folder(folder))


def _is_finished(new: Path) -> bool:
    try:
        return Artifact.open(new) is not None
    except CorruptError:
        return False


def _move_aside(folder: Path) -> None:
    """Retire the artifact of a folder; if there is none, remove what is there."""
    retired = folder.with_name(folder.name + RETIRED)
    if (folder / MANIFEST_FILE).exists():
        _remove_artifact(retired)
        folder.rename(retired)
    else:
        remove(folder)


def _remove_artifact(folder: Path) -> None:
    """Remove a folder; its manifest goes first, because an artifact without its files must not seem to exist."""
    if not folder.is_symlink():
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
    remove(folder)


def replacement_folder(folder: Path) -> Path:
    """Return the folder in which an artifact is made that will replace the finished one of `folder`."""
    return folder.with_name(folder.name + NEW)


def read_draft(folder: Path) -> Manifest | None:
    """Return the manifest of an attempt that did not finish, with the files of all its parts; None if there is none."""
    try:
        draft = Manifest.model_validate_json((folder / BUILDING_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    for path in _drafts(folder):
        with suppress(OSError, ValidationError):
            part = Manifest.model_validate_json(path.read_bytes())
            if part.spec.request == draft.spec.request:
                draft.files.update(part.files)
    return draft


def _drafts(folder: Path) -> list[Path]:
    """Return the paths of the drafts of an attempt and of its parts."""
    return [*folder.glob(f"{Path(BUILDING_FILE).stem}*.json")]


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
