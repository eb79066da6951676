"""The program: exit codes, errors in two lines, stops, help, and what is imported for it."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ccot_cli import __version__
from ccot_cli.cli import app
from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.workspace.workspace import Workspace
from cli.running import ESCAPE, Output, ccot

WAIT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background would ignore it
app.registered_commands.clear()

@app.command(sys.argv[1])
def wait(place: str):
    from ccot_cli.cli.console import TerminalProgress
    with TerminalProgress().task("train", total=3000, unit="steps") as advance:
        advance(1240)
        import time; print("waiting", flush=True); time.sleep(60)

@app.command()
def other(): pass
"""

STUBBORN = """
@app.command()
def wait(stage: str):
    import time
    try:
        print("waiting", flush=True); time.sleep(60)
    finally:
        print("saving", flush=True); time.sleep(60)

@app.command()
def other(): pass
"""


class TestErrors:
    def run(self, monkeypatch: pytest.MonkeyPatch, error: BaseException, *arguments: str) -> int:
        def fail(**options: object) -> None:
            raise error

        monkeypatch.setattr("ccot_cli.cli.status.find_workspace", lambda explicit: fail())
        return app.run([*arguments, "status"])

    def test_an_error_is_two_lines_on_stderr_and_its_exit_code(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        assert self.run(monkeypatch, CorruptError("it broke [here]", fix="mend it")) == 4
        assert tuple(capsys.readouterr()) == ("", "error: it broke [here]\nfix:   mend it\n")

    def test_without_a_fix_it_is_one_line(self, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
        assert self.run(monkeypatch, UsageError("no")) == 2
        assert capsys.readouterr().err == "error: no\n"

    def test_an_unexpected_error_is_one_line_and_says_how_to_see_more(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        assert self.run(monkeypatch, ZeroDivisionError("a\nb")) == 1
        assert capsys.readouterr().err.splitlines() == [
            "error: ZeroDivisionError: a",
            "fix:   run again with --debug for the traceback: ccot --debug status",
        ]

    def test_debug_shows_the_traceback_and_keeps_the_exit_code(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        assert self.run(monkeypatch, CorruptError("it broke"), "--debug") == 4
        error = capsys.readouterr().err
        assert error.startswith("Traceback (most recent call last):")
        assert error.endswith("error: it broke\n")

    @pytest.mark.parametrize(
        ("number", "code", "said"),
        [
            (errno.EACCES, 2, "permission denied"),
            (errno.ENAMETOOLONG, 2, "file name too long"),
        ],
    )
    def test_what_the_system_refuses_is_no_internal_error(
        self, number: int, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        assert self.run(monkeypatch, OSError(number, os.strerror(number), "a/b")) == code
        error, fix = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: a/b: {said}")
        assert fix.startswith("fix:   ")

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b"), "no room for a/b: more than 0 B needed, "),
            (OSError(errno.EFBIG, os.strerror(errno.EFBIG), "a/b"), "no room for a/b: .* free \\(file too large\\)"),
            (RuntimeError("I/O error: No space left on device (os error 28)"), "no room for .* free \\(no space left"),
            (MemoryError(), "memory does not suffice"),
            (
                RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8192 bytes."),
                "memory does not suffice: 8192 bytes more were needed",
            ),
        ],
    )
    def test_a_full_disk_and_too_little_memory_exit_5_with_the_size(
        self, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        assert self.run(monkeypatch, error) == 5
        shown, fix = capsys.readouterr().err.splitlines()
        assert re.match(f"error: {said}", shown)
        assert fix.startswith("fix:   ")

    @pytest.mark.parametrize("option", ["-w", "--model", "--data"])
    def test_a_path_that_is_too_long_exits_2(self, option: str, workspace: Workspace, capsys: Output) -> None:
        where = [] if option == "-w" else ["-w", str(workspace.root)]
        for path in ("x" * 5000, f"{'x' * 300}/y.jsonl", "/".join(["x" * 200] * 30)):
            assert app.run(["precompute", option, path, *where]) == 2
            assert len(capsys.readouterr().err.splitlines()) == 2

    @pytest.mark.parametrize("option", ["data.limit", "data.validation_limit", "eval.limit"])
    def test_more_problems_than_memory_could_hold_exit_2(
        self, option: str, workspace: Workspace, capsys: Output
    ) -> None:
        assert app.run(["precompute", "-w", str(workspace.root), "--set", f"{option}=1000000000"]) == 2
        assert "10000000" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message", "fix"),
        [
            (["status", "--bad"], "No such option: --bad", "ccot status --help"),
            (["ask", "--bad"], "No such option: --bad", "ccot ask --help; put -- before text that begins"),
            (["status", "--format", "xml"], "'xml' is not one of 'text', 'json'", "ccot status --help"),
            (["init"], "Missing argument 'DIR'", "ccot init --help"),
            (["stats"], "No such command 'stats'", "ccot --help"),
            (
                ["init", "x", "--preset", "y"],
                "no preset is called 'y'",
                "choose one of: embedded, smollm2, gsm8k-llama2-7b",
            ),
            (["status"], "there is no workspace here", "ccot init my-run"),
            (["status", "-w", "x"], "x is no workspace", "ccot init x"),
        ],
    )
    def test_a_usage_error_exits_2(self, arguments: list[str], message: str, fix: str, capsys: Output) -> None:
        assert app.run(arguments) == 2
        shown = capsys.readouterr()
        error, repair = shown.err.splitlines()
        assert shown.out == ""
        assert error.startswith("error: ")
        assert message in error
        assert repair.startswith(f"fix:   {fix}")


class TestStopping:
    @pytest.mark.parametrize(
        ("number", "code", "stage", "said"),
        [
            (
                signal.SIGINT,
                130,
                "precompute",
                ["stopped; finished stages, shards and checkpoints are kept", "resume:"],
            ),
            (signal.SIGTERM, 143, "sweep", ["stopped; finished stages, shards and checkpoints are kept", "resume:"]),
            (signal.SIGTERM, 143, "eval", ["stopped; to start again:"]),
        ],
    )
    def test_a_stop_says_how_far_it_came_and_how_to_go_on(
        self, number: signal.Signals, code: int, stage: str, said: list[str]
    ) -> None:
        # Another stage's name among the arguments means nothing.
        with ccot(stage, "demo", code=WAIT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(number)
            out, err = process.communicate(timeout=10)
        assert (process.returncode, out) == (code, "")
        *first, last = said
        assert err.splitlines()[-1 - len(said) :] == [
            "train: stopped after 1,240 of 3,000 steps",
            *first,
            f"{last} ccot {stage} demo",
        ]

    def test_a_stop_names_the_command_that_was_typed_around_it(self) -> None:
        with ccot("demo", "x", code=WAIT, CCOT_TYPED="make demo") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.terminate()
            _, err = process.communicate(timeout=10)
        assert err.splitlines()[-1] == "resume: make demo"

    def test_a_stop_while_everything_is_loaded_shows_no_traceback(self) -> None:
        slow = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import sys, time, builtins\n"
        slow += "load = builtins.__import__\n"
        slow += "def wait(name, *rest):\n"
        slow += "    if name == 'typer': print('loading', flush=True); time.sleep(60)\n"
        slow += "    return load(name, *rest)\n"
        slow += "builtins.__import__ = wait; from ccot_cli.__main__ import main; main()"
        with subprocess.Popen(
            [sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "loading\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=10)
        assert (process.returncode, err) == (130, "")

    def test_closed_streams_are_no_reason_to_fail(self) -> None:
        closed = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m ccot_cli --version <&- >&-"], capture_output=True, text=True, check=False
        )
        assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_full_stdout_is_exit_5_and_named(self) -> None:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "ccot_cli", "problems"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 5
        assert done.stderr.startswith("error: stdout takes no more: no space left on device\nfix:   ")

    def test_a_second_signal_leaves_at_once(self) -> None:
        with ccot("wait", "x", code=STUBBORN) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.terminate()
            assert process.stdout.readline() == "saving\n"
            process.terminate()
            assert process.wait(timeout=10) == -signal.SIGTERM

    def test_a_reader_that_leaves_is_no_error_to_talk_about(self) -> None:
        lines = "app.command('lines')(lambda: [print('x' * 9999) for _ in range(99)] and None)"
        with ccot("lines", code=lines) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == ""
        assert process.returncode == 1


class TestHelp:
    @pytest.mark.parametrize(
        ("arguments", "reads_settings"),
        [(["--help"], False), (["ask", "--help"], False), (["status", "-w", "my-run"], True)],
    )
    def test_what_needs_no_model_imports_nothing_heavy_and_is_quick(
        self, workspace: Workspace, arguments: list[str], reads_settings: bool
    ) -> None:
        before = os.times()
        with ccot(*arguments, code="import atexit; atexit.register(lambda: print(*sys.modules))") as process:
            out, _ = process.communicate()
        after = os.times()
        assert process.returncode == 0
        imported = set(out.splitlines()[-1].split())
        assert "ccot_cli.cli.app" in imported
        assert reads_settings == ("ccot_cli.config" in imported)
        assert not {"torch", "transformers", "peft", "datasets", "accelerate"} & imported
        # Processor time, which other work on the machine hardly changes.
        assert after.children_user - before.children_user < 1.0

    @pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
    def test_the_program_alone_shows_its_help(self, arguments: list[str], capsys: Output) -> None:
        assert app.run(arguments) == 0
        shown = capsys.readouterr()
        assert "Usage: ccot [OPTIONS] COMMAND" in shown.out
        assert shown.err == ""

    @pytest.mark.parametrize("command", [each.name for each in app.app.registered_commands])
    def test_every_command_opens_with_its_purpose_and_an_example_on_its_own_line(
        self, command: str, capsys: Output
    ) -> None:
        assert app.run([command, "--help"]) == 0
        usage, purpose, examples, *_ = re.split(r"\n\s*\n", capsys.readouterr().out.strip())
        assert usage.split()[:3] == ["Usage:", "ccot", command]
        assert purpose.rstrip().endswith(".")
        assert any(f"ccot {command}" in line for line in examples.splitlines())

    def test_version(self, capsys: Output) -> None:
        assert app.run(["--version"]) == 0
        assert capsys.readouterr().out == f"ccot {__version__}\n"

    def test_the_module_runs_as_the_program_does(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "ccot_cli", "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"ccot {__version__}\n"

    def test_no_escape_bytes_without_a_terminal_and_none_in_an_ascii_one(self) -> None:
        with ccot("--help", PYTHONIOENCODING="ascii") as process:
            out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
        assert ESCAPE not in out

    @pytest.mark.parametrize(("environ", "is_styled"), [({}, True), ({"NO_COLOR": "1"}, False)])
    def test_no_color_leaves_out_bold_and_dim_too(self, environ: dict[str, str], is_styled: bool) -> None:
        with ccot("--help", FORCE_COLOR="1", TERM="xterm", **environ) as process:
            out, _ = process.communicate()
        assert (ESCAPE in out) == is_styled


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ccot ask --method co", {"coconut", "cot"}),
        ("ccot eval --methods few", {"few-shot"}),
        ("ccot init --preset gs", {"gsm8k-llama2-7b"}),
        ("ccot ask --engine ", {"fast", "reference"}),
    ],
)
def test_the_shell_completes_names(words: str, expected: set[str]) -> None:
    with ccot(_CCOT_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=words) as process:
        assert set(re.findall(r'"([\w-]+)"', process.communicate()[0])) == expected
