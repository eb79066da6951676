"""Write files atomically, and check that they fit on the disk.

A file is written as `x.part` beside `x`, flushed to the disk and renamed. Readers ignore `*.part`.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any

from ccot_cli.errors import CcotError, ResourceError, UsageError

PART = ".part"
"""The suffix of a file that is still being written."""

REMEMBERED_BYTES = 1 << 26
"""From this size on, the hash of a model's file is kept: hashing it again would be felt."""

SEAL_BYTES = hashlib.sha256().digest_size

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def commit(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on leaving, that file becomes `path` in one step.

    After any exception `path` is as it was, and the temporary file is gone.

    Raises:
        ResourceError: if the disk is full.
    """
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)
    try:
        yield part
        flush_to_disk(part)
        set_usual_mode(part)
        part.replace(path)
        flush_to_disk(path.parent)
    except BaseException as error:
        written = part.stat().st_size if part.exists() else 0
        part.unlink(missing_ok=True)
        if isinstance(error, Exception) and is_full(error):
            raise no_room(path, written, error) from error
        raise


@contextmanager
def commit_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill; on leaving, it becomes `folder`, which must not exist yet, in one step.

    After any exception there is nothing new.

    Raises:
        UsageError: if `folder` exists.
        ResourceError: if the disk is full.
    """
    check_new(folder)
    folder = absolute(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=PART, dir=folder.parent))
    try:
        with naming_what_does_not_fit(part):
            yield part
            for path in part.rglob("*"):
                if path.is_file():
                    set_usual_mode(path)
                flush_to_disk(path)
        part.chmod(0o777 & ~_umask())
        flush_to_disk(part)
        part.replace(folder)
        flush_to_disk(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_new(path: Path, *, fix: str = "name another one, or remove it") -> None:
    """Refuse to write where something is, or where nothing can be written.

    Raises:
        UsageError: if the file or folder exists, or a link of that name, or its folder is none or somebody else's.
    """
    if os.path.lexists(path):
        raise UsageError(f"{path} exists already", fix=fix)
    folder = next(each for each in path.absolute().parents if each.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"nothing can be written in {folder}", fix="choose a folder of your own")


@contextmanager
def naming_what_does_not_fit(folder: Path) -> Iterator[None]:
    """Turn a library's error about a full disk, in a block that writes into a folder, into one that says what to do.

    Raises:
        ResourceError: if the disk is full.
    """
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        raise no_room(folder, written, error) from error


def no_room(path: Path, written: int, error: Exception) -> ResourceError:
    """Return the error for a file or folder that did not fit on the disk.

    Args:
        written: Bytes of it that were written.
        error: What the system or a library raised; it says whether the disk, a quota or another limit is reached.
    """
    reason = next((each for each in map(os.strerror, _FULL) if each in str(error)), "the disk is full").lower()
    return ResourceError(
        f"no room for {path}: more than {human_bytes(written)} needed, {human_bytes(free_bytes(path))} free ({reason})",
        fix="free some space and run the same command again; what is finished is kept",
    )


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically.

    Raises:
        ValueError: if it holds NaN or infinity, which JSON does not have.
        ResourceError: if the disk is full.
    """
    with commit(path) as part:
        part.write_bytes(json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return what `write_json` writes.

    Raises:
        ValueError: if it holds NaN or infinity, which JSON does not have.
    """
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def strict_json(text: str | bytes) -> Any:
    """Read JSON that can be written again: Python's reader alone takes more.

    Raises:
        ValueError: if it is none, holds NaN, infinity or a number as large as 1e999, or names a key twice.
        RecursionError: if its brackets are nested too deep.
    """

    def finite(number: str) -> float:
        if not isfinite(value := float(number)):
            raise ValueError(f"{number} is not finite")
        return value

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(values := dict(pairs)) < len(pairs):
            raise ValueError("a key is named twice")
        return values

    return json.loads(text, parse_constant=finite, parse_float=finite, object_pairs_hook=distinct)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 hash of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def user_cache() -> Path:
    """Return the folder for what is kept between commands and may be deleted at any time; it need not exist."""
    with suppress(RuntimeError):  # There is no home folder.
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ccot"
    return Path(tempfile.gettempdir()) / "ccot"


def remembered_sha256(path: Path) -> str:
    """Return the SHA-256 hash of a file that may have gigabytes.

    The hash of a large file is kept in the user's cache, and holds as long as the system tells of no change to it. A
    disk that returns other bytes than were written is not noticed then.
    """
    status = path.stat()
    if status.st_size < REMEMBERED_BYTES:
        return sha256_of(path)
    # The time of the last change of status is among it: unlike that of the content, no program can set it back.
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    kept = user_cache() / "hashes" / f"{name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = strict_json(kept.read_bytes())
        if known["stamp"] == stamp:
            return str(known["sha256"])
    digest = sha256_of(path)
    with suppress(OSError, ResourceError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, {"path": str(path.resolve()), "stamp": stamp, "sha256": digest})
    return digest


def seal(path: Path) -> None:
    """Append the hash of a file's bytes."""
    digest = bytes.fromhex(sha256_of(path))
    with path.open("ab") as file:
        file.write(digest)


def is_sealed(path: Path) -> bool:
    """Tell whether a file ends with the hash of what precedes."""
    left = path.stat().st_size - SEAL_BYTES
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        return left == 0 and file.read() == digest.digest()


def absolute(path: Path) -> Path:
    """Return the absolute path of a file or folder, under its own name even if it is a link: the name tells the kind.

    A hub's cache, for example, holds links with names to files without.
    """
    return path.resolve() if path.name in ("", "..") else path.parent.resolve() / path.name


def set_usual_mode(path: Path) -> None:
    """Give a file the permissions of any new file: some writers create files that only their owner may read.

    A file of another user stays as it is.
    """
    with suppress(PermissionError):
        path.chmod(0o666 & ~_umask())


def flush_to_disk(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expanded(name: str) -> Path:
    """Return a path with the home folder in the place of `~`; of a user who is not there it stays as it is."""
    with suppress(RuntimeError):
        return Path(name).expanduser()
    return Path(name)


def free_bytes(path: Path) -> int:
    """Return how many bytes are free on the disk of a path, which need not exist yet."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def check_space(path: Path, needed: int, *, fix: str = "free some space") -> None:
    """Refuse work that will not fit on the disk, before it starts.

    Args:
        needed: Bytes.
        fix: What the error suggests.

    Raises:
        ResourceError: if fewer than `needed` bytes are free.
    """
    free = free_bytes(path)
    if free < needed:
        raise ResourceError(
            f"this needs about {human_bytes(needed)}, and {human_bytes(free)} are free in {path}", fix=fix
        )


def reserve(path: Path, size: int) -> None:
    """Take `size` bytes of the disk for a file that is then written to as memory: running out there would be fatal.

    Raises:
        ResourceError: if the disk is full.
    """
    if not hasattr(os, "posix_fallocate"):  # macOS
        return
    with path.open("ab") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if not is_full(error):
                raise
            raise no_room(path, size, error) from error


def human_bytes(count: int) -> str:
    """Format a number of bytes for people: `312 B`, `1.5 kB`, `242 GB`."""
    size, power = float(count), 0
    while size >= 999.5 and power < 4:
        size, power = size / 1000, power + 1
    digits = 1 if power and size < 9.95 else 0
    return f"{size:.{digits}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _umask() -> int:
    # The only way to read the mask is to set another one.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def is_full(error: Exception) -> bool:
    """Decide whether an error means that a disk, a quota or a limit on a file's size is full."""
    if isinstance(error, CcotError):
        return False
    # safetensors raises its own exception, which holds the system's error only as text.
    is_system_error = isinstance(error, OSError) and error.errno in _FULL
    return is_system_error or any(os.strerror(code) in str(error) for code in _FULL)
