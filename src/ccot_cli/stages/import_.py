"""Make a workspace from an archive: `ccot ask` answers from it as it did where the methods were trained."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ccot_cli.config import Settings
from ccot_cli.errors import CcotError, CorruptError, UsageError
from ccot_cli.files import commit_folder
from ccot_cli.names import PRECOMPUTE, SETTINGS_FILE
from ccot_cli.overrides import override, with_absolute_paths
from ccot_cli.presets import settings_text
from ccot_cli.settings_file import load_settings
from ccot_cli.stages.inputs import load_unchanged_theta
from ccot_cli.stages.push import HUB_PREFIX, fetch
from ccot_cli.workspace.archive import ADAPTER_FOLDER, INDEX_FILE, ORIGIN_FILE, SETTINGS_TITLE, unpack
from ccot_cli.workspace.artifact import Artifact, write_manifest


@dataclass(frozen=True)
class ImportResult:
    """What the new workspace holds."""

    folder: str
    methods: list[str]
    """Stage and key of each."""
    model: str
    """The θ that answers."""
    is_model_checked: bool
    """Whether θ was loaded and compared with that of the training; else the first answer does so."""


def run(source: str, root: Path, *, model: str | None = None) -> ImportResult:
    """Unpack an archive into a new workspace.

    Args:
        source: An archive, a folder with its files, or `hf://user/name` for a repository of the hub.
        root: The folder to make.
        model: θ, if it is a folder or a file; it is loaded and compared.

    Raises:
        UsageError: if the folder exists, there is no such archive, or θ has to be given.
        CorruptError: if the archive is damaged or holds what it should not, or θ is another one.
        ResourceError: if the disk is full, or the hub is out of reach.
    """
    with commit_folder(root) as folder, TemporaryDirectory() as temporary:
        place = Path(source)
        if source.startswith(HUB_PREFIX):
            place = Path(temporary, "files")
            fetch(source.removeprefix(HUB_PREFIX), place)
        index = unpack(place, folder)
        settings = _settings(source, folder)
        if model is not None:
            model = _use_model(folder, settings, model, index.model.name)
        elif index.model.is_local:
            fix = shlex.join(["ccot", "import", source, "-w", str(root), "--model", "DIR"])
            raise UsageError(f"the methods need the model {index.model.name}, which is no model of a hub", fix=fix)
        (folder / INDEX_FILE).unlink()  # What is trained here later is not of this archive.
    methods = [f"{each.stage}/{each.key}" for each in index.methods]
    return ImportResult(str(root), methods, model or index.model.name, model is not None)


def _settings(source: str, folder: Path) -> Settings:
    try:
        return load_settings(folder / SETTINGS_FILE)
    except CcotError as error:
        raise CorruptError(f"{source} holds settings that cannot be read: {error.message}", fix=error.fix) from None


def _use_model(folder: Path, settings: Settings, name: str, expected: str) -> str:
    """Load θ, compare it with the one of the archive, and write its place on this machine into the new workspace.

    Returns:
        Its name, as an absolute path if it is a folder or a file.
    """
    name = str(with_absolute_paths({"model.name": name}, Path.cwd())["model.name"])
    origin = Artifact.open(folder / PRECOMPUTE)
    assert origin is not None, "unpack has checked it"
    recorded = {**origin.manifest.config["model"], "name": name}
    adapter = str(folder / ADAPTER_FOLDER) if "adapter" in origin.manifest.inputs else None
    if load_unchanged_theta(origin, {**recorded, "adapter": adapter}) is None:
        raise CorruptError(
            f"{name} is not the model that the methods were trained on, {expected}",
            fix="name that model, with the tokenizer and the chat template that it had",
        )
    changed = {"model.name": name, "model.adapter": adapter and ADAPTER_FOLDER}
    text = settings_text(override(settings, changed), SETTINGS_TITLE)
    (folder / SETTINGS_FILE).write_text(text, encoding="utf-8")
    config = {**origin.manifest.config, "model": recorded}
    write_manifest(folder / ORIGIN_FILE, origin.manifest.model_copy(update={"config": config}))
    return name
