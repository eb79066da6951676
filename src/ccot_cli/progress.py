"""How stages tell what they are doing. The base class is silent; the command line draws."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Progress:
    """Receives what happens while a stage works."""

    def say(self, text: str) -> None:
        """One line about what was decided or done."""

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        """Open a piece of work; call what it yields as `advance(count, **figures)`.

        Figures are shown beside the bar, for example `loss="0.12"`; what an earlier run has done counts from the start.
        """

        def advance(count: int = 1, **figures: str) -> None: ...

        yield advance
