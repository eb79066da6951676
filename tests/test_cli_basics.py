"""The command line: exit codes, what goes to stdout and to stderr, and what never happens."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from importlib import metadata
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ccot_cli import __version__
from ccot_cli.cli import app, status
from ccot_cli.cli.console import TerminalProgress, print_json, print_table
from ccot_cli.cli.options import RatioOption, resolve
from ccot_cli.config import Settings, override, stage_config
from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.names import EMBEDDED, PRESETS
from ccot_cli.presets import preset
from ccot_cli.settings_file import load_settings
from ccot_cli.workspace.workspace import Workspace

ESCAPE = "\x1b"

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CCOT_WORKSPACE", raising=False)
    return tmp_path


@pytest.fixture
def workspace() -> Workspace:
    return Workspace.create(Path("my-run"), EMBEDDED)


def finish(workspace: Workspace, stage: str, key: str | None = None, **summary: object) -> None:
    config = stage_config(workspace.settings, stage)
    with workspace.building(stage, key, config=config, inputs={}) as build:
        (build.folder / "x").write_text("x" * 1500)
        build.summary.update(summary)


def ccot(*arguments: str, code: str = "", **environ: str) -> subprocess.Popen[str]:
    """Start the program itself, after running `code`."""
    start = f"import sys; from ccot_cli.__main__ import main; from ccot_cli.cli.app import app; {code}\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", start, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "NO_COLOR"} | environ,
    )


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
        ("number", "code", "said"), [(errno.ENOSPC, 5, "no space left"), (errno.EACCES, 2, "permission denied")]
    )
    def test_what_the_system_refuses_is_no_internal_error(
        self, number: int, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        assert self.run(monkeypatch, OSError(number, os.strerror(number), "a/b")) == code
        error, fix = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: a/b: {said}")
        assert fix.startswith("fix:   ")

    @pytest.mark.parametrize(
        ("arguments", "message", "fix"),
        [
            (["status", "--bad"], "No such option: --bad", "ccot status --help"),
            (["ask", "--bad"], "No such option: --bad", "ccot ask --help; put -- before text that begins"),
            (["status", "--format", "xml"], "'xml' is not one of 'text', 'json'", "ccot status --help"),
            (["init"], "Missing argument 'DIR'", "ccot init --help"),
            (["stats"], "No such command 'stats'", "ccot --help"),
            (["init", "x", "--preset", "y"], "no preset is called 'y'", "choose one of: embedded, gsm8k-llama2-7b"),
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
            (signal.SIGTERM, 143, "eval", ["stopped; to begin anew:"]),
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
        assert "ccot_cli.cli.app" in out
        assert reads_settings == ("ccot_cli.config" in out.split())
        assert not {"torch", "transformers", "peft", "datasets", "accelerate"} & set(out.split())
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


class TestInit:
    @pytest.mark.parametrize("name", PRESETS)
    def test_it_writes_the_presets_settings_and_says_what_comes_next(self, name: str, capsys: Output) -> None:
        assert app.run(["init", "my-run", "--preset", name]) == 0
        assert load_settings(Path("my-run/ccot.yaml")) == preset(name)
        assert tuple(capsys.readouterr()) == ("my-run/ccot.yaml\n", "next:  ccot precompute -w my-run\n")


class TestStatus:
    def test_it_names_the_model_and_data_that_options_gave(self, workspace: Workspace, capsys: Output) -> None:
        changed = override(workspace.settings, {"model.name": "tiny", "data.source": "mine.jsonl", "data.limit": 9})
        config, given = stage_config(changed, "precompute"), ("model.name", "data.source", "data.limit")
        with workspace.building("precompute", config=config, inputs={}, overrides=given):
            pass
        assert app.run(["status", "-w", "my-run"]) == 0
        assert capsys.readouterr().out.startswith("my-run · tiny · mine.jsonl\n")

    def test_a_new_workspace_has_everything_to_do(self, workspace: Workspace, capsys: Output) -> None:
        assert app.run(["status", "-w", "my-run"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "my-run · embedded · embedded",
            "  precompute         missing",
            "  score       r0.05  missing",
            "  score       r0.10  missing",
            "  train-phi   r0.05  missing",
            "  train-phi   r0.10  missing",
            "  train-psi   r0.05  missing",
            "  train-psi   r0.10  missing",
            "  eval               missing",
            "next:  ccot precompute -w my-run",
        ]

    def test_it_shows_size_figures_and_reasons(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute", num_shards=1094, seconds=3.0, was_ready=False, layers=None)
        finish(workspace, "score", "r0.30", loss=0.12345, selector="even", ceiling=7)
        (workspace.root / "ccot.yaml").write_text("score: {seed: 4}\ndata: {source: openai/gsm8k, subset: main}\n")
        assert app.run(["status", "-w", "my-run"]) == 0
        lines = [re.sub(r"\s+\S*\d\d:\d\d ", " TIME ", line) for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == "my-run · embedded · openai/gsm8k main"
        assert lines[1] == (
            "  precompute         stale    1.5 kB TIME  data.source: embedded → openai/gsm8k; data.subset: None → main"
        )
        assert lines[4] == "  score       r0.30  stale    1.5 kB TIME  score.seed: 0 → 4"

    def test_figures_of_a_ready_artifact_read_as_words(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute", num_shards=1094, seconds=3.0, was_ready=False, note=None, loss=0.12345, at="x")
        app.run(["status", "-w", "my-run"])
        assert capsys.readouterr().out.splitlines()[1].endswith("  1,094 shards · loss 0.123 · at x")

    def test_json_holds_the_same(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute", num_shards=2)
        assert app.run(["status", "-w", "my-run", "--format", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        first = shown["artifacts"][0]
        assert (shown["workspace"], shown["model"], shown["next"]) == ("my-run", "embedded", "ccot score -w my-run")
        assert (first["stage"], first["key"], first["state"], first["bytes"]) == ("precompute", None, "ready", 1500)
        assert first["summary"] == {"num_shards": 2}
        assert datetime.fromisoformat(first["created"]).tzinfo is not None

    def test_what_may_be_deleted_is_said(self, workspace: Workspace, capsys: Output) -> None:
        app.run(["status", "-w", "my-run"])
        assert "deleted" not in capsys.readouterr().out
        workspace.cache.mkdir()
        (workspace.cache / "queries-1.bin").write_bytes(b"x" * 2000)
        app.run(["status", "-w", "my-run"])
        assert "2.0 kB in my-run/cache may be deleted at any time" in capsys.readouterr().out
        app.run(["status", "-w", "my-run", "--format", "json"])
        assert json.loads(capsys.readouterr().out)["cache_bytes"] == 2000

    def test_a_damaged_manifest_is_shown_and_hides_nothing_else(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute")
        (workspace.root / "precompute" / "manifest.json").write_text("{")
        assert app.run(["status", "-w", "my-run"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith("  precompute         corrupt")
        assert lines[2] == "  score       r0.05  missing"

    def test_the_next_command_names_what_is_missing_and_repeats_what_was_typed(
        self, workspace: Workspace, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def following() -> str:
            status.status(workspace.root)
            return capsys.readouterr().out.splitlines()[-1].removeprefix("next:  ccot ")

        finish(workspace, "precompute")
        assert following() == "score -w my-run"
        finish(workspace, "score", "r0.10")
        assert following() == "score --ratio 0.05 -w my-run"
        monkeypatch.setattr("sys.argv", ["ccot", "score"])
        with workspace.building("score", "r0.05", config={}, inputs={}):
            assert following() == "status -w my-run"
        finish(workspace, "score", "r0.05")
        monkeypatch.setattr("sys.argv", ["ccot", "train-phi", "--epochs", "3", "-w", "my-run"])
        config = stage_config(override(workspace.settings, {"train_phi.epochs": 3}), "train-phi")
        with (
            suppress(KeyboardInterrupt),
            workspace.building("train-phi", "r0.05", config=config, inputs={}, overrides=("train_phi.epochs",)),
        ):
            raise KeyboardInterrupt
        assert following() == "train-phi --epochs 3 -w my-run"

    def test_the_next_command_follows_the_stages_to_the_end(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        monkeypatch.chdir(workspace.root)
        steps = [("precompute", None)]
        steps += [(stage, key) for stage in ("score", "train-phi", "train-psi") for key in ("r0.05", "r0.10")]
        # A run with other settings neither counts nor stands in the way.
        finish(Workspace(Path(), override(Settings(), {"eval.limit": 5})), "eval", "2026-11-20-1")
        following = []
        for stage, key in [*steps, ("eval", "2026-11-21-1"), ("train-phi", "r0.30")]:
            app.run(["status"])
            following.append(capsys.readouterr().out.splitlines()[-1].removeprefix("next:  ccot "))
            finish(Workspace.open(Path()), stage, key)
        # What is left of a stage is named.
        stages = [f"{stage} --ratio 0.1" if key == "r0.10" else stage for stage, key in steps]
        assert following == [*stages, "eval", "ask '…'"]

    @pytest.mark.parametrize(
        ("moment", "text"),
        [
            ("2026-03-01T00:00", "00:00"),
            ("2026-02-28T18:02", "yesterday 18:02"),
            ("2026-02-27T18:02", "2026-02-27 18:02"),
        ],
    )
    def test_times_read_as_people_say_them(self, moment: str, text: str) -> None:
        assert status._when(datetime.fromisoformat(moment), datetime.fromisoformat("2026-03-01T09:00")) == text


class TestDoctor:
    @pytest.fixture(autouse=True)
    def requirements(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        wanted = ["typer>=0.1", "rich>=1,<99", 'build>=1; extra == "dev"']
        monkeypatch.setattr(metadata, "requires", lambda name: wanted)
        return wanted

    def findings(self, capsys: Output) -> dict[str, tuple[str, bool]]:
        return {each["name"]: (each["value"], each["is_fine"]) for each in json.loads(capsys.readouterr().out)}

    def test_a_sound_machine_exits_0(self, capsys: Output) -> None:
        assert app.run(["doctor", "--format", "json"]) == 0
        found = self.findings(capsys)
        assert found["rich"] == (f"{metadata.version('rich')} (requires <99,>=1)", True)
        assert "build" not in found
        assert set(found) >= {"python", "devices", "threads", "memory", "free disk", "hub", "hub cache", "workspace"}
        assert found["workspace"] == ("none here", True)

    def test_what_is_wrong_is_marked_and_exits_1(self, requirements: list[str], capsys: Output) -> None:
        requirements[:] = ["typer>=999", "no-such-library>=2"]
        (Path.cwd() / "ccot.yaml").write_text("x: 1")
        assert app.run(["doctor"]) == 1
        marked = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("!!")]
        assert [line[1] for line in marked] == ["typer", "no-such-library", "workspace"]

    def test_a_package_that_is_not_installed_requires_what_it_cannot_tell(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        def is_not_installed(name: str) -> list[str]:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "requires", is_not_installed)
        assert app.run(["doctor", "--format", "json"]) == 0
        assert self.findings(capsys)["libraries"][0].startswith("ccot is not installed")

    def test_a_model_is_diagnosed_only_when_asked(self, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
        asked = []
        monkeypatch.setattr("ccot_cli.models.base.theta.diagnose", lambda name: asked.append(name) or ["4 layers"])
        assert app.run(["doctor", "--format", "json"]) == 0
        assert asked == []
        capsys.readouterr()
        assert app.run(["doctor", "--model", "m", "--format", "json"]) == 0
        assert self.findings(capsys)["model"] == ("4 layers", True)
        assert asked == ["m"]

    def test_a_model_that_cannot_be_used_says_why(self, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
        def refuse(name: str) -> list[str]:
            raise UsageError(f"{name} has no layers", fix="use another")

        monkeypatch.setattr("ccot_cli.models.base.theta.diagnose", refuse)
        assert app.run(["doctor", "--model", "m", "--format", "json"]) == 1
        assert self.findings(capsys)["model"] == ("m has no layers; use another", False)


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "ratios"),
        [([], None), (["--ratio", "0.1"], ["0.1"]), (["-r", "1e-2", "--ratio", "1"], ["0.01", "1"])],
    )
    def test_ratios_are_read_as_written_and_repeat(self, arguments: list[str], ratios: list[str] | None) -> None:
        seen = []
        probe = typer.Typer()

        @probe.command()
        def command(ratio: RatioOption = None) -> None:
            seen.append(ratio)

        assert CliRunner().invoke(probe, arguments).exit_code == 0
        assert seen == [None if ratios is None else [Decimal(text) for text in ratios]]

    @pytest.mark.parametrize("text", ["2", "-0.1", "nan", "ten"])
    def test_a_bad_ratio_exits_2_with_its_reason(self, text: str) -> None:
        probe = typer.Typer(rich_markup_mode=None)

        @probe.command()
        def command(ratio: RatioOption = None) -> None: ...

        done = CliRunner().invoke(probe, ["--ratio", text])
        assert done.exit_code == 2
        assert re.search("a ratio (lies between 0 and 1|is a number like 0.1)", done.stderr)

    def test_the_command_line_changes_the_settings_and_names_what_it_changed(self, workspace: Workspace) -> None:
        found, settings, overrides = resolve(workspace.root, {"data.limit": 64, "model.name": None, "eval.seed": 0})
        assert found == workspace
        assert settings.data.limit == 64
        assert settings.model == Settings().model
        assert overrides == ("data.limit", "eval.seed")

    def test_the_workspace_is_found_from_the_environment(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CCOT_WORKSPACE", "my-run")
        assert resolve(None, {}) == (workspace, Settings(), ())


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
        print_table([["method", "1/r", ""], ["ccot", "20x", "[x]"]], align="<><")
        assert capsys.readouterr().out == "method  1/r\nccot    20x  [x]\n"

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
        assert lines[-2] == "train [φ]: 902 of 1,000 steps  0.8/s  0:01:57 left  loss 901"
        assert lines[-1] == "train [φ]: 1,000 steps in 1:05:50  loss 901"

    def test_a_line_comes_every_tenth_when_work_is_quick(self, capsys: Output) -> None:
        with TerminalProgress().task("read", total=100, unit="rows") as advance:
            for _ in range(100):
                advance()
        shares = [line.split()[1] for line in capsys.readouterr().err.splitlines()[1:-1]]
        assert shares == ["10", "20", "30", "40", "50", "60", "70", "80", "90"]

    def test_a_piece_of_work_may_have_no_known_end(self, capsys: Output) -> None:
        with TerminalProgress().task("read", total=None, unit="rows") as advance:
            advance(3)
        assert capsys.readouterr().err.splitlines()[-1] == "read: 3 rows in 0:00:00"

    def test_a_dumb_terminal_gets_lines(self, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")
        with TerminalProgress().task("outer", total=20, unit="layers") as advance:
            advance(9)
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "outer: 20 layers"
        assert lines[1].startswith("outer: 9 of 20 layers")

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
        assert "inner: 1 steps in 0:00:00  loss 0.5" in err
        assert err.rstrip().endswith("outer [x]: 2 layers in 0:00:00")
