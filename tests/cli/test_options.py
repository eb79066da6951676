"""Options that several commands share, and what they make of a workspace's settings."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextvars import copy_context
from decimal import Decimal
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ccot_cli.cli import app
from ccot_cli.cli.options import RatioOption, read_set, read_vary, resolve
from ccot_cli.config import Settings
from ccot_cli.errors import UsageError
from ccot_cli.workspace.workspace import Workspace
from cli.running import QUESTION, Output, output


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

    def test_any_setting_can_be_changed_from_the_command_line(self, workspace: Workspace) -> None:
        sets = ["train_phi.batch_size=32", "data.limit=null", "ratios=[0.2, 0.1]", "model.prompt=Q: {question}"]
        _, settings, overrides = resolve(workspace.root, {"model.device": "cpu"}, sets)
        assert settings.train_phi.batch_size == 32
        assert settings.data.limit is None
        assert settings.ratios == (Decimal("0.2"), Decimal("0.1"))
        assert settings.model.prompt == "Q: {question}"
        assert overrides == ("model.device", "train_phi.batch_size", "data.limit", "ratios", "model.prompt")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("train_phi.batch_size", "is no setting with a value"),
            ("=3", "is no setting with a value"),
            ("train_phi.batch=3", "no setting is called train_phi.batch"),
            ("train_phi.epochs=many", "train_phi.epochs: a whole number is needed"),
            ("data.limit=8", "data.limit is given twice"),
        ],
    )
    def test_a_bad_setting_on_the_command_line_is_refused(self, workspace: Workspace, text: str, message: str) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            resolve(workspace.root, {"data.limit": 9}, [text])
        assert caught.value.fix

    def test_the_workspace_is_found_from_the_environment(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CCOT_WORKSPACE", "my-run")
        assert resolve(None, {}) == (workspace, workspace.settings, ())


@pytest.mark.parametrize("ratio", ["0", "1", "1.5", "-0.1", "nan", "much"])
@pytest.mark.parametrize("command", ["score", "train-phi"])
def test_a_ratio_without_tokens_is_exit_2(here: Path, capsys: Output, command: str, ratio: str) -> None:
    out, err = output(capsys, command, f"--ratio={ratio}", code=2)
    assert out == ""
    assert "ratio" in err


@pytest.mark.parametrize("ratio", ["1.5", "-0.1", "nan", "much", ""])
def test_an_impossible_ratio_is_exit_2_before_anything_is_loaded(here: Path, capsys: Output, ratio: str) -> None:
    out, err = output(capsys, "ask", QUESTION, f"--ratio={ratio}", code=2)
    assert out == ""
    assert "a ratio" in err


def test_flags_override_settings_and_do_not_make_the_stage_stale(here: Path, capsys: Output) -> None:
    output(capsys, "precompute", "--limit", "5", "--seed", "3")
    artifact = Workspace.open(here).require("precompute")
    assert artifact.manifest.summary["num_train"] == 5
    assert artifact.manifest.config["data"]["seed"] == 3
    out, _ = output(capsys, "status")
    assert "stale" not in out


def test_an_artifact_remembers_the_command_line_and_no_other_artifact_does(
    here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/ccot", "precompute", "--limit", "5", "--workspace", str(here)])
    # In a context of its own: the commands that follow in this process were not typed.
    assert copy_context().run(app.main, []) == 0
    output(capsys, "score")
    commands = [
        Workspace.open(here).require(*place).manifest.command for place in (("precompute",), ("score", "r0.10"))
    ]
    assert commands == [("precompute", "--limit", "5"), ()]
    out, _ = output(capsys, "status", "--format", "json")
    assert json.loads(out)["next"] == "ccot train-phi"
    assert Workspace.open(here).command_for("precompute", None) == "ccot precompute --limit 5"


@pytest.mark.parametrize("command", [["score"], ["train-phi"], ["train-psi"], ["train-baseline", "direct"], ["sweep"]])
def test_settings_that_precompute_has_recorded_are_refused_afterwards(
    trained: Path, capsys: Output, command: list[str]
) -> None:
    for setting in ("model.prompt=Q {question}", "data.limit=3"):
        _, err = output(capsys, *command, "--set", setting, code=2)
        assert f"{setting.split('=')[0]} has no effect: work was trained with its own" in err
    shutil.rmtree("precompute")
    _, err = output(capsys, *command, "--set", "data.limit=3", code=3)
    assert "no finished 'precompute' stage" in err


def test_a_decoder_may_learn_from_other_problems_but_not_on_another_model(trained: Path, capsys: Output) -> None:
    _, err = output(capsys, "train-decoder", "--set", "model.dtype=float32", code=2)
    assert "model.dtype has no effect" in err
    output(capsys, "train-decoder", "--set", "data.limit=8", "--set", "model.threads=1")
    output(capsys, "score", "--set", "model.device=cpu")


def test_a_workspace_may_have_a_name_that_is_no_text(here: Path) -> None:
    named = here.parent / os.fsdecode(b"run\xe9")
    shutil.copytree(here, named)
    # A process of its own, because pytest's stderr refuses what a real one escapes.
    command = [sys.executable, "-m", "ccot_cli", "precompute", "--limit", "5", "-w", str(named)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Workspace.open(named).require("precompute").manifest.command == ("precompute", "--limit", "5")


def test_a_current_folder_that_is_gone_is_exit_2(folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    _, err = output(capsys, "status", code=2)
    assert "the current folder is gone" in err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!!int", "!!int"),
        ("Solve {question} ### A: ", "Solve {question} ### A: "),
        (" Answer", " Answer"),
        ("####", "####"),
        ("'####'", "####"),
        ("null", None),
        ("Null", None),
        ("", None),
        ("0.1", 0.1),
    ],
)
def test_text_is_taken_as_it_is(text: str, value: object) -> None:
    assert read_set(f"model.prompt={text}") == ("model.prompt", value)


def test_values_to_vary_are_read_as_yaml_and_paths_belong_to_the_current_folder(folder: Path) -> None:
    assert read_vary("train_phi.learning_rate=0.005, 1.0e-2") == ("train_phi.learning_rate", [0.005, 0.01])
    assert read_vary("train_psi.optimiser=adamw") == ("train_psi.optimiser", ["adamw"])
    (folder / "phi").mkdir()
    assert read_vary("train_phi.start=null,phi") == ("train_phi.start", [None, str(folder / "phi")])


@pytest.mark.parametrize(
    "text",
    [
        "train_phi.epochs",
        "train_phi.epochs=",
        "train_phi.epochs=1,,2",
        "train_phi.epochs=1,",
        "=1",
        "train_phi=1",
        "train_phi.lora_rank.x=1",
        "ratios=0.1",
    ],
)
def test_to_vary_what_is_no_setting_with_values_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"--vary {text} is no setting of a section with values") as caught:
        read_vary(text)
    assert caught.value.fix
