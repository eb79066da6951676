"""The shell scripts ask for commands and options that there are."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from ccot_cli.cli.app import run
from ccot_cli.names import MethodName, Schedule, SelectorName
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


def test_the_ablations_ask_for_what_sweep_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A ccot that says what it was asked for and does nothing.
    (tmp_path / "ccot").write_text('#!/bin/sh\necho "$ ccot $*"\n')
    (tmp_path / "ccot").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
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
