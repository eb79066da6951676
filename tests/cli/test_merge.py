"""`ccot merge` says what it has written, and how to go on from there."""

import json
import shlex
from pathlib import Path

import pytest

from ccot_cli.workspace.workspace import Workspace
from cli.running import Output, output


def test_a_merged_method_is_a_model_as_theta_has_to_be(trained: Path, capsys: Output) -> None:
    out, err = output(capsys, "merge", "merged", "--method", "direct")
    assert out.startswith("merged: ")
    assert "with direct merged, float32" in out
    assert r'prompt "{question}\n", answer marker "\n####"' in out
    assert err == "next:  ccot init next-run --set model.name=merged\n"
    out, _ = output(capsys, "merge", "again", "--method", "direct", "--dtype", "bfloat16", "--format", "json")
    assert json.loads(out)["dtype"] == "bfloat16"
    out, _ = output(capsys, "doctor", "--model", "merged")
    assert "run layer by layer, it equals its own forward pass" in out


@pytest.mark.parametrize("prompt", ["<|user|>\n{question}\n<|model|>", "{question} "])
def test_the_next_command_keeps_prompt_and_marker_of_the_method(here: Path, capsys: Output, prompt: str) -> None:
    sets = {"model.prompt": prompt, "model.answer_marker": "\nAnswer: "}
    output(capsys, "precompute", *(word for each in sets.items() for word in ("--set", "=".join(map(as_json, each)))))
    output(capsys, "train-baseline", "direct")
    _, err = output(capsys, "merge", "merged", "--method", "direct")
    output(capsys, *shlex.split(err.removeprefix("next:  "))[1:])
    model = Workspace.open(Path("next-run")).settings.model
    assert (model.prompt, model.answer_marker) == tuple(sets.values())


def as_json(text: str) -> str:
    return text if text.startswith("model.") else json.dumps(text)


def test_ccot_itself_is_refused_with_the_reason(trained: Path, capsys: Output) -> None:
    out, err = output(capsys, "merge", "merged", "--method", "ccot", code=2)
    assert out == ""
    assert "θ reads the question, φ generates contemplation tokens, ψ answers" in err
