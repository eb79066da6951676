"""The shell scripts ask for commands and options that there are."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from ccot_cli.cli.app import run
from ccot_cli.cli.options import read_set
from ccot_cli.config import Settings
from ccot_cli.names import MethodName, Schedule, SelectorName
from ccot_cli.overrides import override
from ccot_cli.presets import preset
from ccot_cli.workspace.workspace import Workspace
from examples.scripts import EXAMPLES


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line.removeprefix("$ ")) for line in text.splitlines() if line.startswith("$ ccot")]


def test_the_paper_s_experiment_can_be_read_without_running_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["bash", str(EXAMPLES / "reproduce_paper.sh"), "--dry-run", str(tmp_path / "paper")]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert not (tmp_path / "paper").exists()
    every = commands(said)
    assert [words[1] for words in every] == [
        "init",
        "doctor",
        "precompute",
        "score",
        "train-phi",
        "train-psi",
        "train-baseline",
        "train-baseline",
        "train-baseline",
        "eval",
    ]
    # Every stage has its estimate above it, and every option is one that the command knows.
    assert said.count("# ") == len(every)
    for _, command, *words in every:
        assert run([command, "--help"]) == 0
        known = capsys.readouterr().out
        assert all(word in known for word in words if word.startswith("--"))


@pytest.fixture
def doing_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a ccot into the path that says what it was asked for."""
    (tmp_path / "ccot").write_text('#!/bin/sh\necho "$ ccot $*"\n')
    (tmp_path / "ccot").chmod(0o755)
    for folder in (Path(sys.executable).parent, tmp_path):
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def settings_asked_for(said: str, capsys: pytest.CaptureFixture[str]) -> list[Settings]:
    """Return the settings of every `ccot init`, once all commands and options are known to be there."""
    known, found = {}, []
    for _, command, *words in commands(said):
        if command not in known:
            assert run([command, "--help"]) == 0
            known[command] = capsys.readouterr().out
        assert all(word in known[command] for word in words if word.startswith("--"))
        if command == "init":
            sets = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
            assert all("model.adapter" not in each or each.endswith("chain/train-baseline/cot/psi") for each in sets)
            found.append(override(preset(words[words.index("--preset") + 1]), dict(map(read_set, sets))))
    assert set(known) >= {"export", "train-phi", "train-psi", "train-baseline", "eval"}
    return found


@pytest.mark.usefixtures("doing_nothing")
def test_the_pretrained_model_s_script_asks_for_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"question": f"How many are {number} and 3?", "answer": f"{number} + 3 = {number + 3}\n#### {number + 3}"}
        for number in range(20)
    ]
    (tmp_path / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked = ["bash", str(EXAMPLES / "pretrained.sh"), str(tmp_path / "problems.jsonl"), str(tmp_path / "run")]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert len((tmp_path / "run" / "train.jsonl").read_text().splitlines()) > 10
    # The folder's parts would pass for those of other problems.
    refused = subprocess.run([*asked[:2], "embedded", asked[3]], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "name another folder" in refused.stderr
    chain, ccot = (settings.data for settings in settings_asked_for(said, capsys))
    assert (Path(chain.source).name, chain.validation_source) == ("train.jsonl", None)
    assert (Path(ccot.source).name, Path(ccot.validation_source or "").name) == ("more.jsonl", "validation.jsonl")


@pytest.mark.usefixtures("doing_nothing")
def test_the_pretrained_model_s_script_takes_generated_stories_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["bash", str(EXAMPLES / "pretrained.sh"), "embedded", str(tmp_path / "run")]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    chain, ccot = (settings.data for settings in settings_asked_for(said, capsys))
    assert (chain.source, chain.subset, chain.steps) == ("embedded", "stories", (2, 3))
    # φ and ψ learn from other stories than θ, of the same kind.
    assert ccot.seed != chain.seed
    assert ccot.model_copy(update={"seed": chain.seed, "limit": chain.limit}) == chain


@pytest.mark.usefixtures("doing_nothing")
def test_the_ablations_ask_for_what_sweep_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bash", str(EXAMPLES / "ablations.sh"), str(tmp_path / "run")]
    every = commands(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert [words[1] for words in every] == ["precompute", *["sweep"] * (len(every) - 1)]
    assert Workspace.open(tmp_path / "run").settings.data.steps == (2, 3)
    assert run(["sweep", "--help"]) == 0
    known = capsys.readouterr().out
    for _, _, *words in every[1:]:
        assert [words[at + 1] for at, word in enumerate(words) if word == "--seed"] == ["0", "1", "2"]
        named = {words[at + 1] for at, word in enumerate(words) if word in ("--method", "--selector", "--schedule")}
        assert all(word in known for word in words if word.startswith("--"))
        assert named <= {*get_args(MethodName), *get_args(SelectorName), *get_args(Schedule)}
