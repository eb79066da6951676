"""Write files that are whole or absent, and know that they will fit.

A file is written as `x.part` beside its place, flushed to the disk and renamed; readers ignore `*.part`.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ccot_cli.errors import ResourceError

PART = ".part"
"""The suffix of a file that is still being written."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def commit(path: Path) -> Iterator[Path]:
    """Yield the path to write to; on leaving, what stands there becomes `path` in one step.

    Raises:
        ResourceError: where the disk is full. Whatever is raised, `path` is as it was and the partial file is gone.
    """
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)
    try:
        yield part
        flush_to_disk(part)
        # Some writers create private files; a result is as readable as any other file of its owner.
        part.chmod(0o666 & ~_umask())
        part.replace(path)
        flush_to_disk(path.parent)
    except BaseException as error:
        written = part.stat().st_size if part.exists() else 0
        part.unlink(missing_ok=True)
        if isinstance(error, Exception) and _is_full(error):
            raise ResourceError(
                f"no room for {path}: more than {human_bytes(written)} needed, {human_bytes(free_bytes(path))} free",
                fix="free some space and run the same command again; what is finished is kept",
            ) from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Commit a value as JSON.

    Raises:
        ValueError: for NaN or infinity, which JSON cannot hold.
        ResourceError: where the disk is full.
    """
    with commit(path) as part:
        part.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """The hash of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_to_disk(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(path: Path) -> int:
    """Bytes that may be written at a path, which need not exist yet."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def check_space(path: Path, needed: int, *, force: bool = False, fix: str = "free some space, or add --force") -> None:
    """Refuse work that will not fit, before it starts.

    Raises:
        ResourceError: where fewer than `needed` bytes are free, unless forced.
    """
    free = free_bytes(path)
    if free < needed and not force:
        raise ResourceError(
            f"this needs about {human_bytes(needed)}, and {human_bytes(free)} are free in {path}", fix=fix
        )


def human_bytes(count: int) -> str:
    """A size for people: `312 B`, `1.5 kB`, `242 GB`."""
    size, power = float(count), 0
    while size >= 999.5 and power < 4:
        size, power = size / 1000, power + 1
    digits = 1 if power and size < 9.95 else 0
    return f"{size:.{digits}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _is_full(error: Exception) -> bool:
    # safetensors has an exception of its own, which holds the system's only as text.
    named = isinstance(error, OSError) and error.errno in _FULL
    return named or any(os.strerror(code) in str(error) for code in _FULL)
