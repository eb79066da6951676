"""Artifacts: a stage's finished result is a folder whose manifest says what it is and what it was made from.

The manifest is written last and by rename, so an artifact exists exactly if its manifest does.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from ccot_cli.config import PATH_SETTINGS, by_dotted_name
from ccot_cli.errors import CcotError, CorruptError, retrain_hint
from ccot_cli.files import commit, json_bytes, sha256_of
from ccot_cli.version import __version__

FORMAT = 1
"""Version of the layout on disk; an artifact of a later one is refused."""
MANIFEST_FILE = "manifest.json"
NEW, RETIRED = ".ccot-new", ".ccot-retired"
"""Suffixes of folders beside an artifact's: of one that will take its place, and of one whose place was taken. Nobody
types them, as people do `.old` when they copy a folder."""
SEAL = "sha256"
"""The manifest's entry with the hash of all others."""
OTHER_BYTES = "does not hold the bytes that were written"
Read = TypeVar("Read")


@dataclass(frozen=True)
class ArtifactSpec:
    """An artifact that is asked for: its name, and what it must be made from."""

    stage: str
    key: str | None
    config: Mapping[str, Mapping[str, Any]]
    """The settings that the result depends on, by section."""
    inputs: Mapping[str, str]
    """Fingerprints by name, as in `Manifest.inputs`."""
    overrides: tuple[str, ...] = ()
    """Settings that the command line gives, as `section.setting`."""

    @property
    def request(self) -> str:
        """Hash that is equal for artifacts made from the same settings and inputs, finished or not."""
        return _digest([FORMAT, _without_paths(self.config), self.inputs])


class _Recorded(dict[str, Any]):
    """What a manifest records; what another version of ccot did not record is missed with an error for people."""

    def __missing__(self, name: str) -> Any:
        raise CorruptError(f"a manifest records no {name!r}, so another ccot wrote it", fix=_OTHER_VERSION)


_OTHER_VERSION = "run that version again, or run the stages again from ccot precompute"


class FileRecord(BaseModel):
    """Hash and size in bytes that a file of an artifact must have."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    size: int


class Manifest(BaseModel):
    """What an artifact is and what it was made from."""

    model_config = ConfigDict(frozen=True)

    format: int
    stage: str
    key: str | None
    config: Annotated[dict[str, dict[str, Any]], AfterValidator(_Recorded)]
    """The settings that the result depends on, by section."""
    inputs: Annotated[dict[str, str], AfterValidator(_Recorded)]
    """Fingerprints by name: `score` is the artifact of that stage with the same key, `score/r0.10` the one of that key.
    Other names, such as `model`, are inputs that are no artifacts."""
    overrides: tuple[str, ...]
    """Settings that the command line gave, as `section.setting`."""
    versions: dict[str, str]
    files: dict[str, FileRecord]
    created: datetime
    summary: Annotated[dict[str, Any], AfterValidator(_Recorded)]
    """Figures for `status`."""
    command: tuple[str, ...] = ()
    """The command line that made it, from the subcommand on and without the workspace; empty if Python made it."""
    ranks: int = 1
    """Number of processes that made it together. Training adds up in another order with another number."""

    @property
    def fingerprint(self) -> str:
        """Hash that is equal for artifacts made from the same settings and inputs that hold the same bytes."""
        hashes = {name: record.sha256 for name, record in self.files.items()}
        return _digest([self.format, self.stage, self.key, _without_paths(self.config), self.inputs, hashes])

    @property
    def spec(self) -> ArtifactSpec:
        """The specification that it was made to."""
        return ArtifactSpec(self.stage, self.key, self.config, self.inputs, self.overrides)


@dataclass(frozen=True)
class Artifact:
    """The finished result of a stage."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path) -> Self | None:
        """Read a folder's manifest; None if it has none.

        While a new artifact takes an old one's place, there is a moment without a folder: then the old one is read
        where it was put.

        Raises:
            CorruptError: if the manifest cannot be read, or has a newer format.
        """
        # In the order in which the folders are renamed; if both moves happen during the first two looks, the third
        # finds the new one.
        for place in (folder, folder.with_name(folder.name + RETIRED), folder):
            if place != folder and place.is_symlink():
                continue  # No artifact is retired to a link; it could lead anywhere.
            try:
                text = (place / MANIFEST_FILE).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                fix = "check who owns it"
                raise CorruptError(f"{error.filename} cannot be read: {error.strerror}", fix=fix) from None
            return cls(place, read_manifest(place / MANIFEST_FILE, text))
        return None

    @property
    def name(self) -> str:
        """Stage and key: `precompute`, `train-phi/r0.10`."""
        return "/".join(part for part in (self.manifest.stage, self.manifest.key) if part)

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    @property
    def num_bytes(self) -> int:
        return sum(record.size for record in self.manifest.files.values())

    def path(self, name: str) -> Path:
        """Return the path of one of its files.

        Raises:
            CorruptError: if the name or a link leads out of the artifact's folder.
        """
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise CorruptError(f"{path} leads out of {self.folder}", fix="remove it, and see who put it there")
        return path

    def is_bare(self) -> bool:
        """Tell whether its manifest alone is left: that of `precompute` is enough to answer."""
        return not any(self.path(name).exists() for name in self.manifest.files)

    def read_as(self, kind: Callable[..., Read], values: Mapping[str, Any]) -> Read:
        """Make something of values that the manifest records.

        Raises:
            CorruptError: if they are not those that it has now, because another version of ccot wrote them.
        """
        try:
            return kind(**values)
        except (TypeError, ValidationError):
            version = self.manifest.versions.get("ccot", "another version")
            what = f"{self.folder} was made by ccot {version}, and records what {__version__} does not know"
            raise CorruptError(what, fix=_OTHER_VERSION) from None

    def is_complete(self) -> bool:
        """Tell whether every file exists with its size, without reading any."""
        paths = {self.path(name): record.size for name, record in self.manifest.files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())

    def check(self, *names: str) -> None:
        """Read files, all if none is named, before what they hold is used.

        Raises:
            CorruptError: if one is not as the manifest says.
        """
        for path, reason in self.damaged(*names):
            raise CorruptError(f"{path} {reason}", fix=self._repair_hint())

    def _repair_hint(self) -> str:
        if self.manifest.stage.startswith("train-"):
            return retrain_hint(self.folder)
        root = self.folder.parent if self.manifest.key is None else self.folder.parent.parent
        return f"{shlex.join(['ccot', 'verify', '-w', str(root)])} tells what to do"

    def damaged(self, *names: str) -> Iterator[tuple[Path, str]]:
        """Read files, all if none is named; yield the path of each that is not as the manifest says, and why."""
        for name, record in self.manifest.files.items():
            if names and name not in names:
                continue
            path = self.path(name)
            if not path.is_file():
                yield path, "is missing"
            elif (size := path.stat().st_size) != record.size:
                yield path, f"holds {size:,} bytes instead of {record.size:,}"
            else:
                try:
                    if sha256_of(path) != record.sha256:
                        yield path, OTHER_BYTES
                except OSError as error:
                    yield path, f"cannot be read: {error.strerror}"


def read_whole(folder: Path, read: Callable[[Artifact | None], Read]) -> Read:
    """Read several files of an artifact; if another one takes its place meanwhile, read that one from the start.

    Args:
        folder: Where the artifact is.
        read: Reads all that is needed of the artifact that it is given; None if there is none.
    """
    while True:
        artifact = Artifact.open(folder)
        try:
            result = read(artifact)
        except (CcotError, OSError):
            if Artifact.open(folder) == artifact:
                raise
        else:
            # Equal manifests hold equal hashes of all files, so it does not matter if the folder was moved.
            current = Artifact.open(folder)
            if (current and current.manifest) == (artifact and artifact.manifest):
                return result


def draft_manifest(spec: ArtifactSpec, command: tuple[str, ...]) -> Manifest:
    """Return the manifest of an artifact that is about to be made by a command line; files and summary are empty."""
    return Manifest(
        format=FORMAT,
        stage=spec.stage,
        key=spec.key,
        config={section: dict(values) for section, values in spec.config.items()},
        inputs=dict(spec.inputs),
        overrides=tuple(spec.overrides),
        versions=_versions(),
        files={},
        created=now(),
        summary={},
        command=command,
    )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest with its own hash, atomically.

    Raises:
        ResourceError: if the disk is full.
    """
    with commit(path) as part:
        part.write_bytes(manifest_bytes(manifest))


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return what `write_manifest` writes."""
    return sealed(manifest.model_dump(mode="json"))


def sealed(values: dict[str, Any]) -> bytes:
    """Return values as JSON that begins with their own hash."""
    return json_bytes({SEAL: _digest(values), **values})


def take_seal(values: dict[str, Any], text: bytes) -> bool:
    """Remove the hash from values that were read from a text; tell whether the text is what `sealed` made of them."""
    return text == json_bytes(values) and values.pop(SEAL, None) == _digest(values)


def read_manifest(path: Path, text: bytes) -> Manifest:
    """Parse a manifest.

    Args:
        path: Where it was read, for errors.

    Raises:
        CorruptError: if it is no manifest, not the bytes that were written, or a newer version of the package wrote it.
    """
    fix = f"remove {path} and run the stage again"
    try:
        values = json.loads(text)
        if values["format"] > FORMAT:
            raise CorruptError(f"{path} was written by a newer ccot, {values['versions']['ccot']}", fix="upgrade ccot")
        is_whole = take_seal(values, text)
        manifest = Manifest.model_validate(values)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it is no manifest"
        raise CorruptError(f"{path} cannot be read: {reason}", fix=fix) from None
    if not is_whole:
        raise CorruptError(f"{path} {OTHER_BYTES}", fix=fix)
    return manifest


def has_moved(then: str | None, now: str | None) -> bool:
    """Tell whether a file or folder may have moved to another path, or have been copied there.

    It has the same last part, and what it was is gone, or has the same size; what may not be looked at is gone. A name
    on the hub does not move. Whether the contents are the same is decided by fingerprints among the inputs.
    """
    if then is None or now is None or Path(then).name != Path(now).name:
        return False
    if not Path(then).is_absolute():
        return Path(then).name == then  # An archive has only the last part.
    return not _exists(then) or (_exists(now) and _sizes(Path(then)) == _sizes(Path(now)))


def _exists(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110 (Path.exists raises in a folder that may not be searched)


def _sizes(path: Path) -> dict[str, int]:
    """Return the sizes of a file, or of the files of a folder, by their names."""
    files = path.iterdir() if path.is_dir() else [path]
    return {each.name: each.stat().st_size for each in files if each.is_file()}


def found_again(then: str | None, now: str | None) -> str | None:
    """Return the path that a manifest records, or the present one, if what lay there has moved to it since."""
    if now is None or not has_moved(then, now) or not _exists(now):
        return then
    is_still_there = then is not None and Path(then).is_absolute() and _exists(then)
    return then if is_still_there else now


def differing_settings(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings whose values differ, as (then, now) by dotted name, sorted."""
    before, after = by_dotted_name(then), by_dotted_name(now)
    names = sorted({*before, *after})
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def _without_paths(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings by dotted name, except for paths: the inputs hold fingerprints of what lies there."""
    return {name: value for name, value in by_dotted_name(config).items() if name not in PATH_SETTINGS}


def now() -> datetime:
    """Return the time in UTC, in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


@cache
def _versions() -> dict[str, str]:
    versions = {"ccot": __version__, "python": platform.python_version()}
    for library in ("torch", "transformers", "peft"):
        versions[library] = importlib.metadata.version(library)
    return versions


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
