"""What an adapter was trained with: the runs behind it, the oldest first, kept in its folder.

An adapter that started from another one has that one's runs too, so that what two methods cost can be compared.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from ccot_cli.errors import CorruptError, retrain_hint
from ccot_cli.files import write_json

HISTORY_FILE = "training.json"


@dataclass(frozen=True)
class TrainingRun:
    """One run of training."""

    steps: Annotated[int, Field(ge=0)]
    batch_size: Annotated[int, Field(ge=1)]
    """Problems of a step."""
    problems: Annotated[int, Field(ge=1)]
    """Different ones."""
    passes: Annotated[int, Field(ge=0)]
    """Over the problems; of every layer, if layers were trained one by one."""
    weights: Annotated[int, Field(ge=0)]
    """Numbers in the adapter."""


History = list[TrainingRun]
_RUNS = TypeAdapter(History)


def read_history(folder: Path) -> History | None:
    """Read the history of the adapter in a folder; None if whoever trained it left none.

    Raises:
        CorruptError: if the file is damaged.
    """
    path = folder / HISTORY_FILE
    if not path.exists():
        return None
    try:
        return _RUNS.validate_json(path.read_bytes(), strict=True)
    except (OSError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise CorruptError(f"{path} cannot be read: {reason}", fix=retrain_hint(folder.parent)) from error


def write_history(history: Sequence[TrainingRun], folder: Path) -> None:
    """Write the history of the adapter in a folder."""
    write_json(folder / HISTORY_FILE, [asdict(run) for run in history])
