"""Read rows of named columns from a .jsonl, .csv or .parquet file, or from a hub data set."""

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ccot_cli.errors import ResourceError, UsageError
from ccot_cli.files import expanded, strict_json
from ccot_cli.hub import hub_answers

DataRow = dict[str, Any] | ValueError
"""Cells by column, or the error that says why the row cannot be read: one bad row does not end the reading."""


def names_file(source: str) -> bool:
    """Tell by its name whether a source is a file, rather than a hub data set or a folder."""
    return Path(source).suffix.lower() in _READERS


def read_rows(source: str, *, subset: str | None, split: str) -> list[tuple[int, DataRow]]:
    """Return all rows of a source with their numbers from 1; a JSONL row's number is that of its line.

    Args:
        source: A file, a folder or the name of a hub data set.
        subset: Configuration of a folder or a hub data set; a file has none.
        split: Split of a folder or a hub data set; a file has none.

    Raises:
        UsageError: if there is no such source, or it cannot be read.
        ResourceError: if the hub cannot be reached.
    """
    path = expanded(source)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UsageError(f"{source} is a pipe or a device", fix="write the problems into a file: they are read again")
    if names_file(source):
        return _read_file(source, path)
    if path.is_file():
        raise UsageError(f"{source} is no kind of file that can be read", fix=f"give one named {', '.join(_READERS)}")
    if source.startswith(("/", ".", "~")) and not path.exists():
        raise _no_such_file(source)
    return list(enumerate(_load_from_hub(source, subset, split), start=1))


def _read_file(source: str, path: Path) -> list[tuple[int, DataRow]]:
    try:
        return list(_READERS[path.suffix.lower()](path))
    except FileNotFoundError:
        raise _no_such_file(source) from None
    except (OSError, ValueError, csv.Error) as error:  # pyarrow raises ValueErrors
        raise UsageError(f"{source} cannot be read: {_one_line(error)}", fix="repair the file") from error


def _no_such_file(source: str) -> UsageError:
    fix = f"check the path; a relative one starts at {Path.cwd()}"
    return UsageError(f"there is no file {source}", fix=fix)


def _read_jsonl(path: Path) -> Iterator[tuple[int, DataRow]]:
    # With surrogateescape, a byte that is not UTF-8 makes its row unusable, but not the file.
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _parse_json(line)


def _parse_json(line: str) -> DataRow:
    try:
        row = strict_json(line)
    except (ValueError, RecursionError):
        return ValueError("it is not JSON")
    return row if isinstance(row, dict) else ValueError("it is JSON, but not an object with columns")


def _read_csv(path: Path) -> Iterator[tuple[int, DataRow]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=1):
            # DictReader keeps surplus cells under the key None. They mean that a comma was not quoted.
            yield number, ValueError("it has more cells than the header") if None in row else dict(row)


def _read_parquet(path: Path) -> Iterable[tuple[int, DataRow]]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        return enumerate(file.read().to_pylist(), start=1)


_READERS: dict[str, Callable[[Path], Iterable[tuple[int, DataRow]]]] = {
    ".jsonl": _read_jsonl,
    ".json-lines": _read_jsonl,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _load_from_hub(source: str, subset: str | None, split: str) -> list[DataRow]:
    import datasets
    from huggingface_hub import constants

    if not Path(source).exists() and not hub_answers():
        # Then only what was downloaded before is looked for. Left alone, the library would try again for a minute.
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        rows: list[DataRow] = datasets.load_dataset(source, subset, split=split).to_list()
    except (FileNotFoundError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(
            f"cannot load the data set {source!r}: {_one_line(error)}",
            fix=f"check data.source, data.subset and data.split, or give a file named {', '.join(_READERS)}",
        ) from error
    except OSError as error:
        raise ResourceError(
            f"cannot fetch the data set {source!r}: {_one_line(error)}",
            fix="run the same command once with a network: the data is cached, then HF_HUB_OFFLINE=1 works",
        ) from error
    return rows


def _one_line(error: Exception) -> str:
    """Return an error's message on one line of at most 200 characters; some libraries' messages fill a page."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:199]}…"
