"""Workspaces: folders with settings and the artifacts of every stage.

    my-run/ccot.yaml                      settings
    my-run/precompute/manifest.json       an artifact: a manifest beside the files that it describes
    my-run/train-phi/r0.10/manifest.json  a stage with one artifact for each compression ratio

An artifact records what it was made from. It is stale if that has changed since.
"""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal, NamedTuple, Self, get_args

from ccot_cli.config import PATH_SETTINGS, Settings, stage_config
from ccot_cli.errors import BusyError, CorruptError, MissingError, UsageError
from ccot_cli.files import absolute, commit, naming_what_does_not_fit
from ccot_cli.names import (
    ENVIRONMENT_VARIABLE,
    KEYED_STAGES,
    MODELS,
    PRECOMPUTE,
    SETTINGS_FILE,
    STAGES,
    BaselineName,
)
from ccot_cli.presets import preset_text
from ccot_cli.settings_file import load_settings
from ccot_cli.workspace.artifact import (
    MANIFEST_FILE,
    NEW,
    RETIRED,
    Artifact,
    ArtifactSpec,
    Manifest,
    differing_settings,
    draft_manifest,
    has_moved,
    read_whole,
)
from ccot_cli.workspace.build import (
    BUILDING_FILE,
    Build,
    is_settled,
    open_folder,
    read_draft,
    replacement_folder,
    settle,
)
from ccot_cli.workspace.lock import HOLDER_FILE, describe_builder, lock

CACHE_FOLDER = "cache"


class State(NamedTuple):
    """Whether an artifact may be used, and the reason if it may not, or that a replacement for it was begun."""

    name: Literal["missing", "being made", "stale", "ready"]
    reason: str = ""


@dataclass(frozen=True)
class Workspace:
    """A folder with a `ccot.yaml`. Reading from it works without write permission."""

    root: Path
    settings: Settings
    typed: tuple[str, ...] = ()
    """The command line, after `ccot`, that works on it; empty if Python does."""

    @classmethod
    def create(cls, root: Path, preset: str, changes: Mapping[str, object] | None = None) -> Self:
        """Make a folder with the settings of a preset.

        Args:
            changes: Values of settings that differ from the preset's, such as `data.limit`.

        Raises:
            UsageError: if the folder has settings already or cannot be made, if there is no such preset, or if a value
                is refused.
        """
        text = preset_text(preset, changes)
        if (root / SETTINGS_FILE).exists():
            fix = f"edit {root / SETTINGS_FILE}, or choose another folder"
            raise UsageError(f"{root} is a workspace already", fix=fix)
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {root}: {error.strerror}", fix="ccot init DIR") from None
        with commit(root / SETTINGS_FILE) as part:
            part.write_text(text, encoding="utf-8")
        return cls.open(root)

    @classmethod
    def open(cls, root: Path, typed: tuple[str, ...] = ()) -> Self:
        """Open a folder as a workspace, and read its settings.

        Raises:
            UsageError: if it has no settings, or they are refused.
        """
        if not (root / SETTINGS_FILE).is_file():
            fix = "name a folder" if root.is_file() else shlex.join(["ccot", "init", str(root)])
            raise UsageError(f"{root} is no workspace: it has no {SETTINGS_FILE}", fix=fix)
        return cls(root, load_settings(root / SETTINGS_FILE), typed)

    @classmethod
    def find(
        cls, explicit: Path | None, environ: Mapping[str, str], start: Path, typed: tuple[str, ...] = ()
    ) -> Self | None:
        """Open the workspace that is named, else $CCOT_WORKSPACE, else the nearest at or above `start`.

        Returns:
            None if there is no workspace.

        Raises:
            UsageError: if the named folder is no workspace.
        """
        root = explicit or _usual_root(environ, start)
        return None if root is None else cls.open(root, typed)

    @property
    def name(self) -> str:
        return self.root.resolve().name

    @property
    def cache(self) -> Path:
        """Folder of files that may be deleted at any time, because they can be made again.

        Raises:
            CorruptError: if a link leads out of the workspace.
        """
        return self._refuse_leading_out(self.root / CACHE_FOLDER)

    def cached_queries(self) -> list[Path]:
        """Return the paths of the cached queries, whatever they were made from."""
        return sorted(self.cache.glob("queries-*"))

    def cache_bytes(self) -> int:
        """Return the size of the cache in bytes."""
        size = 0
        for path in self.cache.glob("*"):
            with suppress(FileNotFoundError):  # A training may have deleted it since.
                size += path.stat().st_size if path.is_file() else 0
        return size

    def command(self, *words: str) -> str:
        """Return a command for people to copy; it names the workspace unless it is found without that."""
        root, here = self.root.resolve(), Path.cwd()
        found = _usual_root(os.environ, here)
        is_found = found is not None and found.resolve() == root
        shown = os.path.relpath(root) if root.is_relative_to(here) else str(root)
        return shlex.join(["ccot", *words, *([] if is_found else ["-w", shown])])

    def folder(self, stage: str, key: str | None = None) -> Path:
        """Return the folder of an artifact, finished or not.

        Raises:
            ValueError: if there is no such stage, or the key is no plain file name.
            CorruptError: if a link leads out of the workspace.
        """
        if stage not in STAGES or (key is not None and (key != Path(key).name or key in ("", ".."))):
            raise ValueError(f"no folder for stage {stage!r} with key {key!r}")
        return self._refuse_leading_out(self.root / stage / (key or ""))

    def _refuse_leading_out(self, folder: Path) -> Path:
        """Return a folder of the workspace, unless a link leads out of it: nothing is written or removed elsewhere."""
        if not folder.resolve().is_relative_to(self.root.resolve()):
            raise CorruptError(f"{folder} leads out of the workspace", fix="replace the link by a folder")
        return folder

    @staticmethod
    def input_name(artifact: Artifact, key: str) -> str:
        """Return an artifact's name among the inputs of another artifact that has this key."""
        return artifact.manifest.stage if artifact.manifest.key == key else artifact.name

    def finished(self, stage: str) -> list[str | None]:
        """Return the keys of a stage's finished artifacts, stale ones too; `[None]` for a stage without keys."""
        folder = self.folder(stage)
        names = {path.parent.name for path in folder.glob(f"*/{MANIFEST_FILE}")}
        # A kill may have left an artifact where it was retired to; a replacement is none yet.
        keys = sorted({name.removesuffix(RETIRED) for name in names if not name.endswith(NEW)})
        places = (folder, folder.with_name(folder.name + RETIRED))
        return [None, *keys] if any((place / MANIFEST_FILE).is_file() for place in places) else list(keys)

    def unfinished(self, stage: str) -> list[str]:
        """Return the keys of a stage's artifacts of which only a part was made."""
        folders = [path.parent for path in self.folder(stage).glob(f"*/{BUILDING_FILE}")]
        # A draft beside a manifest is what a kill has left of a finished build, unless that is to replace another.
        begun = [each.name for each in folders if each.name.endswith(NEW) or not (each / MANIFEST_FILE).exists()]
        return sorted({name.removesuffix(NEW) for name in begun})

    def keys(self, stage: str) -> list[str]:
        """Return the keys of the artifacts that `require` would return."""
        usable = []
        for key in filter(None, self.finished(stage)):
            with suppress(MissingError, CorruptError):
                self.require(stage, key)
                usable.append(key)
        return usable

    def artifact(self, stage: str, key: str | None = None) -> Artifact | None:
        """Return the finished artifact, stale or not; None if there is none.

        Raises:
            CorruptError: if its manifest cannot be read, is another artifact's, or has a newer format.
        """
        folder = self.folder(stage, key)
        artifact = Artifact.open(folder)
        if artifact is not None and (artifact.manifest.stage, artifact.manifest.key) != (stage, key):
            raise CorruptError(f"{folder} holds {artifact.name}", fix=f"move it back, or remove {folder}")
        return artifact

    def state(self, stage: str, key: str | None = None, settings: Settings | None = None) -> State:
        """Tell whether an artifact is finished and made from these settings and the present inputs.

        Args:
            settings: The workspace's own by default.

        Raises:
            CorruptError: if a manifest cannot be read.
        """
        return read_whole(self.folder(stage, key), lambda _: self._state(stage, key, settings or self.settings))

    def _state(self, stage: str, key: str | None, settings: Settings) -> State:
        artifact = self.artifact(stage, key)
        is_begun = self._begun(stage, key) is not None
        builder = describe_builder(self.root, stage) if is_begun else ""
        if artifact is None:
            if builder:
                return State("being made", builder)
            return State("missing", "interrupted; the same command resumes it" if is_begun else "")
        changes = [*_changed_settings(artifact.manifest, settings), *self._changed_inputs(artifact)]
        if not changes and not artifact.is_complete():
            if stage == PRECOMPUTE and artifact.is_bare():
                return State("missing", "only what answering needs is here")
            changes = ["a file is missing or has another size"]
        begun = f"being replaced {builder}" if builder else "interrupted while it was replaced; that command resumes it"
        return State("stale" if changes else "ready", "; ".join([*changes, *([begun] if is_begun else [])]))

    def require(self, stage: str, key: str | None = None) -> Artifact:
        """Return the artifact that another stage reads. Its settings may have changed since; its inputs may not.

        Raises:
            MissingError: if it is missing, or made from inputs that have changed.
            CorruptError: if a manifest cannot be read, or a file is missing or has another size.
        """
        return read_whole(self.folder(stage, key), lambda _: self._require(stage, key))

    def _require(self, stage: str, key: str | None) -> Artifact:
        artifact = self.artifact(stage, key)
        if artifact is None:
            raise self._missing(stage, key)
        if changes := self._changed_inputs(artifact):
            raise MissingError(
                f"{artifact.name} of {self.name} is stale: {changes[0]}", fix=self.command_for(stage, key)
            )
        if not artifact.is_complete():
            fix, origin = self.command_for(stage, key), self.artifact(PRECOMPUTE)
            if stage != PRECOMPUTE and origin is not None and origin.is_bare():
                # As after an import: there is nothing to make it from.
                fix = f"put it back from a copy; to make it again, {self.command_for(PRECOMPUTE, None)} comes first"
            raise CorruptError(f"a file of {artifact.name} in {self.name} is missing or has another size", fix=fix)
        return artifact

    def ready(self, spec: ArtifactSpec) -> Artifact | None:
        """Return the artifact if making it again would change nothing.

        Raises:
            UsageError: if the artifact, finished or interrupted, differs only in settings that its command line gave
                and this one does not. A command that merely forgot an option must not replace the work of hours.
        """
        folder = self.folder(spec.stage, spec.key)
        self._settle(folder)
        if match := self.matching(spec):
            return match if match.is_complete() else None
        artifact = self.artifact(spec.stage, spec.key)
        for manifest in (artifact.manifest if artifact else None, self._begun(spec.stage, spec.key, has_work=True)):
            if manifest is None:
                continue
            changed = differing_settings(manifest.config, spec.config)
            if changed and changed.keys() <= {*manifest.overrides} - {*spec.overrides}:
                options = ", ".join(f"{name} = {json.dumps(then)}" for name, (then, _) in changed.items())
                again = self.command(*manifest.command) if manifest.command else ""
                raise UsageError(
                    f"{folder.relative_to(self.root)} of {self.name} was made with {options}, and would be replaced",
                    fix=f"{again or 'give the same options'}, or remove {folder}",
                )
        return None

    def matching(self, spec: ArtifactSpec) -> Artifact | None:
        """Return the artifact, complete or damaged, if it was made from these settings and inputs."""
        artifact = self.artifact(spec.stage, spec.key)
        return artifact if artifact and artifact.manifest.spec.request == spec.request else None

    def _settle(self, folder: Path) -> None:
        """End what a killed process has begun, unless another process works here or the folder is read-only."""
        if not is_settled(folder) or (self.root / HOLDER_FILE).exists():
            with suppress(BusyError, UsageError), lock(self.root, self.typed):
                settle(folder)

    def refuse_while_busy(self) -> None:
        """Raise early, before anything slow is loaded, if another process works on this workspace.

        Raises:
            BusyError: if one does.
        """
        with lock(self.root, self.typed):
            pass

    @contextmanager
    def building(self, spec: ArtifactSpec, say: Callable[[str], None] = lambda text: None) -> Iterator[Build]:
        """Make an artifact in a block; it exists after the block has ended without an exception.

        The work of an interrupted attempt from the same settings and inputs is reused, and so are the sound files of a
        damaged artifact. An artifact from other settings or inputs stays in use until the new one replaces it.

        Args:
            say: Told in a line if the work of an interrupted attempt is of no use and will be deleted.

        Raises:
            BusyError: if another process works on this workspace, or has changed an input since it was read.
            UsageError: if the workspace cannot be written to.
            ResourceError: if the disk is full.
        """
        folder = self.folder(spec.stage, spec.key)
        self._refuse_leading_out(replacement_folder(folder))
        draft = draft_manifest(spec, _repeatable(self.typed))
        with lock(self.root, self.typed):
            if changes := self._changed_since(spec.inputs, spec.key):
                raise BusyError(f"another process has changed what is read: {changes[0]}", fix="run it again")
            settle(folder)
            old = self.artifact(spec.stage, spec.key)
            is_same = old is not None and old.manifest.spec.request == spec.request
            damaged = [path for path, _ in old.damaged()] if old and is_same else []
            # What was interrupted before its manifest was written may be beside the folder.
            is_beside = old is None and replacement_folder(folder).exists()
            # Only what is damaged is made again where it is; anything else stays in use until the new one is whole,
            # and so does a manifest without files, as an imported workspace has it.
            is_in_place = not is_beside if old is None else bool(damaged) and not old.is_bare()
            build_folder = folder if is_in_place else replacement_folder(folder)
            if useless := _useless_work(build_folder, spec):
                say(useless)
            with naming_what_does_not_fit(build_folder):
                build = open_folder(build_folder, draft, old if is_in_place else None, damaged)
                yield build
                build.finish(folder)

    def is_outdated(self, draft: Manifest) -> bool:
        """Tell whether an attempt was begun with settings or inputs that have changed since."""
        return bool(_changed_settings(draft, self.settings) or self._changed_since(draft.inputs, draft.key))

    def _changed_inputs(self, artifact: Artifact) -> list[str]:
        """Describe the inputs, and inputs of inputs, that are no longer those that it was made from."""
        return self._changed_since(artifact.manifest.inputs, artifact.manifest.key)

    def _changed_since(self, inputs: Mapping[str, str], key: str | None) -> list[str]:
        """Do so for the inputs, by name, of an artifact with this key."""
        changes = []
        for name, fingerprint in inputs.items():
            current = self._input(name, key)
            if current is None:
                continue  # A deleted input has not changed: hidden states may be deleted after training.
            if current.fingerprint != fingerprint:
                changes.append(f"{current.name} was made again since, and differs")
            else:
                changes += self._changed_inputs(current)
        return changes

    def _input(self, name: str, own_key: str | None) -> Artifact | None:
        """Find an input by its name in `Manifest.inputs`; None if it is gone or no artifact."""
        stage, _, key = name.partition("/")
        if stage not in STAGES:
            return None
        return self.artifact(stage, key or (own_key if stage in KEYED_STAGES else None))

    def _missing(self, stage: str, key: str | None) -> MissingError:
        message = f"{self.name} has no finished '{stage}' stage"
        if key is not None:
            finished = ", ".join(_shown_key(stage, usable) for usable in self.keys(stage)) or "none"
            kind = "ratio" if stage in KEYED_STAGES else "method" if stage == "train-baseline" else "run"
            message += f" for {kind} {_shown_key(stage, key)} (finished: {finished})"
        return MissingError(message, fix=self.command_for(stage, key))

    def _begun(self, stage: str, key: str | None, *, has_work: bool = False) -> Manifest | None:
        """Return the manifest of an attempt that did not finish.

        Args:
            has_work: Skip an attempt that has not written any file yet.
        """
        read, folder = _draft_with_work if has_work else read_draft, self.folder(stage, key)
        is_finished = (folder / MANIFEST_FILE).exists()
        return read(replacement_folder(folder)) or (None if is_finished else read(folder))

    def typed_for(self, stage: str, key: str | None) -> str | None:
        """Return the command that made an artifact, or began one that is not finished; None if it is not recorded."""
        with suppress(CorruptError):
            finished = self.artifact(stage, key)
            manifest = finished.manifest if finished else self._begun(stage, key)
            if manifest and manifest.command:
                return self.command(*manifest.command)
        return None

    def command_for(self, stage: str, key: str | None) -> str:
        """Return the command that makes an artifact: what was typed, or what makes it from the workspace's settings."""
        if typed := self.typed_for(stage, key):
            return typed
        if key is None or stage == "eval":
            return self.command(stage)
        # A key is a method, a ratio or both, as `pause-r0.10`; anything more names a cell of a sweep.
        method = ""
        if stage not in KEYED_STAGES:
            method = max((name for name in get_args(BaselineName) if key.startswith(name)), key=len, default=key)
        if not (ratio := re.fullmatch(r"-?r([0-9.]+)|", key.removeprefix(method))):
            return f"the {self.command('sweep')} that made it"
        options = ["--ratio", f"{Decimal(ratio[1]).normalize():f}"] if ratio[1] else []
        return self.command(stage, *([method] if method else []), *options)


def queries_prefix(source: Artifact) -> str:
    """Return how the names of the cached queries of this `precompute` artifact begin."""
    return f"queries-{source.fingerprint[:12]}-"


def _draft_with_work(folder: Path) -> Manifest | None:
    """Do as `read_draft`, but skip an attempt that has not written any file yet."""
    draft = read_draft(folder)
    return draft if draft and any(path.name != BUILDING_FILE for path in folder.iterdir()) else None


def _useless_work(folder: Path, spec: ArtifactSpec) -> str:
    """Say why a folder's interrupted attempt cannot be resumed; empty if it can, or if there is none with any work."""
    draft = _draft_with_work(folder)
    if draft is None or draft.spec.request == spec.request:
        return ""
    changed = differing_settings(draft.config, spec.config)
    reasons = [f"{name} was {_on_one_line(then)}, now {_on_one_line(now)}" for name, (then, now) in changed.items()]
    why = "; ".join(reasons) or "what it is made from differs"
    return f"an interrupted {spec.stage} is deleted, not resumed: {why}"


def _changed_settings(manifest: Manifest, settings: Settings) -> list[str]:
    changed = differing_settings(manifest.config, stage_config(settings, manifest.stage))
    return [
        f"{name}: {_on_one_line(then)} → {_on_one_line(now)}"
        for name, (then, now) in changed.items()
        if name not in manifest.overrides and not (name in PATH_SETTINGS and has_moved(then, now))
    ]


def _on_one_line(value: object) -> str:
    """Write a setting with escapes in place of line breaks and other characters that cannot be seen."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in str(value))


def _shown_key(stage: str, key: str) -> str:
    """Return a key as people write it: 0.1 for `r0.10`, 0.1-l4 for `r0.10-l4`; the name of a run stays as it is."""
    if stage not in KEYED_STAGES:
        return key
    ratio, *variant = key[1:].split("-", 1)
    return "-".join([f"{Decimal(ratio).normalize():f}", *variant])


def _usual_root(environ: Mapping[str, str], start: Path) -> Path | None:
    """Return the workspace of a command that names none: $CCOT_WORKSPACE, else the nearest at or above `start`."""
    if named := environ.get(ENVIRONMENT_VARIABLE):
        return Path(named)
    return next((folder for folder in (start, *start.parents) if (folder / SETTINGS_FILE).is_file()), None)


def _repeatable(typed: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line that can be repeated anywhere: without the workspace, and with absolute paths.

    Empty for `demo`, because it runs stages that were not typed.
    """
    words: list[str] = []
    previous = ""
    for word in typed:
        name, equals, value = word.partition("=")
        if previous in _PATH_OPTIONS and word not in MODELS and Path(word).exists():
            word = str(absolute(Path(word)))
        elif equals and name in (*_PATH_OPTIONS, *PATH_SETTINGS) and value not in MODELS and Path(value).exists():
            word = f"{name}={absolute(Path(value))}"
        names_workspace = {previous, word} & {"-w", "--workspace"} or re.match(r"--workspace=|-w.", word)
        if not names_workspace:
            words.append(word)
        previous = word
    return () if "demo" in words[:1] else tuple(words)


_PATH_OPTIONS = ("--data", "--model", "--start")
"""Options that may name a file or a folder."""
