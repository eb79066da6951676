"""The whole pipeline on a model of two layers and a handful of problems, in seconds."""

import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from ccot_cli.cli.app import run

PIPELINE = (["precompute"], ["score"], ["train-phi"], ["train-psi"], ["train-baseline", "direct"], ["eval"])
SETTINGS = """
ratios: ["0.1"]
model: {{name: {model}}}
data: {{limit: {limit}, validation_limit: 2}}
precompute: {{scorer_layer: 1, shard_megabytes: 1}}
train_phi: {{autoregressive_layer: 1, lora_rank: 2, taught_epochs: 1, epochs: 1, batch_size: 3,
  checkpoint_steps: 1, seed: {seed}}}
train_psi: {{lora_rank: 2, epochs: 2, batch_size: 3, checkpoint_steps: 1, seed: {seed}}}
eval: {{limit: 2, batch_size: 2}}
decoding: {{max_chain_tokens: 4, max_answer_tokens: 2, cap_tokens: 40}}
"""
DEFAULTS = {"limit": 6, "seed": 0}


class Run:
    """A workspace in which commands run one after the other, and the clock tells the same time in every attempt."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._monkeypatch = root, monkeypatch
        root.mkdir(exist_ok=True)

    def set(self, **changes: object) -> None:
        (self.root / "ccot.yaml").write_text(SETTINGS.format(**{**DEFAULTS, **changes}))

    def do(self, *command: str) -> None:
        """Run a command to its end."""
        assert self.attempt(*command) == 0

    def attempt(self, *command: str) -> int:
        """Run a command; return its exit code."""
        ticks, created = count(), datetime(2026, 1, 31, tzinfo=UTC)
        self._monkeypatch.setattr("time.perf_counter", lambda: next(ticks) / 1000)
        self._monkeypatch.setattr("ccot_cli.workspace.build.now", lambda: created)
        return run([*command, "-w", str(self.root)])

    def restore(self, files: Mapping[str, bytes]) -> None:
        shutil.rmtree(self.root)
        for name, content in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes(content)

    def files(self) -> dict[str, bytes]:
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in paths}
