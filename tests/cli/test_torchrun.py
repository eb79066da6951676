"""Commands that torchrun starts on several ranks."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import save_tiny, short_problems
from data.made_tokenizers import make_tokenizer
from transformers import PreTrainedTokenizerFast

from ccot_cli.data.problems import Problem
from cli.running import QUESTION, SETTINGS, Output, ccot, output

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


LLAMA_2_CHAT = (
    "{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
    "{% else %} {{ message['content'] }} {% endif %}{% endfor %}"
)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["preset", "auto"])
def test_two_ranks_take_the_papers_preset_from_init_to_ask(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, prompt: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizer = make_tokenizer("llama-2")
    tokenizer.chat_template = LLAMA_2_CHAT
    save_tiny("llama", tokenizer, tmp_path / "llama-2-tiny")
    write_gsm8k(tmp_path / "train.jsonl", short_problems(24))
    write_gsm8k(tmp_path / "test.jsonl", short_problems(30)[24:])
    settings = {
        "model.name": tmp_path / "llama-2-tiny",
        "data.source": tmp_path / "train.jsonl",
        "data.test_source": tmp_path / "test.jsonl",
        "data.validation_limit": 4,
        "score.scorer_steps": 4,
        "train_phi.autoregressive_layer": 2,
        "decoding.max_chain_tokens": 12,
        **({"model.prompt": "auto"} if prompt == "auto" else {}),
    }
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    folder = str(tmp_path / "run")
    output(capsys, "init", folder, "--preset", "gsm8k-llama2-7b", *sets)
    for stage in ("precompute", "score", "train-phi", "train-psi", "eval"):
        ratio = ["--ratio", "0.1"] if stage.startswith(("score", "train")) else []
        done = torchrun("-m", "ccot_cli", stage, "-w", folder, *ratio)
        assert done.returncode == 0, done.stderr
    out, _ = output(capsys, "ask", QUESTION, "-w", folder, "--ratio", "0.1", "--format", "json")
    reply = json.loads(out)
    assert reply["method"] == "ccot"
    assert reply["contemplation_tokens"] >= 1
    manifest = json.loads((tmp_path / "run" / "train-psi" / "r0.10" / "manifest.json").read_text())
    assert manifest["ranks"] == 2


def write_gsm8k(path: Path, problems: list[Problem]) -> None:
    """Write problems as GSM8K's files have them."""
    rows = [{"question": each.question, "answer": f"{each.chain}\n#### {each.answer}"} for each in problems]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
