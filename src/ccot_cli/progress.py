"""How stages report what they are doing. The base class is silent; the command line draws progress bars."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Progress:
    """Receives the progress of a stage."""

    def say(self, text: str) -> None:
        """Report one line about what was decided or done."""

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        """Start a task, and yield the function that reports its progress: `advance(count, **figures)`.

        Args:
            label: Name of the task.
            total: Units of work in all; None if unknown.
            unit: Name of a unit, in the plural.
            done: Units that an earlier run has finished.

        Figures are shown beside the bar, for example `loss="0.12"`.
        """

        def advance(count: int = 1, **figures: str) -> None: ...

        yield advance

    @contextmanager
    def tracking(self, run: str, request: str, settings: Mapping[str, Any]) -> Iterator[None]:
        """Say in a block that what `measure` is told belongs to one run of a stage.

        Args:
            run: Its name, such as `train-psi-r0.10`.
            request: Hash that is the same if the run is resumed.
            settings: What it was asked for.
        """
        yield

    def measure(self, step: int, figures: Mapping[str, Any]) -> None:
        """Report the figures of a step of training.

        Args:
            step: Number of the step, from 1.
            figures: What a line of the log has; only numbers are of interest.
        """
