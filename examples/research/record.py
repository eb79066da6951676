"""Write what a script measured as a table of the pages, which `docs/tables.py` shows."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ccot_cli.files import write_json


def write_record(
    path: Path, columns: dict[str, str], rows: Sequence[Sequence[Any]], *, seed: int, n: int, note: str
) -> None:
    """Write a table and the command line that is running.

    Args:
        columns: How each column's values are written, by its name.
        rows: Values in the columns' order.
        seed: Of the problems.
        n: Number of problems, or the most of a set.
    """
    command = shlex.join(["python", *sys.argv])
    source = {"command": [command], "seeds": [seed], "n": n, "note": note, "recorded": "output of the command"}
    named = [{"name": name, "format": form} for name, form in columns.items()]
    write_json(path, {"columns": named, "rows": rows, "source": source})
