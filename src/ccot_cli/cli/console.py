"""Output: results on stdout as they are, everything else on stderr."""

import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from unicodedata import bidirectional, category

from rich.console import Console

from ccot_cli.errors import ResourceError
from ccot_cli.files import is_full
from ccot_cli.progress import Progress

LINE_EVERY_SECONDS = 30.0
LINE_EVERY_FRACTION = 0.1
LEAST_SECONDS = 10.0
"""Off a terminal, progress prints a line after so many seconds, or after this fraction of the work; at most one within
`LEAST_SECONDS`."""
PACE_AFTER_SECONDS = 1.0
"""The time that a pace is computed from, at least."""


def is_colour_unwanted() -> bool:
    """Decide whether the user has switched colours off, with NO_COLOR."""
    return bool(os.environ.get("NO_COLOR"))


_TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
"""Bidirectional classes of the characters that turn the direction of the text after them."""


def visible(text: str) -> str:
    """Write characters that steer a terminal, or turn the direction of text, as escapes such as `\\x1b`.

    Answers, data, file names and manifests may hold any; line breaks and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(repr(each)[1:-1] if _steers(each) else each for each in text)


def _steers(character: str) -> bool:
    return character not in "\n\t" and (category(character) == "Cc" or bidirectional(character) in _TURNS)


def print_line(text: str) -> None:
    """Print one line of a result on stdout, without Rich, which would take [brackets] for markup."""
    _write_line(visible(text))


def _write_line(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        if not is_full(error):
            raise
        leave_stdout()
        raise ResourceError(
            f"stdout takes no more: {str(error.strerror).lower()}", fix="free some space there and run it again"
        ) from None


def leave_stdout() -> None:
    """Write nowhere from now on, because Python writes what is left again on exit, which must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_note(text: str) -> None:
    """Print one line on stderr that is no part of the result."""
    _error_console().print(visible(text))


_names_next: ContextVar[bool] = ContextVar("names_next", default=True)


@contextmanager
def without_next() -> Iterator[None]:
    """Keep `print_next` silent, for a command that runs the next ones itself."""
    token = _names_next.set(False)
    try:
        yield
    finally:
        _names_next.reset(token)


def print_next(command: str) -> None:
    """Print on stderr which command comes next."""
    if _names_next.get():
        print_note(f"next:  {command}")


def _error_console() -> Console:
    """Make a console on stderr that prints text as it is, without markup."""
    # NO_COLOR alone would keep bold and dim; without a colour system Rich leaves them out too.
    return Console(
        stderr=True,
        color_system=None if is_colour_unwanted() else "auto",
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=True,
    )


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Show a spinner while something is loaded; nothing if stderr is not a terminal."""
    console = _error_console()
    if not _can_draw(console):
        yield
        return
    from rich.text import Text

    with console.status(Text(f"loading {visible(name)} …")):
        yield


def _can_draw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def print_json(value: Any) -> None:
    """Print one line of JSON on stdout; if its encoding is not Unicode, with escaped letters.

    Raises:
        ValueError: for NaN or infinity, which JSON does not have.
    """
    is_ascii = not (sys.stdout.encoding or "").lower().startswith("utf")
    # JSON escapes most control characters itself; a terminal obeys those after ASCII too.
    text = json.dumps(value, ensure_ascii=is_ascii, allow_nan=False)
    _write_line("".join(f"\\u{ord(each):04x}" if category(each) == "Cc" else each for each in text))


def print_table(rows: Sequence[Sequence[str]], *, align: str, fits: bool = False) -> None:
    """Print rows of cells with aligned columns; see `aligned`.

    Args:
        fits: On a terminal, cut off what is beyond its width.
    """
    width = shutil.get_terminal_size().columns if fits and sys.stdout.isatty() else None
    for line in aligned(rows, align=align):
        print_line(line if width is None or len(line) <= width else f"{line[: width - 1]}…")


def print_note_table(rows: Sequence[Sequence[str]], *, align: str) -> None:
    """Print rows of cells on stderr: on a terminal with a bold head, elsewhere as `aligned` text.

    Args:
        rows: The head, then the others.
        align: As for `aligned`.
    """
    console = _error_console()
    rows = [[visible(cell) for cell in row] for row in rows]
    if not _can_draw(console):
        for line in aligned(rows, align=align):
            console.print(line)
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title, side in zip(rows[0], align, strict=True):
        # In a narrow terminal words take several lines, numbers do not.
        table.add_column(title, justify="right" if side == ">" else "left", no_wrap=side == ">", overflow="fold")
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)


def counted(count: int, unit: str) -> str:
    """Say how many there are: `1,000 problems`, `1 problem`."""
    return f"{count:,} {unit.removesuffix('s') if count == 1 else unit}"


def steps_taken(num_steps: int, kept_step: int | None) -> str:
    """Say how long a training took, and which step's weights were kept: `192 steps (kept: step 144)`."""
    kept = "" if kept_step in (None, num_steps) else f" (kept: step {kept_step:,})"
    return f"{counted(num_steps, 'steps')}{kept}"


def aligned(rows: Sequence[Sequence[str]], *, align: str) -> list[str]:
    """Format rows of cells as lines with aligned columns.

    Args:
        rows: Cells as text; the head is a row like any other.
        align: One character for each column: `<` for left, `>` for right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)).rstrip()
        for row in rows
    ]


class _Work:
    """A piece of work and its progress as text."""

    def __init__(self, label: str, total: int | None, unit: str, done: int) -> None:
        self.label, self.total, self.unit = visible(label), total, unit
        self.figures: dict[str, str] = {}
        self._start = time.monotonic()
        # Seconds and amount after the latest steps, from which the pace is computed.
        self._marks = deque([(0.0, done)], maxlen=100)

    @property
    def done(self) -> int:
        return self._marks[-1][1]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def advance(self, count: int, figures: dict[str, str]) -> None:
        self._marks.append((self.seconds, self.done + count))
        self.figures |= figures

    def amount(self) -> str:
        """Say how much is done: `412 of 1,000 problems`."""
        if self.total is None:
            return counted(self.done, self.unit)
        return f"{self.done:,} of {counted(self.total, self.unit)}"

    def pace(self) -> str:
        """Say how fast it goes: `53.1/s  0:00:11 left`; without a known end, the first half; empty at the start."""
        (first, before), (last, now) = self._marks[0], self._marks[-1]
        if now == before or last - first < PACE_AFTER_SECONDS:
            return ""
        rate = (now - before) / (last - first)
        left = "" if self.total is None else f"  {_clock((self.total - now) / rate)} left"
        speed = f"{rate:,.1f}/s" if rate >= 1 else f"{60 * rate:,.1f}/min"
        return f"{speed}{left}"

    def shown_figures(self) -> str:
        return "".join(f"  {name} {value}" for name, value in self.figures.items())


class TerminalProgress(Progress):
    """Draws a bar on a terminal; elsewhere it prints a line now and then."""

    def __init__(self) -> None:
        self._console = _error_console()

    def say(self, text: str) -> None:
        self._console.print(visible(text))

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        work = _Work(label, total, unit, done)
        draw = self._bar if _can_draw(self._console) else self._lines
        try:
            with draw(work) as show:

                def advance(count: int = 1, **figures: str) -> None:
                    work.advance(count, figures)
                    show()

                yield advance
        except KeyboardInterrupt:
            self.say(f"{label}: stopped after {work.amount()}")
            raise
        self.say(f"{label}: {counted(work.done, unit)} in {_clock(work.seconds)}{work.shown_figures()}")

    @contextmanager
    def _lines(self, work: _Work) -> Iterator[Callable[[], None]]:
        self.say(f"{work.label}: {work.unit if work.total is None else counted(work.total, work.unit)}")
        last_seconds, last_done = work.seconds, work.done

        def show() -> None:
            nonlocal last_seconds, last_done
            has_advanced = work.total is not None and work.done - last_done >= work.total * LINE_EVERY_FRACTION
            waited = work.seconds - last_seconds
            is_due = waited >= LINE_EVERY_SECONDS or (has_advanced and waited >= LEAST_SECONDS)
            if is_due and work.done != work.total:
                last_seconds, last_done = work.seconds, work.done
                self.say(f"{work.label}: {work.amount()}  {work.pace()}{work.shown_figures()}")

        yield show

    @contextmanager
    def _bar(self, work: _Work) -> Iterator[Callable[[], None]]:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = ("{task.description}", "{task.fields[amount]}", "{task.fields[pace]}")
        label, amount, pace = (TextColumn(column, markup=False) for column in columns)
        bar = Bars(
            *(label, BarColumn(), amount, pace),
            console=self._console,
            transient=True,
            # Rich would print results on the bar's terminal; if stdout is a pipe, they belong there.
            redirect_stdout=sys.stdout.isatty(),
        )
        with bar:
            task = bar.add_task(work.label, total=work.total, amount=work.amount(), pace="")

            def show() -> None:
                pace = work.pace() + work.shown_figures()
                bar.update(task, completed=work.done, amount=work.amount(), pace=pace)

            yield show


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(max(seconds, 0))))
