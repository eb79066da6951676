"""A stage's finished result: a folder whose manifest says what it is and what it was made from.

The manifest is written last and by rename, so an artifact exists exactly when its manifest does.
"""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ccot_cli.config import PLACES
from ccot_cli.errors import CorruptError
from ccot_cli.files import sha256_of
from ccot_cli.version import __version__

FORMAT = 1
"""Version of the layout on disk; an artifact of a later one is refused."""
MANIFEST_FILE = "manifest.json"
OTHER_BYTES = "does not hold the bytes that were written"


@dataclass(frozen=True)
class ArtifactSpec:
    """Which artifact is wanted, and what it is to be made from."""

    stage: str
    key: str | None
    config: Mapping[str, Mapping[str, Any]]
    """The settings that the result depends on, by section."""
    inputs: Mapping[str, str]
    """Fingerprints by name."""
    overrides: tuple[str, ...] = ()
    """Settings that the command line gives, as `section.setting`."""

    @property
    def request(self) -> str:
        """Equal for artifacts made from the same settings and inputs, finished or not."""
        return _digest([FORMAT, _regardless_of_place(self.config), self.inputs])


class FileRecord(BaseModel):
    """What a file of an artifact must be."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    size: int


class Manifest(BaseModel):
    """What an artifact is and what it was made from."""

    model_config = ConfigDict(frozen=True)

    format: int
    stage: str
    key: str | None
    config: dict[str, dict[str, Any]]
    """The settings that the result depends on, by section."""
    inputs: dict[str, str]
    """Fingerprints by name: `score` is the artifact of that stage with the same key, `score/r0.10` the one of that key;
    other names are the stage's own affair."""
    overrides: tuple[str, ...]
    """Settings that were given on the command line, as `section.setting`."""
    versions: dict[str, str]
    files: dict[str, FileRecord]
    created: datetime
    summary: dict[str, Any]
    """Figures for `status`."""
    command: tuple[str, ...] = ()
    """What was typed to make it, from the subcommand on and without the workspace; nothing where Python made it."""

    @property
    def fingerprint(self) -> str:
        """Equal for artifacts that were made from the same things and hold the same bytes."""
        hashes = {name: record.sha256 for name, record in self.files.items()}
        return _digest([self.format, self.stage, self.key, _regardless_of_place(self.config), self.inputs, hashes])

    @property
    def spec(self) -> ArtifactSpec:
        """Return what it was asked to be."""
        return ArtifactSpec(self.stage, self.key, self.config, self.inputs, self.overrides)


@dataclass(frozen=True)
class Artifact:
    """The finished result of a stage."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """`precompute`, `train-phi/r0.10`."""
        return "/".join(part for part in (self.manifest.stage, self.manifest.key) if part)

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    @property
    def num_bytes(self) -> int:
        return sum(record.size for record in self.manifest.files.values())

    def path(self, name: str) -> Path:
        """Where one of its files stands.

        Raises:
            CorruptError: for a name or a link that leads out of the artifact's folder.
        """
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise CorruptError(f"{path} leads out of {self.folder}", fix="remove it, and see who put it there")
        return path

    def is_whole(self) -> bool:
        """Whether every file is there in its size. Reads none of them."""
        paths = {self.path(name): record.size for name, record in self.manifest.files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())

    def damaged(self) -> Iterator[tuple[Path, str]]:
        """Read every file; yield those that are not what the manifest says, with what is wrong."""
        for name, record in self.manifest.files.items():
            path = self.path(name)
            if not path.is_file():
                yield path, "is missing"
            elif (size := path.stat().st_size) != record.size:
                yield path, f"holds {size:,} bytes, and {record.size:,} were written"
            else:
                try:
                    if sha256_of(path) != record.sha256:
                        yield path, OTHER_BYTES
                except OSError as error:
                    yield path, f"cannot be read: {error.strerror}"


def draft_manifest(spec: ArtifactSpec, command: tuple[str, ...]) -> Manifest:
    """Describe an artifact that is about to be made, by this command line."""
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


def read_manifest(path: Path, text: bytes) -> Manifest:
    try:
        values = json.loads(text)
        if values["format"] > FORMAT:
            raise CorruptError(f"{path} was written by a newer ccot, {values['versions']['ccot']}", fix="upgrade ccot")
        return Manifest.model_validate(values)
    except (ValueError, KeyError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it is no manifest"
        raise CorruptError(f"{path} cannot be read: {reason}", fix=f"remove {path} and run the stage again") from None


def has_moved(then: str | None, now: str | None) -> bool:
    """Whether a file or folder may be the same elsewhere, by its name; the stage itself looks at what it holds."""
    return then is not None and now is not None and Path(then).name == Path(now).name


def differing_settings(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings with other values then and now, and both, by dotted name in order."""
    before, after = _by_dotted_name(then), _by_dotted_name(now)
    names = sorted({*before, *after})
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def _by_dotted_name(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, values in config.items() for key, value in values.items()}


def _regardless_of_place(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Settings by dotted name, but for where files lie: what they hold is among the inputs."""
    return {name: value for name, value in _by_dotted_name(config).items() if name not in PLACES}


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _versions() -> dict[str, str]:
    versions = {"ccot": __version__, "python": platform.python_version()}
    for library in ("torch", "transformers", "peft"):
        versions[library] = importlib.metadata.version(library)
    return versions


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
