"""What the commands of the pipeline have in common: a result, the next command, and one exit code for each fault."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from ccot_cli.cli import demo, init
from ccot_cli.cli.app import run
from ccot_cli.errors import UsageError
from cli.running import QUESTION, Output, output


def test_each_stage_prints_its_result_and_names_the_next(here: Path, capsys: Output) -> None:
    for command, result, following in (
        ("precompute", "12 training and 4 validation problems", "ccot score"),
        ("score", "r = 0.1: predictive keeps", "ccot train-phi"),
        ("train-phi", "validation", "ccot train-psi"),
        ("train-psi", "validation accuracy", "ccot eval"),
    ):
        out, err = output(capsys, command)
        assert result in out
        assert f"next:  {following}" in err
    out, _ = output(capsys, "status", "--format", "json")
    states = {row["stage"]: row["state"] for row in json.loads(out)["artifacts"]}
    assert states == {**dict.fromkeys(["precompute", "score", "train-phi", "train-psi"], "ready"), "eval": "missing"}


@pytest.mark.parametrize("command", ["precompute", "score", "train-phi", "train-psi"])
def test_a_command_speaks_json(trained: Path, capsys: Output, command: str) -> None:
    out, err = output(capsys, command, "--format", "json")
    assert json.loads(out)
    assert len(out.splitlines()) == 1
    assert "ready already" in err


@pytest.mark.parametrize(
    ("command", "first"), [("score", "precompute"), ("train-phi", "score"), ("train-psi", "precompute")]
)
def test_a_missing_stage_is_exit_3_and_named(here: Path, capsys: Output, command: str, first: str) -> None:
    out, err = output(capsys, command, code=3)
    assert out == ""
    assert f"no finished '{first}' stage" in err
    assert f"fix:   ccot {first}" in err


def test_answering_needs_no_hidden_states(trained: Path, capsys: Output) -> None:
    expected, _ = output(capsys, "ask", QUESTION)
    for shard in (trained / "precompute").glob("*.safetensors"):
        shard.unlink()
    assert output(capsys, "ask", QUESTION)[0] == expected
    output(capsys, "eval", "--no-save")
    out, _ = output(capsys, "status")
    assert "is missing or has another size" in next(
        line for line in out.splitlines() if line.startswith("  precompute")
    )
    output(capsys, "train-phi", "--seed", "1", code=4)


def test_what_is_missing_is_trained_by_a_command_that_names_the_workspace(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    _, err = output(capsys, "ask", QUESTION, "-w", "work", "--method", "pause", code=3)
    assert "fix:   ccot train-baseline pause -w work" in err
    _, err = output(capsys, "ask", QUESTION, "-w", "work", "--ratio", "0.3", code=3)
    assert "ccot score --ratio 0.3 -w work && " in err


def test_a_read_only_workspace_answers(trained: Path, capsys: Output) -> None:
    def snapshot() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in (trained, *trained.rglob("*"))}

    before = snapshot()
    output(capsys, "ask", QUESTION)
    output(capsys, "eval", "--no-save")
    output(capsys, "status")
    assert snapshot() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["ask", QUESTION],
        ["eval", "--no-save", "--limit", "1", "--method", "direct"],
        ["precompute", "--dry-run"],
        ["score", "--selector", "last"],
        ["train-phi", "--epochs", "1", "--taught-epochs", "0", "--seed", "1"],
        ["train-psi", "--seed", "1"],
        ["train-baseline", "cot"],
        ["sweep", "--seed", "1"],
        ["bench", "--repeats", "1", "--batch-size", "1", "--chain", "4"],
        ["bench", "--repeats", "1", "--batch-size", "1", "--chain", "4", "--shape", "2x64"],
    ],
)
def test_every_command_that_computes_takes_a_number_of_threads(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    asked = []
    for module in ("models.base.theta", "stages.bench"):
        monkeypatch.setattr(f"ccot_cli.{module}.use_threads", asked.append)
    output(capsys, *arguments, "--threads", "3")
    assert set(asked) == {3}


DEMO_COMMANDS = (
    ("precompute", "precompute"),
    ("score", "score"),
    ("train_phi", "train_phi"),
    ("train_psi", "train_psi"),
    ("train_baseline", "train_baseline"),
    ("eval", "evaluate"),
    ("ask", "ask"),
)
"""What the demo runs: modules of the command line and their functions."""


def test_the_demo_hands_its_number_of_threads_to_every_stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for module, name in DEMO_COMMANDS:
        stage = import_module(f"ccot_cli.cli.{module}")
        monkeypatch.setattr(stage, name, lambda *given, **options: seen.append(options["threads"]))
    demo.demo(folder / "new", threads=3)
    assert seen == [3] * 8


def test_the_demo_goes_on_with_its_own_workspace_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[bool] = []
    monkeypatch.setattr(demo, "_run_all", lambda *_: ran.append(True))
    init.init(folder / "own", sets=[*demo.SETS])
    demo.demo(folder / "own")
    assert ran == [True]
    init.init(folder / "other")
    with pytest.raises(UsageError, match="a workspace that no demo made"):
        demo.demo(folder / "other")
    assert ran == [True]


def test_the_demo_names_no_next_command_because_it_runs_it_itself(
    folder: Path, trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, err = output(capsys, "train-psi")
    assert "next:  ccot eval" in err
    # The demo's own stages take minutes; in their place, one that finds everything ready runs each time.
    for module, name in DEMO_COMMANDS:
        stage = import_module(f"ccot_cli.cli.{module}")
        monkeypatch.setattr(stage, name, lambda *given, **options: run(["train-phi"]))
    demo.demo(folder / "new")
    shown = capsys.readouterr().err
    assert shown.count("ready already") == 8
    assert "next:" not in shown
    _, err = output(capsys, "train-psi")
    assert "next:  ccot eval" in err


def test_results_are_as_readable_as_other_files(trained_once: Path) -> None:
    (trained_once / "other").touch()
    usual = (trained_once / "other").stat().st_mode
    modes = {path.name: path.stat().st_mode for path in trained_once.glob("*/**/*") if path.is_file()}
    assert modes.keys() >= {"adapter_model.safetensors", "end.safetensors", "manifest.json"}
    assert {name: oct(mode) for name, mode in modes.items() if mode != usual} == {}
