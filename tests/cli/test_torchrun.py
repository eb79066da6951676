"""Commands that torchrun starts on several ranks."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import save_tiny
from transformers import PreTrainedTokenizerFast

from cli.running import SETTINGS, Output, ccot, output

SCRIPT = """
import os, signal
from ccot_cli.__main__ import main
from ccot_cli.models.training.optimiser import Optimiser

descend = Optimiser._descend

def descend_or_die(self, loss):
    if os.environ["RANK"] == "1" and self.step_count == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return descend(self, loss)

Optimiser._descend = descend_or_die
main()
"""
"""The program, with a second rank that is killed in its fifth step."""


def test_a_command_that_does_not_share_its_work_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    for command in ("ask", "status", "init"):
        _, err = output(capsys, command, code=2)
        assert f"error: {command} runs in one process, not in 3" in err
        assert "fix:   run it without torchrun, which is for precompute" in err


def test_another_rank_than_the_first_writes_nothing_but_an_error_of_its_own() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2"}
    with ccot("--help", **environ) as process:
        assert process.communicate() == ("", "")
    with ccot("status", code="app.SECONDS_OF_THE_FIRST = 0.0", **environ) as process:
        out, err = process.communicate()
        assert process.returncode == 2
    assert out == ""
    assert err.startswith("error: rank 1: status runs in one process")


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=300)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_the_same_command_resumes(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, capsys: Output
) -> None:
    save_tiny("llama", tokenizer, tmp_path / "model")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    settings = SETTINGS.format(model=tmp_path / "model").replace("batch_size: 8", "checkpoint_steps: 3, batch_size: 3")
    (whole / "ccot.yaml").write_text(settings)
    for stage in ("precompute", "score"):
        output(capsys, stage, "-w", str(whole))
    shutil.copytree(whole, killed)
    done = torchrun("-m", "ccot_cli", "train-phi", "-w", str(whole))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("r = 0.1: joint, 8 steps") == 1
    assert done.stderr.count("next:") == 1

    (tmp_path / "script.py").write_text(SCRIPT)
    started = time.monotonic()
    died = torchrun(str(tmp_path / "script.py"), "train-phi", "-w", str(killed))
    assert died.returncode == 1
    assert time.monotonic() - started < 120
    folder = killed / "train-phi" / "r0.10"
    assert (folder / "checkpoint.safetensors").exists()
    assert not (folder / "manifest.json").exists()

    resumed = torchrun("-m", "ccot_cli", "train-phi", "-w", str(killed))
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed after step 3" in resumed.stderr
    for name in ("phi/adapter_model.safetensors", "log.jsonl"):
        assert (folder / name).read_bytes() == (whole / "train-phi" / "r0.10" / name).read_bytes()
