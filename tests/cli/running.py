"""Run commands, in this process or in one of their own."""

import os
import subprocess
import sys

import pytest

from ccot_cli.cli.app import run
from ccot_cli.config import stage_config
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.workspace import Workspace

Output = pytest.CaptureFixture[str]
ESCAPE = "\x1b"
QUESTION = "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?"
SETTINGS = """
ratios: ["0.1"]
model: {{name: {model}}}
data: {{limit: 12, validation_limit: 4}}
train_phi: {{autoregressive_layer: 2, lora_rank: 4, taught_epochs: 1, epochs: 1, batch_size: 8}}
train_psi: {{lora_rank: 4, epochs: 1, batch_size: 8}}
eval: {{limit: 4, batch_size: 4}}
decoding: {{max_chain_tokens: 12}}
"""


def output(capsys: Output, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a command and return what it wrote to stdout and to stderr."""
    assert run(list(arguments)) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


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


def finish(workspace: Workspace, stage: str, key: str | None = None, **summary: object) -> None:
    """Finish an artifact with these figures."""
    with workspace.building(ArtifactSpec(stage, key, stage_config(workspace.settings, stage), {})) as build:
        (build.folder / "x").write_text("x" * 1500)
        build.summary.update(summary)
