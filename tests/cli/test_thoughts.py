"""Thoughts in a terminal."""

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from ccot_cli.cli.console import print_note_table
from ccot_cli.cli.thoughts import ALIGN, NEAREST_ALIGN, nearest_table, swapped_table, thoughts_table
from ccot_cli.models.decoding.thoughts import Likeness, Word
from ccot_cli.stages.thoughts import CheckedThought
from cli.running import ESCAPE, Output

PLAIN = [Word(" 19", 0.984), Word(" 20", 0.01), Word("\n", 0.001), Word("[b]", 0.0), Word(" 21", 0.0)]
LONG = [Word("antidisestablishmentarianism", 1.0), *[Word(" thousands", 0.0)] * 4]
THOUGHTS = [
    CheckedThought(PLAIN, PLAIN[1:], 0.0, 12.34, 1, True, "12 + 7 = 19"),
    CheckedThought(LONG, LONG, 1.0, 98765.4, 200, True, "1234.5 * 1000 = 1234500"),
    CheckedThought(PLAIN, LONG, 0.5, 123.4, 3, False, ""),
]
TABLE = thoughts_table(THOUGHTS, layer=5, num_layers=8)


def test_a_row_has_the_words_that_fit_and_how_the_number_follows() -> None:
    assert TABLE[0] == ("", "at index L = 8", "at index l = 5", "END", "norm", "verified")
    assert TABLE[1] == ("1", "19 0.98  20  '\\n'  [b]  21", "20 0.01  '\\n'", "0.00", "12.3", "12 + 7 = 19")
    assert TABLE[2][3:] == ("1.00", "98765", "1234.5 * 1000 …")
    assert TABLE[2][1] == "antidisestablishment… 1.00"
    assert TABLE[3][5] == "no"


def test_the_nearest_gold_states_have_a_table_of_their_own_if_there_are_any(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nearest_table(THOUGHTS) == []
    near = [
        replace(THOUGHTS[0], nearest=Likeness("Adding 9 and 6 gives 9 + 6 [=] 15.", 0.934)),
        replace(THOUGHTS[1], nearest=Likeness("so " * 40, -0.5)),
    ]
    head, first, second = nearest_table(near)
    assert head == ("", "cosine", "nearest gold state, of the token in [brackets]")
    assert first == ("1", "0.93", "Adding 9 and 6 gives 9 + 6 [=] 15.")
    assert second[2].endswith("…")
    monkeypatch.setenv("COLUMNS", "80")
    print_note_table(nearest_table(near), align=NEAREST_ALIGN)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert max(map(cell_len, lines)) <= 80


def test_a_narrow_terminal_breaks_words_and_no_numbers(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    print_note_table(TABLE, align=ALIGN)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().err).splitlines()
    assert max(map(cell_len, lines)) <= 60
    numbers = [column for column, side in enumerate(ALIGN) if side == ">"]
    firsts = [next(line for line in lines if line.strip().startswith(row[0])) for row in TABLE[1:]]
    assert all(row[column] in line for row, line in zip(TABLE[1:], firsts, strict=True) for column in numbers)
    assert sum(line.count("thousands") for line in lines) == sum("".join(row).count("thousands") for row in TABLE)


def test_the_answers_after_swaps_have_a_table_of_their_own_if_there_are_any() -> None:
    assert swapped_table(THOUGHTS) == []
    assert swapped_table([replace(THOUGHTS[0], swapped="31"), THOUGHTS[1]])[1:] == [("1", "31")]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_table_fits_80_columns(capsys: Output, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    print_note_table(TABLE, align=ALIGN)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (ESCAPE in captured.err) == is_terminal
    lines = re.sub(r"\x1b\[[0-9;]*m", "", captured.err).splitlines()
    assert len(lines) == len(TABLE)
    assert max(map(cell_len, lines)) <= 80
    assert all(cell in line for row, line in zip(TABLE, lines, strict=True) for cell in row)
