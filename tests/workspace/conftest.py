"""A workspace for every test."""

from pathlib import Path

import pytest

from ccot_cli.workspace.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A new workspace, named from the folder around it."""
    monkeypatch.chdir(tmp_path)
    return Workspace.create(Path("my-run"), "embedded")
