"""Workspaces on a tiny random model."""

from pathlib import Path

import pytest
from conftest import save_tiny
from transformers import PreTrainedTokenizerFast

from ccot_cli.overrides import override
from ccot_cli.workspace.workspace import Workspace
from stages.runs import SMALL, MakeRun, Run


@pytest.fixture
def make_run(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> MakeRun:
    """A fresh workspace on a tiny random model that is saved in a folder, as a user's would be."""

    def make(name: str = "run", family: str = "llama", **changes: object) -> Run:
        folder = tmp_path / family
        if not folder.exists():
            save_tiny(family, tokenizer, folder)
        workspace = Workspace.create(tmp_path / name, "embedded")
        settings = override(workspace.settings, {**SMALL, "model.name": str(folder), **changes})
        return Run(workspace, settings)

    return make
