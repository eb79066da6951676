"""Workspaces to run commands in: none, a new one, one on a tiny random model, and a trained one."""

import shutil
from pathlib import Path

import pytest
from conftest import save_tiny
from transformers import PreTrainedTokenizerFast

from ccot_cli.cli.app import run
from ccot_cli.names import EMBEDDED
from ccot_cli.workspace.workspace import Workspace
from cli.running import SETTINGS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which no workspace is around."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CCOT_WORKSPACE", raising=False)
    return tmp_path


@pytest.fixture
def workspace() -> Workspace:
    """A new workspace in it, with two ratios."""
    return Workspace.create(Path("my-run"), EMBEDDED, {"ratios": [0.05, 0.1]})


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A tiny random model in a folder, as a user's would be."""
    folder = tmp_path_factory.mktemp("model")
    save_tiny("llama", tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A workspace with every stage and a baseline, to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "ccot.yaml").write_text(SETTINGS.format(model=model_folder))
    for command in (["precompute"], ["score"], ["train-phi"], ["train-psi"], ["train-baseline", "direct"]):
        assert run([*command, "-w", str(folder)]) == 0
    return folder


@pytest.fixture
def here(model_folder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace on a tiny random model; commands run inside it."""
    inside = folder / "work"
    inside.mkdir()
    (inside / "ccot.yaml").write_text(SETTINGS.format(model=model_folder))
    monkeypatch.chdir(inside)
    return inside


@pytest.fixture
def trained(here: Path, trained_once: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The same, with every stage finished."""
    shutil.copytree(trained_once, here, dirs_exist_ok=True)
    capsys.readouterr()
    return here
