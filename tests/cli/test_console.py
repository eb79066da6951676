"""What people see: answers on stdout as they are, everything else on stderr."""

import json
import os
import subprocess
import sys

import pytest

from ccot_cli.cli.console import TerminalProgress, print_json, print_line, print_note, print_note_table, print_table
from cli.running import ESCAPE, Output, ccot


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_a_bar_on_the_terminal_leaves_the_pipe_its_lines() -> None:
    lines = """
from ccot_cli.cli.console import TerminalProgress, print_json
@app.command()
def lines():
    with TerminalProgress().task("answers", total=2, unit="questions") as advance:
        for number in range(2):
            print_json({"line": number})
            advance()

@app.command()
def other(): pass
"""
    ours, theirs = os.openpty()
    start = f"from ccot_cli.__main__ import main; from ccot_cli.cli.app import app; {lines}\nmain()"
    command = [sys.executable, "-c", start, "lines"]
    try:
        found = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True, timeout=60)
        drawn = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert found.stdout == '{"line": 0}\n{"line": 1}\n'
    assert "answers" in drawn
    assert "line" not in drawn


class TestConsole:
    def test_json_is_one_line_in_letters_that_stdout_can_hold(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        print_json({"θ": "[b]"})
        assert capsys.readouterr().out == '{"θ": "[b]"}\n'
        with ccot(
            "x",
            code="app.command('x')(lambda: 0); from ccot_cli.cli.console import print_json; print_json('é')",
            PYTHONIOENCODING="latin-1",
        ) as process:
            assert process.communicate()[0] == '"\\u00e9"\n'

    def test_a_tables_columns_stand_below_each_other(self, capsys: Output) -> None:
        print_table([["method", "r", ""], ["ccot", "0.05", "[x]"]], align="<><")
        assert capsys.readouterr().out == "method     r\nccot    0.05  [x]\n"

    def test_progress_elsewhere_than_on_a_terminal_is_a_few_plain_lines(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        with TerminalProgress().task("train [φ]", total=1000, unit="steps") as advance:
            for step in range(1000):
                now[0] += 0.5 if step < 900 else 35.0
                if step < 902:
                    advance(loss=f"{step}")
            advance(98)
        out, err = capsys.readouterr()
        lines = err.splitlines()
        assert out == ""
        assert lines[0] == "train [φ]: 1,000 steps"
        assert lines[1] == "train [φ]: 60 of 1,000 steps  2.0/s  0:07:50 left  loss 59", "after 30 s"
        assert lines[2] == "train [φ]: 120 of 1,000 steps  2.0/s  0:07:20 left  loss 119"
        assert lines[-2] == "train [φ]: 902 of 1,000 steps  50.1/min  0:01:57 left  loss 901"
        assert lines[-1] == "train [φ]: 1,000 steps in 1:05:50  loss 901"

    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [
            (0.001, []),
            (0.5, [str(done) for done in range(20, 100, 20)]),
            (1.5, [str(done) for done in range(10, 100, 10)]),
            (15.0, [str(done) for done in range(2, 100, 2)]),
        ],
    )
    def test_a_line_comes_every_tenth_or_half_minute_but_not_within_ten_seconds(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[str]
    ) -> None:
        now = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        with TerminalProgress().task("read", total=100, unit="rows") as advance:
            for _ in range(100):
                now[0] += seconds
                advance()
        assert [line.split()[1] for line in capsys.readouterr().err.splitlines()[1:-1]] == expected

    def test_a_pace_is_not_told_from_a_moment(self, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        with TerminalProgress().task("read", total=100, unit="rows") as advance:
            now[0] += 40
            advance(1)
            now[0] += 0.0001
            advance(50)
        first, second = capsys.readouterr().err.splitlines()[1:]
        assert first == "read: 1 of 100 rows  1.5/min  1:06:00 left"
        assert "/s" not in second

    def test_a_piece_of_work_may_have_no_known_end(self, capsys: Output) -> None:
        with TerminalProgress().task("read", total=None, unit="rows") as advance:
            advance(3)
        assert capsys.readouterr().err.splitlines()[-1] == "read: 3 rows in 0:00:00"

    def test_a_dumb_terminal_gets_lines(self, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")
        with TerminalProgress().task("outer", total=1, unit="layers") as advance:
            advance()
        assert capsys.readouterr().err.splitlines() == ["outer: 1 layer", "outer: 1 layer in 0:00:00"]

    def test_a_terminal_gets_a_bar_and_one_line_at_the_end(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        with TerminalProgress().task("outer [x]", total=2, unit="layers") as advance:
            with TerminalProgress().task("inner", total=1, unit="steps") as step:
                step(loss="0.5")
            advance(2)
        err = capsys.readouterr().err
        assert ESCAPE in err
        assert "━" in err
        assert "2 of 2 layers" in err
        assert "inner: 1 step in 0:00:00  loss 0.5" in err
        assert err.rstrip().endswith("outer [x]: 2 layers in 0:00:00")


HOSTILE = "a\x1b]0;title\x07\x9b2J\x7f\u202eb\tc\r"


class TestWhatSteersATerminal:
    """Answers, data, file names and manifests may hold anything."""

    def test_it_is_shown_as_escapes_on_both_streams(self, capsys: Output) -> None:
        shown = r"a\x1b]0;title\x07\x9b2J\x7f\u202eb" + "\tc" + r"\r"
        print_line(HOSTILE)
        print_table([[HOSTILE, "x"]], align="<<")
        print_note(HOSTILE)
        print_note_table([[HOSTILE]], align="<")
        with TerminalProgress().task(HOSTILE, total=1, unit="rows"):
            TerminalProgress().say(HOSTILE)
        out, err = capsys.readouterr()
        assert out.splitlines()[0] == shown
        assert err.splitlines()[0] == shown.expandtabs(8) or shown in err
        for text in (out, err):
            assert not [each for each in text if each not in "\n\t" and (ord(each) < 32 or 126 < ord(each) < 160)]
            assert "\u202e" not in text

    def test_json_stays_json(self, capsys: Output) -> None:
        print_json({"answer": HOSTILE})
        out = capsys.readouterr().out
        assert json.loads(out) == {"answer": HOSTILE}
        assert "\x1b" not in out
        assert "\x9b" not in out

    def test_letters_and_emoji_stay(self, capsys: Output) -> None:
        print_line("θ φ ψ é 👩‍🔬 [bold]\nnext")
        assert capsys.readouterr().out == "θ φ ψ é 👩‍🔬 [bold]\nnext\n"
