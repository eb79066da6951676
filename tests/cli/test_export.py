"""What `ccot export` writes, `ccot import` makes a workspace of that answers the same."""

import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import save_tiny
from transformers import PreTrainedTokenizerFast

from ccot_cli import load
from ccot_cli.data.word_problems import generate
from ccot_cli.stages.ask import AskResult
from ccot_cli.workspace.workspace import Workspace
from cli.running import Output, output


def answers(workspace: Path, method: str) -> list[AskResult]:
    """Answer some questions, without the times."""
    asker = load(workspace, method=method)
    problems = generate("test", seed=1)
    found = asker.ask_all([next(problems).question for _ in range(12)])
    return [replace(each, seconds=0, model="") for each in found]


def test_the_new_workspace_answers_bit_for_bit_as_the_old_one(
    trained: Path, model_folder: Path, tmp_path: Path, capsys: Output
) -> None:
    output(capsys, "eval", "--save")
    out, err = output(capsys, "export", str(tmp_path / "methods.zip"))
    assert out.splitlines()[1:] == ["  train-psi/r0.10", "  train-baseline/direct"]
    assert "1 evaluation, for the model model" in out
    assert err == f"next:  ccot import {tmp_path / 'methods.zip'} -w new-run --model DIR\n"
    before = {method: answers(trained, method) for method in ("ccot", "direct", "cot")}
    moved = tmp_path / "elsewhere"
    shutil.copytree(model_folder, moved)
    for each in trained.iterdir():  # Nothing of it is needed.
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    out, err = output(capsys, "import", str(tmp_path / "methods.zip"), "-w", "new-run", "--model", str(moved))
    assert out.splitlines() == [f"new-run: on the model {moved}", "  train-psi/r0.10", "  train-baseline/direct"]
    assert err == "next:  ccot ask -w new-run '…'\n"
    assert {method: answers(Path("new-run"), method) for method in before} == before
    out, _ = output(capsys, "verify", "-w", "new-run")
    assert out.endswith("files: sound\n")
    out, _ = output(capsys, "eval", "-w", "new-run", "--method", "ccot", "--format", "json")
    assert json.loads(out)["rows"][0]["n"] == 4


def test_equal_methods_make_equal_bytes_from_the_old_workspace_and_from_the_new(
    trained: Path, model_folder: Path, capsys: Output
) -> None:
    output(capsys, "eval")
    output(capsys, "export", "one.zip")
    output(capsys, "export", "two.zip")
    output(capsys, "import", "one.zip", "-w", "new", "--model", str(model_folder))
    output(capsys, "export", "three.zip", "-w", "new")
    assert Path("one.zip").read_bytes() == Path("two.zip").read_bytes() == Path("three.zip").read_bytes()


def test_an_archive_holds_what_answering_needs_and_tells_nothing_of_this_machine(
    trained: Path, model_folder: Path, capsys: Output
) -> None:
    output(capsys, "eval")
    output(capsys, "export", "methods.zip")
    with zipfile.ZipFile("methods.zip") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    of_method = {
        "manifest.json",
        "method.json",
        "log.jsonl",
        "psi/adapter_config.json",
        "psi/adapter_model.safetensors",
    }
    of_ccot = {*of_method, "phi/adapter_config.json", "phi/adapter_model.safetensors", "end.safetensors"}
    assert contents.keys() == {
        *("archive.json", "README.md", "results.json", "ccot.yaml", "precompute/manifest.json"),
        *(f"train-baseline/direct/{name}" for name in of_method),
        *(f"train-psi/r0.10/{name}" for name in {*of_ccot, "draft.safetensors"}),
    }
    assert list(contents) == sorted(contents)
    places = [str(place).encode() for place in (trained, model_folder, Path.home(), model_folder.parent)]
    assert not [(name, place) for name, each in contents.items() for place in places if place in each]
    card = contents["README.md"].decode()
    assert "| ccot | 0.1 | `train-psi/r0.10` |" in card
    assert "## 4 test problems of `embedded`" in card
    [result] = json.loads(contents["results.json"])
    assert {row["method"] for row in result["rows"]} == {"direct", "ccot", "cot"}


def test_fingerprints_travel_unchanged(trained: Path, model_folder: Path, capsys: Output) -> None:
    output(capsys, "export", "methods.zip")
    output(capsys, "import", "methods.zip", "-w", "new", "--model", str(model_folder))
    for stage, key in (("precompute", None), ("train-psi", "r0.10"), ("train-baseline", "direct")):
        old, new = (Workspace.open(folder).artifact(stage, key) for folder in (trained, Path("new")))
        assert old is not None
        assert new is not None
        assert old.fingerprint == new.fingerprint


@pytest.mark.parametrize(
    ("asked", "exported"),
    [
        (["direct"], ["train-baseline/direct"]),
        (["r0.10"], ["train-psi/r0.10"]),
        (["ccot"], ["train-psi/r0.10"]),
        (["direct", "ccot"], ["train-psi/r0.10", "train-baseline/direct"]),
    ],
)
def test_methods_are_chosen_by_key_or_name(
    asked: list[str], exported: list[str], trained: Path, model_folder: Path, capsys: Output
) -> None:
    options = [word for key in asked for word in ("--method", key)]
    out, _ = output(capsys, "export", "methods.zip", *options, "--format", "json")
    assert json.loads(out)["methods"] == exported
    output(capsys, "import", "methods.zip", "-w", "new", "--model", str(model_folder))
    method = "direct" if asked == ["direct"] else "ccot"
    assert answers(Path("new"), method) == answers(trained, method)


def test_results_of_methods_that_were_trained_again_since_stay_behind(trained: Path, capsys: Output) -> None:
    output(capsys, "eval")
    output(capsys, "train-baseline", "direct", "--seed", "5")
    output(capsys, "export", "methods.zip")
    with zipfile.ZipFile("methods.zip") as archive:
        [result] = json.loads(archive.read("results.json"))
    assert {row["method"] for row in result["rows"]} == {"ccot", "cot"}


def test_what_was_not_trained_or_is_damaged_is_not_exported(trained: Path, capsys: Output) -> None:
    _, err = output(capsys, "export", "methods.zip", "--method", "pause", code=3)
    assert "no method pause was trained in work (trained: r0.10, direct)" in err
    with (trained / "train-psi/r0.10/end.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\7")
    _, err = output(capsys, "export", "methods.zip", code=4)
    assert "end.safetensors does not hold the bytes that were written" in err
    (trained / "train-psi/r0.10/end.safetensors").unlink()
    output(capsys, "export", "methods.zip", code=4)
    assert not Path("methods.zip").exists()
    output(capsys, "export", "methods.zip", "--method", "direct")


def test_an_existing_file_is_replaced_only_by_force(trained: Path, capsys: Output) -> None:
    Path("methods.zip").write_text("mine")
    _, err = output(capsys, "export", "methods.zip", code=2)
    assert err == "error: methods.zip exists already\nfix:   name another file, or replace it with --force\n"
    assert Path("methods.zip").read_text() == "mine"
    output(capsys, "export", "methods.zip", "--force")
    assert zipfile.is_zipfile("methods.zip")


def test_an_existing_folder_is_no_new_workspace(trained: Path, capsys: Output) -> None:
    output(capsys, "export", "methods.zip")
    before = sorted(trained.rglob("*"))
    _, err = output(capsys, "import", "methods.zip", "-w", str(trained), code=2)
    assert "exists already" in err
    assert sorted(trained.rglob("*")) == before


def test_a_model_that_was_a_folder_has_to_be_given_and_be_the_same(
    trained: Path, tokenizer: PreTrainedTokenizerFast, capsys: Output, tmp_path: Path
) -> None:
    output(capsys, "export", "methods.zip")
    _, err = output(capsys, "import", "methods.zip", "-w", "new", code=2)
    assert err.endswith("fix:   ccot import methods.zip -w new --model DIR\n")
    save_tiny("gpt2", tokenizer, tmp_path / "other")
    _, err = output(capsys, "import", "methods.zip", "-w", "new", "--model", str(tmp_path / "other"), code=4)
    assert "is not the model that the methods were trained on, model" in err
    assert not [path for path in Path().iterdir() if path.name.startswith("new")]


def test_a_model_that_has_a_name_everywhere_is_found_by_it(folder: Path, capsys: Output) -> None:
    sets = ["data.limit=12", "data.validation_limit=4", "train_psi.batch_size=8", "train_psi.epochs=1"]
    output(capsys, "init", "run", *(word for each in sets for word in ("--set", each)))
    for command in (["precompute"], ["train-baseline", "direct"]):
        output(capsys, *command, "-w", "run")
    output(capsys, "export", "methods.zip", "-w", "run")
    out, _ = output(capsys, "import", "methods.zip", "-w", "new", "--format", "json")
    assert json.loads(out) == {
        "folder": "new",
        "methods": ["train-baseline/direct"],
        "model": "embedded",
        "is_model_checked": False,
    }
    assert answers(Path("new"), "direct") == answers(Path("run"), "direct")
