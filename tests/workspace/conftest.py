"""A workspace for every test."""

from pathlib import Path

import pytest

from ccot_cli.workspace.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A new workspace, named from the folder around it."""
    monkeypatch.chdir(tmp_path)
    return Workspace.create(Path("my-run"), "embedded", {"ratios": [0.05, 0.1]})


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: a kill, unlike a power cut, loses nothing that was written."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
