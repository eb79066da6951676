"""Archives: trained methods in one file, or in a folder with the same files.

    archive.json                      what the archive is, and size and hash of its files
    README.md                         a model card
    results.json                      figures of evaluations, if there are any
    ccot.yaml                         settings
    precompute/manifest.json          which model and which problems; the hidden states stay behind
    adapter/                          the adapter that makes θ of the base model, if there is one
    train-psi/r0.10/                  an artifact, as in a workspace
    train-decoder/r0.10/              the chain decoder of that method, if there is one
    train-baseline/direct/            another one

The file is a zip without compression. Its comment, the last bytes, is the hash of all bytes before it. Equal contents
make equal bytes.
"""

import hashlib
import json
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from pydantic import BaseModel, ConfigDict, ValidationError

from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.files import SEAL_BYTES, check_space, commit, is_sealed, seal
from ccot_cli.names import ADAPTER_CONFIG_FILE, ADAPTER_FILE, PRECOMPUTE, SETTINGS_FILE
from ccot_cli.workspace.artifact import MANIFEST_FILE, OTHER_BYTES, Artifact, FileRecord, sealed, take_seal

ARCHIVE_FORMAT = 1
"""Version of the layout; an archive of a later one is refused."""
INDEX_FILE, CARD_FILE, RESULTS_FILE = "archive.json", "README.md", "results.json"
ORIGIN_FILE = f"{PRECOMPUTE}/{MANIFEST_FILE}"
ADAPTER_FOLDER = "adapter"
ADAPTER_FILES = tuple(f"{ADAPTER_FOLDER}/{name}" for name in (ADAPTER_CONFIG_FILE, ADAPTER_FILE))
"""The adapter that makes θ of the base model."""
SETTINGS_TITLE = "Settings that these methods were trained with, or answer with."
MOST_LETTERS = 200
MOST_INDEX_BYTES = 10**7
_OF_ARTIFACT = re.compile(r"(train-psi|train-decoder|train-baseline)(/[A-Za-z0-9][A-Za-z0-9._-]*){2,3}")
_SUFFIXES = (".json", ".jsonl", ".safetensors")
"""Of the files of artifacts: weights and text; nothing that runs when it is read."""
_START_OF_ZIP = (1980, 1, 1, 0, 0, 0)
"""The time of every file, so that equal contents make equal bytes."""


class ArchivedModel(BaseModel):
    """The θ that the methods were trained on; it is not in the archive."""

    model_config = ConfigDict(frozen=True)

    name: str
    """As in the settings; of a folder or file on the exporting machine its last part."""
    revision: str | None
    fingerprint: str
    is_local: bool
    """Whether the name is a folder's or a file's, so that the model has to be given at import."""
    has_adapter: bool = False
    """Whether θ is that model with the adapter of the archive merged into it."""


class ArchivedMethod(BaseModel):
    """A trained method, or a method's chain decoder."""

    model_config = ConfigDict(frozen=True)

    stage: str
    key: str
    method: str
    ratio: str
    """r, as text."""


class ArchiveIndex(BaseModel):
    """What an archive is."""

    model_config = ConfigDict(frozen=True)

    format: int
    ccot: str
    """Version of the package that wrote it."""
    model: ArchivedModel
    methods: list[ArchivedMethod]
    files: dict[str, FileRecord]
    """All files but this index and the card, which people may edit."""


Contents = Mapping[str, bytes | Path]
"""Files by their names in the archive: what they hold, or where they are."""


def write_archive(path: Path, index: ArchiveIndex, contents: Contents) -> None:
    """Write an archive, atomically.

    Args:
        contents: All files but the index. Those that it lists must have the hashes that it gives.

    Raises:
        CorruptError: if a file does not hold what the index says.
        ResourceError: if the disk is full.
    """
    files = {**contents, INDEX_FILE: sealed(index.model_dump(mode="json"))}
    with commit(path) as part:
        with ZipFile(part, "w", ZIP_STORED) as archive:
            for name, content in sorted(files.items()):
                digest = _store(archive, name, content)
                if name in index.files and digest != index.files[name].sha256:
                    raise CorruptError(f"{name} {OTHER_BYTES}", fix="ccot verify")
            archive.comment = bytes(SEAL_BYTES)
        with part.open("r+b") as file:
            file.truncate(part.stat().st_size - SEAL_BYTES)
        seal(part)


def _store(archive: ZipFile, name: str, content: bytes | Path) -> str:
    """Append a file, and return its hash."""
    entry, digest = ZipInfo(name, _START_OF_ZIP), hashlib.sha256()
    entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
    entry.file_size = len(content) if isinstance(content, bytes) else content.stat().st_size
    with archive.open(entry, "w") as stored:
        for block in _blocks(content):
            digest.update(block)
            stored.write(block)
    return digest.hexdigest()


def _blocks(content: bytes | Path) -> Iterable[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def unpack(source: Path, folder: Path) -> ArchiveIndex:
    """Copy the files of an archive, a file or an unpacked one, into an empty folder, and check them.

    Raises:
        UsageError: if there is no archive.
        CorruptError: if it is damaged, was written by a newer version, or holds anything that it should not.
        ResourceError: if the disk is full.
    """
    if not source.exists():
        raise UsageError(f"there is no file {source}", fix="ccot import FILE, as ccot export wrote it")
    try:
        if source.is_dir():
            index = _copy(source, folder)
        else:
            with source.open("rb") as file:
                index = _extract(source, file, folder)
    except (BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise _refusal(source, f"cannot be read: {error}") from None
    _check_artifacts(source, folder, index)
    return index


def _copy(source: Path, folder: Path) -> ArchiveIndex:
    """Copy an unpacked archive; what else is in its folder is left there."""
    if not (source / INDEX_FILE).is_file():
        fix = "name a file that ccot export wrote, or a folder with its files"
        raise UsageError(f"{source} is no archive: it has no {INDEX_FILE}", fix=fix)
    if (source / INDEX_FILE).stat().st_size > MOST_INDEX_BYTES:
        raise _refusal(source, f"has {INDEX_FILE} of an absurd size")
    index = _read_index(source, (source / INDEX_FILE).read_bytes())
    names = [*index.files, *(name for name in (CARD_FILE, INDEX_FILE) if (source / name).exists())]
    paths = {name: source / name for name in names}
    for name, path in paths.items():
        if not path.is_file() or path.is_symlink() or not path.resolve().is_relative_to(source.resolve()):
            raise _refusal(source, f"has no plain file {name}")
    check_space(folder, sum(path.stat().st_size for path in paths.values()))
    for name, path in paths.items():
        with path.open("rb") as file:
            _put(source, folder, name, file, index)
    return index


def _extract(source: Path, file: BinaryIO, folder: Path) -> ArchiveIndex:
    """Unpack an archive. No entry is compressed, so that none is larger than the file."""
    if not is_sealed(source):
        raise _refusal(source, f"is no archive of ccot, or {OTHER_BYTES}")
    with ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        for entry in entries.values():
            is_plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG)
            if not is_plain or entry.compress_type != ZIP_STORED or entry.file_size != entry.compress_size:
                raise _refusal(source, f"holds {entry.filename!r}, which is no plain file")
        if INDEX_FILE not in entries or entries[INDEX_FILE].file_size > MOST_INDEX_BYTES:
            raise _refusal(source, f"has no {INDEX_FILE}, or one of an absurd size")
        index = _read_index(source, archive.read(INDEX_FILE))
        if len({name.casefold() for name in entries}) < len(archive.infolist()):
            raise _refusal(source, "holds two files of one name")
        if wrong := sorted(entries.keys() ^ {*index.files, CARD_FILE, INDEX_FILE}):
            raise _refusal(source, f"and its {INDEX_FILE} disagree about {wrong[0]!r}")
        check_space(folder, sum(entry.file_size for entry in entries.values()))
        for name, entry in entries.items():
            with archive.open(entry) as stored:
                _put(source, folder, name, stored, index)
    return index


def _read_index(source: Path, text: bytes) -> ArchiveIndex:
    try:
        values: Any = json.loads(text)
        if values["format"] > ARCHIVE_FORMAT:
            raise CorruptError(f"{source} was written by a newer ccot, {values['ccot']}", fix="upgrade ccot")
        is_whole = take_seal(values, text)
        index = ArchiveIndex.model_validate(values)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it is no index"
        raise _refusal(source, f"has {INDEX_FILE} that cannot be read: {reason}") from None
    if not is_whole:
        raise _refusal(source, f"has {INDEX_FILE} that {OTHER_BYTES}")
    if strange := [name for name in index.files if not _is_allowed(name)]:
        raise _refusal(source, f"names {strange[0]!r}")
    return index


def _is_allowed(name: str) -> bool:
    """Tell whether a name is one of an archive's files: so it leads nowhere else, and nothing runs when it is read."""
    is_of_artifact = _OF_ARTIFACT.fullmatch(name) is not None and name.endswith(_SUFFIXES) and len(name) <= MOST_LETTERS
    return is_of_artifact or name in (SETTINGS_FILE, ORIGIN_FILE, RESULTS_FILE, *ADAPTER_FILES)


def _put(source: Path, folder: Path, name: str, stored: Any, index: ArchiveIndex) -> None:
    """Write a file into the folder, and compare it with the index."""
    target, digest = folder / name, hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        while block := stored.read(1 << 20):
            digest.update(block)
            file.write(block)
    record = index.files.get(name)
    if record and (record.sha256, record.size) != (digest.hexdigest(), target.stat().st_size):
        raise _refusal(source, f"holds {name} that {OTHER_BYTES}")


def _check_artifacts(source: Path, folder: Path, index: ArchiveIndex) -> None:
    """Check that what was unpacked is settings, the manifest of `precompute`, and whole artifacts of the methods."""
    names = {SETTINGS_FILE, ORIGIN_FILE, *(ADAPTER_FILES if index.model.has_adapter else ())}
    for method in index.methods:
        name = f"{method.stage}/{method.key}"
        files = {f"{name}/{MANIFEST_FILE}": index.files.get(f"{name}/{MANIFEST_FILE}")}
        artifact = Artifact.open(folder / name) if all(files.values()) else None
        if artifact is None or artifact.name != name:
            raise _refusal(source, f"has no method {name!r}")
        files |= {f"{name}/{each}": record for each, record in artifact.manifest.files.items()}
        if wrong := sorted(each for each, record in files.items() if index.files.get(each) != record):
            raise _refusal(source, f"holds no {wrong[0]!r} as its manifest says")
        names |= files.keys()
    if not index.methods:
        raise _refusal(source, "holds no method")
    if wrong := sorted((index.files.keys() - {RESULTS_FILE}) ^ names):
        raise _refusal(source, f"and its methods disagree about {wrong[0]!r}")
    origin = Artifact.open(folder / PRECOMPUTE)
    if origin is None or origin.name != PRECOMPUTE or origin.manifest.inputs.get("model") != index.model.fingerprint:
        raise _refusal(source, "does not say which model its methods were trained on")


def _refusal(source: Path, reason: str) -> CorruptError:
    return CorruptError(f"{source} {reason}", fix="copy it again, or let ccot export write it again")
