"""A folder of results, one per stage, that knows what each was made from.

    my-run/ccot.yaml                      settings
    my-run/precompute/manifest.json       an artifact: its files, and the manifest that makes it one
    my-run/train-phi/r0.10/manifest.json  a stage with one artifact for each compression ratio

A manifest is written last and by rename, so an artifact exists exactly when its manifest does. It records what the
artifact was made from; when that has changed, the artifact is stale.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from ccot_cli import __version__
from ccot_cli.config import PLACES, Settings, load_settings, preset_text, stage_config
from ccot_cli.errors import BusyError, CorruptError, MissingError, UsageError
from ccot_cli.files import PART, commit, flush_to_disk, sha256_of, write_json
from ccot_cli.names import ENVIRONMENT_VARIABLE, KEYED_STAGES, SETTINGS_FILE, STAGES, BaselineName

FORMAT = 1
"""Version of the layout on disk; an artifact of a later one is refused."""

MANIFEST_FILE = "manifest.json"
BUILDING_FILE = "building.json"
NEW, RETIRED = ".new", ".old"
"""Ends of the folders beside an artifact's, of one that is to take its place and of one whose place was taken."""
OTHER_BYTES = "does not hold the bytes that were written"
CACHE_FOLDER = "cache"
LOCK_FILE = ".lock"
HOLDER_FILE = ".lock.json"


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
        return _digest([self.format, self.stage, self.key, _wherever(self.config), self.inputs, hashes])

    @property
    def request(self) -> str:
        """Equal for artifacts that were asked for in the same way, finished or not."""
        return _request(self.config, self.inputs)


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
        manifest = draft.model_copy(update={"files": self._records(), "created": _now(), "summary": self.summary})
        passing = [path.relative_to(self.folder) for path in (*self._scratch, self.folder / BUILDING_FILE)]
        retired = folder.with_name(folder.name + RETIRED)
        if self.folder != folder:
            _remove(retired)
            if folder.exists():
                folder.rename(retired)
            self.folder.rename(folder)
            flush_to_disk(folder.parent)
        write_json(folder / MANIFEST_FILE, manifest.model_dump(mode="json"))
        for path in (retired, *(folder / each for each in passing)):
            _remove(path)

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


class State(NamedTuple):
    """Whether an artifact may be used, and what speaks against it."""

    name: Literal["missing", "being made", "stale", "ready"]
    reason: str = ""


@dataclass(frozen=True)
class Workspace:
    """A folder with a `ccot.yaml`. Reading never writes, so a read-only folder will do."""

    root: Path
    settings: Settings

    @classmethod
    def create(cls, root: Path, preset: str) -> Self:
        """Make a folder with the settings of a preset.

        Raises:
            UsageError: where there are settings already, or no such preset.
        """
        text = preset_text(preset)
        if (root / SETTINGS_FILE).exists():
            fix = f"edit {root / SETTINGS_FILE}, or choose another folder"
            raise UsageError(f"{root} is a workspace already", fix=fix)
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"no folder can be made at {root}: {error.strerror}", fix="ccot init DIR") from None
        with commit(root / SETTINGS_FILE) as part:
            part.write_text(text, encoding="utf-8")
        return cls.open(root)

    @classmethod
    def open(cls, root: Path) -> Self:
        """Read the settings of a workspace.

        Raises:
            UsageError: where there are none, or they are refused.
        """
        if not (root / SETTINGS_FILE).is_file():
            fix = "name a folder" if root.is_file() else shlex.join(["ccot", "init", str(root)])
            raise UsageError(f"{root} is no workspace: it has no {SETTINGS_FILE}", fix=fix)
        return cls(root, load_settings(root / SETTINGS_FILE))

    @classmethod
    def find(cls, explicit: Path | None, environ: Mapping[str, str], start: Path) -> Self | None:
        """Open the workspace that is named, else $CCOT_WORKSPACE, else the nearest around `start`.

        Raises:
            UsageError: where the folder named is no workspace.
        """
        if explicit is None and environ.get(ENVIRONMENT_VARIABLE):
            explicit = Path(environ[ENVIRONMENT_VARIABLE])
        if explicit is not None:
            return cls.open(explicit)
        around = (folder for folder in (start, *start.parents) if (folder / SETTINGS_FILE).is_file())
        nearest = next(around, None)
        return None if nearest is None else cls.open(nearest)

    @property
    def name(self) -> str:
        return self.root.resolve().name

    @property
    def cache(self) -> Path:
        """A folder for what may be deleted at any time and is then made again."""
        return self.root / CACHE_FOLDER

    def cache_bytes(self) -> int:
        """What that folder holds."""
        return sum(path.stat().st_size for path in self.cache.glob("*") if path.is_file())

    def command(self, *words: str) -> str:
        """A command for people to copy; it says which workspace where the current folder does not."""
        root, here = self.root.resolve(), Path.cwd()
        shown = os.path.relpath(root) if root.is_relative_to(here) else str(root)
        return shlex.join(["ccot", *words, *([] if here.is_relative_to(root) else ["-w", shown])])

    def folder(self, stage: str, key: str | None = None) -> Path:
        """Where an artifact stands, or will.

        Raises:
            ValueError: for a stage that does not exist or a key that is no plain name.
            CorruptError: where a link leads out of the workspace.
        """
        if stage not in STAGES or (key is not None and (key != Path(key).name or key in ("", ".."))):
            raise ValueError(f"no place for stage {stage!r} with key {key!r}")
        folder = self.root / stage / (key or "")
        if not folder.resolve().is_relative_to(self.root.resolve()):
            raise CorruptError(f"{folder} leads out of the workspace", fix="replace the link by a folder")
        return folder

    @staticmethod
    def input_name(artifact: Artifact, key: str) -> str:
        """What an artifact is called among the inputs of another with this key."""
        return artifact.manifest.stage if artifact.manifest.key == key else artifact.name

    def finished(self, stage: str) -> list[str | None]:
        """Keys with a manifest, stale ones too; `[None]` for a finished stage without keys."""
        folder = self.folder(stage)
        keys = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_FILE}") if path.parent.suffix != RETIRED)
        return [None, *keys] if (folder / MANIFEST_FILE).is_file() else list(keys)

    def keys(self, stage: str) -> list[str]:
        """Keys of the artifacts that `require` would return."""
        usable = []
        for key in filter(None, self.finished(stage)):
            with suppress(MissingError, CorruptError):
                self.require(stage, key)
                usable.append(key)
        return usable

    def artifact(self, stage: str, key: str | None = None) -> Artifact | None:
        """The finished artifact, stale or not; None where there is none.

        Raises:
            CorruptError: where its manifest cannot be read, is another's, or is of a later format.
        """
        folder = self.folder(stage, key)
        try:
            text = (folder / MANIFEST_FILE).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptError(f"{error.filename} cannot be read: {error.strerror}", fix="check who owns it") from None
        artifact = Artifact(folder, _read_manifest(folder / MANIFEST_FILE, text))
        if (artifact.manifest.stage, artifact.manifest.key) != (stage, key):
            raise CorruptError(f"{folder} holds {artifact.name}", fix=f"move it back, or remove {folder}")
        return artifact

    def state(self, stage: str, key: str | None = None, settings: Settings | None = None) -> State:
        """Whether an artifact is there and still made from these settings and the present inputs.

        Raises:
            CorruptError: where a manifest cannot be read.
        """
        artifact = self.artifact(stage, key)
        if artifact is None:
            is_begun = self._begun(stage, key) is not None
            if is_begun and (maker := self._maker(stage)):
                return State("being made", maker)
            return State("missing", "interrupted; the same command goes on" if is_begun else "")
        changes = [*_changed_settings(artifact.manifest, settings or self.settings), *self._changed_inputs(artifact)]
        if not changes and not artifact.is_whole():
            changes = ["it lacks a file, or a part of one"]
        return State("stale", "; ".join(changes)) if changes else State("ready")

    def require(self, stage: str, key: str | None = None) -> Artifact:
        """The artifact that another stage works on. Settings may have changed since; its inputs may not.

        Raises:
            MissingError: where it is missing or was made from inputs that have changed.
            CorruptError: where a manifest cannot be read, or a file is not there in its size.
        """
        artifact = self.artifact(stage, key)
        if artifact is None:
            raise self._missing(stage, key)
        if changes := self._changed_inputs(artifact):
            raise MissingError(
                f"{artifact.name} of {self.name} is stale: {changes[0]}", fix=self.command_for(stage, key)
            )
        if not artifact.is_whole():
            raise CorruptError(
                f"{artifact.name} of {self.name} lacks a file, or a part of one", fix=self.command_for(stage, key)
            )
        return artifact

    def ready(
        self,
        stage: str,
        key: str | None,
        config: Mapping[str, Any],
        inputs: Mapping[str, str],
        overrides: Sequence[str] = (),
    ) -> Artifact | None:
        """The artifact, where making it again from these settings and inputs would change nothing.

        Args:
            overrides: Settings that the command line gives.

        Raises:
            UsageError: where it, or what an interrupted attempt has left, differs in nothing but settings that were
                given on the command line then and are not now: it would be lost to a command that only forgot them.
        """
        if found := self.matching(stage, key, config, inputs):
            return found if found.is_whole() else None
        artifact, folder = self.artifact(stage, key), self.folder(stage, key)
        for manifest in (artifact.manifest if artifact else None, self._begun(stage, key, has_work=True)):
            if manifest is None:
                continue
            changed = _differing(manifest.config, config)
            if changed and changed.keys() <= {*manifest.overrides} - {*overrides}:
                made = ", ".join(f"{name} = {json.dumps(then)}" for name, (then, _) in changed.items())
                raise UsageError(
                    f"{folder.relative_to(self.root)} of {self.name} was made with {made}, and would be replaced",
                    fix=f"{self.typed_for(stage, key) or 'give the same options'}, or remove {folder}",
                )
        return None

    def matching(
        self, stage: str, key: str | None, config: Mapping[str, Any], inputs: Mapping[str, str]
    ) -> Artifact | None:
        """The artifact, whole or not, where it was made from these settings and inputs."""
        artifact = self.artifact(stage, key)
        return artifact if artifact and artifact.manifest.request == _request(config, inputs) else None

    def refuse_while_busy(self) -> None:
        """Leave before anything is loaded, where another process works on this workspace.

        Raises:
            BusyError: where one does.
        """
        with self._lock():
            pass

    @contextmanager
    def building(
        self,
        stage: str,
        key: str | None = None,
        *,
        config: Mapping[str, Any],
        inputs: Mapping[str, str],
        overrides: Sequence[str] = (),
    ) -> Iterator[Build]:
        """Make an artifact: it exists once the block has ended without an exception.

        What an interrupted attempt from the same settings and inputs has left is kept, and so are the sound files of
        a damaged artifact. An artifact that was made otherwise stays in use until the new one takes its place.

        Raises:
            BusyError: where another process works on this workspace.
            UsageError: where the workspace cannot be written to.
        """
        folder = self.folder(stage, key)
        draft = Manifest(
            format=FORMAT,
            stage=stage,
            key=key,
            config=dict(config),
            inputs=dict(inputs),
            overrides=tuple(overrides),
            versions=_versions(),
            files={},
            created=_now(),
            summary={},
            command=_typed(),
        )
        with self._lock():
            old = self.artifact(stage, key)
            is_replaced = old is not None and old.manifest.request != draft.request
            # A process that was killed while it put its work in place may have left it beside the folder.
            is_left = old is None and _beside(folder).exists()
            place = _beside(folder) if is_replaced or is_left else folder
            build = Build(place, _open_folder(place, draft, None if is_replaced else old))
            yield build
            build.finish(draft, folder)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        # Most commands take no lock, and filelock brings asyncio with it.
        from filelock import FileLock, Timeout

        lock, holder = FileLock(self.root / LOCK_FILE, timeout=0), self.root / HOLDER_FILE
        try:
            lock.acquire()
        except Timeout:
            raise self._busy(holder) from None
        except OSError as error:
            raise UsageError(f"cannot write to {self.root}: {error.strerror}", fix="work on a copy of it") from None
        try:
            write_json(holder, _this_process())
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()

    def _busy(self, holder: Path) -> BusyError:
        try:
            who = "process {pid} on {host} since {since}: {command}".format_map(json.loads(holder.read_bytes()))
        except (OSError, ValueError, KeyError):
            who = "another process"  # It has the lock, and has not said who it is yet.
        return BusyError(f"{self.name} is in use by {who}", fix="wait until it has finished, or stop it")

    def _maker(self, stage: str) -> str:
        """The process that is making something of a stage right now; nothing where none is known to."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            holder = json.loads((self.root / HOLDER_FILE).read_bytes())
            os.kill(holder["pid"], 0)  # Raises where no such process is left.
            is_here = holder["host"] == socket.gethostname()
            if is_here and {stage, "sweep", "demo"} & set(shlex.split(holder["command"])):
                return f"by process {holder['pid']} since {holder['since']}"
        return ""

    def _changed_inputs(self, artifact: Artifact) -> list[str]:
        """What it was made from and is no longer so, inputs of its inputs too."""
        changes = []
        for name, fingerprint in artifact.manifest.inputs.items():
            current = self._input(name, artifact.manifest.key)
            if current is None:
                continue  # An input that is gone has not changed: hidden states may be deleted once they have served.
            if current.fingerprint != fingerprint:
                changes.append(f"{current.name} was made again since, and differs")
            else:
                changes += self._changed_inputs(current)
        return changes

    def _input(self, name: str, own_key: str | None) -> Artifact | None:
        stage, _, key = name.partition("/")
        if stage not in STAGES:
            return None
        return self.artifact(stage, key or (own_key if stage in KEYED_STAGES else None))

    def _missing(self, stage: str, key: str | None) -> MissingError:
        message = f"{self.name} has no finished '{stage}' stage"
        if key is not None:
            there = ", ".join(_shown_key(stage, ready) for ready in self.keys(stage)) or "none"
            kind = "ratio" if stage in KEYED_STAGES else "method" if stage == "train-baseline" else "run"
            message += f" for {kind} {_shown_key(stage, key)} (finished: {there})"
        return MissingError(message, fix=self.command_for(stage, key))

    def _begun(self, stage: str, key: str | None, *, has_work: bool = False) -> Manifest | None:
        """The draft of an attempt that did not finish; with `has_work`, of one that has left something."""
        for folder in (_beside(self.folder(stage, key)), self.folder(stage, key)):
            begun = _begun(folder)
            if begun and (not has_work or any(path.name != BUILDING_FILE for path in folder.iterdir())):
                return begun
        return None

    def typed_for(self, stage: str, key: str | None) -> str | None:
        """The command that made an artifact, or began it."""
        with suppress(CorruptError):
            made, begun = self.artifact(stage, key), self._begun(stage, key)
            if typed := (begun and begun.command) or (made and made.manifest.command):
                return self.command(*typed)
        return None

    def command_for(self, stage: str, key: str | None) -> str:
        """The command that makes an artifact: what was typed, or what would make it of the workspace's settings."""
        if typed := self.typed_for(stage, key):
            return typed
        if key is None or stage == "eval":
            return self.command(stage)
        method = ""
        if stage not in KEYED_STAGES:
            method = max((name for name in get_args(BaselineName) if key.startswith(name)), key=len, default=key)
        if not (of_ratio := re.fullmatch(r"-?r([0-9.]+)|", key.removeprefix(method))):
            return f"the {self.command('sweep')} that has it"
        ratio = ["--ratio", f"{Decimal(of_ratio[1]).normalize():f}"] if of_ratio[1] else []
        return self.command(stage, *([method] if method else []), *ratio)


def _open_folder(folder: Path, draft: Manifest, old: Artifact | None) -> bool:
    """Leave in the folder what may be kept, and return whether anything may."""
    folder.mkdir(parents=True, exist_ok=True)
    doomed = [path for path, _ in old.damaged()] if old and old.manifest.request == draft.request else []
    begun = _begun(folder)
    is_resumed = bool(doomed) or (begun is not None and begun.request == draft.request)
    if not is_resumed:
        # First of all, for an artifact whose files are going must not exist.
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        doomed = list(folder.iterdir())
    else:
        # What a killed process was writing: our own partial files, and those that safetensors makes beside them.
        doomed += [path for path in folder.iterdir() if path.suffix == PART or path.name.startswith(".")]
    for path in doomed:
        _remove(path)
    write_json(folder / BUILDING_FILE, draft.model_dump(mode="json"))
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    return is_resumed


def _beside(folder: Path) -> Path:
    """Where an artifact is made that will take the place of a finished one."""
    return folder.with_name(folder.name + NEW)


def _begun(folder: Path) -> Manifest | None:
    """The draft of an attempt that did not finish."""
    try:
        return Manifest.model_validate_json((folder / BUILDING_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _request(config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    return _digest([FORMAT, _wherever(config), inputs])


def _wherever(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Settings by dotted name, but for where files lie: what they hold is among the inputs."""
    return {name: value for name, value in _by_dotted_name(config).items() if name not in PLACES}


def _read_manifest(path: Path, text: bytes) -> Manifest:
    try:
        values = json.loads(text)
        if values["format"] > FORMAT:
            raise CorruptError(f"{path} was written by a newer ccot, {values['versions']['ccot']}", fix="upgrade ccot")
        return Manifest.model_validate(values)
    except (ValueError, KeyError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it is no manifest"
        raise CorruptError(f"{path} cannot be read: {reason}", fix=f"remove {path} and run the stage again") from None


def _changed_settings(manifest: Manifest, settings: Settings) -> list[str]:
    changed = _differing(manifest.config, stage_config(settings, manifest.stage))
    return [
        f"{name}: {then} → {now}"
        for name, (then, now) in changed.items()
        if name not in manifest.overrides and not (name in PLACES and has_moved(then, now))
    ]


def has_moved(then: str | None, now: str | None) -> bool:
    """Whether a file or folder may be the same elsewhere, by its name; the stage itself looks at what it holds."""
    return then is not None and now is not None and Path(then).name == Path(now).name


def _differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings with other values then and now, and both, by dotted name in order."""
    before, after = _by_dotted_name(then), _by_dotted_name(now)
    names = sorted({*before, *after})
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def _by_dotted_name(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, values in config.items() for key, value in values.items()}


def _shown_key(stage: str, key: str) -> str:
    """A ratio as people write it, 0.1 for `r0.10` and 0.1-l4 for `r0.10-l4`; the name of a run as it is."""
    if stage not in KEYED_STAGES:
        return key
    ratio, *variant = key[1:].split("-", 1)
    return "-".join([f"{Decimal(ratio).normalize():f}", *variant])


def _typed() -> tuple[str, ...]:
    """The command line from the subcommand on, without the workspace; nothing in another program, or for `demo`."""
    program, *words = sys.argv
    if not (Path(program).name == "ccot" or program.endswith("ccot_cli/__main__.py")):
        return ()
    kept: list[str] = []
    option = ""
    for word in words:
        if option in ("--data", "--model") and Path(word).exists():
            word = str(Path(word).resolve())  # It may be repeated elsewhere.
        if not {option, word} & {"-w", "--workspace"} and not word.startswith("--workspace="):
            kept.append(word)
        option = word
    return () if "demo" in kept[:1] else tuple(kept)


def _this_process() -> dict[str, Any]:
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": _now().isoformat()}


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _versions() -> dict[str, str]:
    versions = {"ccot": __version__, "python": platform.python_version()}
    for library in ("torch", "transformers", "peft"):
        versions[library] = importlib.metadata.version(library)
    return versions


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    """Changes whenever a file is written to."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _remove(path: Path) -> None:
    """Delete a file, a link (never what it points to) or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
