"""What `ccot export` writes, `ccot import` makes a workspace of that answers the same."""

import json
import os
import shutil
import zipfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import save_tiny, shaken
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from ccot_cli import load
from ccot_cli.config import ModelConfig
from ccot_cli.data.word_problems import generate
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.base.theta import load_theta
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.direct import DirectMethod
from ccot_cli.names import ADAPTER_FILE, SETTINGS_FILE
from ccot_cli.overrides import override
from ccot_cli.settings_file import load_settings
from ccot_cli.stages.ask import AskResult
from ccot_cli.stages.card import card
from ccot_cli.stages.export import collect
from ccot_cli.workspace.workspace import Workspace
from cli.running import QUESTION, Output, output


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
    out, _ = output(capsys, "status", "-w", "new-run")
    assert "only what answering needs is here" in out
    assert out.endswith("next:  ccot eval -w new-run\n")
    out, _ = output(capsys, "verify", "-w", "new-run")
    assert out.endswith("files: sound\n")
    out, _ = output(capsys, "eval", "-w", "new-run", "--method", "ccot", "--format", "json")
    assert json.loads(out)["rows"][0]["n"] == 4


def test_the_adapter_in_theta_travels_with_the_methods(
    here: Path, model_folder: Path, tmp_path: Path, capsys: Output
) -> None:
    chain = tmp_path / "chain"
    shaken(load_theta(ModelConfig(name=str(model_folder))), PSI).save(PSI, chain)
    settings = (here / SETTINGS_FILE).read_text()
    (here / SETTINGS_FILE).write_text(settings.replace("model: {", f"model: {{adapter: {chain / PSI}, "))
    for command in (["precompute"], ["score"], ["train-phi"], ["train-psi"]):
        output(capsys, *command)
    output(capsys, "export", "methods.zip")
    before = {method: answers(here, method) for method in ("ccot", "cot")}
    (here / SETTINGS_FILE).write_text(settings)  # The methods still need the adapter.
    output(capsys, "export", "other.zip")
    assert Path("other.zip").read_bytes() == Path("methods.zip").read_bytes()
    with zipfile.ZipFile("methods.zip") as archive:
        assert archive.read("adapter/adapter_model.safetensors") == (chain / PSI / ADAPTER_FILE).read_bytes()
        assert b'PeftModel.from_pretrained(model, "adapter").merge_and_unload()' in archive.read("README.md")
    shutil.rmtree(chain)
    output(capsys, "import", "methods.zip", "-w", "new-run", "--model", str(model_folder))
    assert 'adapter: "adapter"' in Path("new-run", SETTINGS_FILE).read_text()
    Path("new-run").rename("moved")
    assert {method: answers(Path("moved"), method) for method in before} == before
    Path("adapter").mkdir()  # In the current folder, so not the one that is meant.
    assert answers(Path("moved"), "ccot") == before["ccot"]
    output(capsys, "export", "again.zip", "-w", "moved")
    assert Path("again.zip").read_bytes() == Path("methods.zip").read_bytes()
    weights = Path("moved", "adapter", ADAPTER_FILE)
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    _, err = output(capsys, "export", "broken.zip", "-w", "moved", code=4)
    assert "has changed since" in err


def test_the_archive_names_what_the_methods_were_trained_with_whatever_the_settings_say_by_now(
    trained: Path, model_folder: Path, capsys: Output
) -> None:
    output(capsys, "export", "methods.zip")
    settings = (trained / SETTINGS_FILE).read_text()
    other = settings.replace(f"name: {model_folder}", 'name: smollm2, prompt: "Q: {question}"')
    (trained / SETTINGS_FILE).write_text(other.replace("data: {limit: 12", "data: {source: other/problems, limit: 99"))
    output(capsys, "export", "other.zip")
    assert Path("other.zip").read_bytes() == Path("methods.zip").read_bytes()


def test_a_chat_template_is_no_prompt(trained: Path) -> None:
    workspace = Workspace.open(trained)
    index, _ = collect(workspace)
    source, method = workspace.require("precompute"), workspace.require("train-psi", "r0.10")
    text = card(index, override(workspace.settings, {"model.prompt": "auto"}), source, [method], [])
    assert "The question stands in the tokenizer's chat template; `" in text
    assert "The question stands in the prompt `" in card(index, workspace.settings, source, [method], [])


def test_what_training_started_from_stays_where_it_is(
    here: Path, model_folder: Path, tmp_path: Path, capsys: Output
) -> None:
    shaken(load_theta(ModelConfig(name=str(model_folder))), PSI).save(PSI, tmp_path)
    (tmp_path / PSI).rename(tmp_path / "adapter")
    settings = (here / SETTINGS_FILE).read_text()
    started = f"train_psi: {{start: {tmp_path / 'adapter'}, lora_alpha: 8, "
    (here / SETTINGS_FILE).write_text(settings.replace("train_psi: {", started))
    for command in ("precompute", "score", "train-phi", "train-psi"):
        output(capsys, command)
    output(capsys, "export", "methods.zip")
    with zipfile.ZipFile("methods.zip") as archive:
        assert str(tmp_path) not in "".join(archive.read(name).decode(errors="replace") for name in archive.namelist())
    Path("adapter").mkdir()
    output(capsys, "import", "methods.zip", "-w", "new-run", "--model", str(model_folder))
    assert load_settings(Path("new-run", SETTINGS_FILE)).train_psi.start is None
    assert answers(Path("new-run"), "ccot") == answers(here, "ccot")


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
        "psi/training.json",
    }
    of_phi = {name.replace("psi/", "phi/") for name in of_method if name.startswith("psi/")}
    of_ccot = {*of_method, *of_phi, "end.safetensors"}
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
    assert "## 4 problems of `embedded`, split `test`, seed 0\n" in card
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


def test_a_damaged_import_is_not_trained_from_nothing(trained: Path, model_folder: Path, capsys: Output) -> None:
    output(capsys, "export", "methods.zip")
    output(capsys, "import", "methods.zip", "-w", "new", "--model", str(model_folder))
    [*_, weights] = sorted(Path("new/train-psi/r0.10").rglob("*.safetensors"))
    weights.unlink()
    _, err = output(capsys, "ask", QUESTION, "-w", "new", "--ratio", "0.1", code=4)
    assert "fix:   put it back from a copy; to make it again, ccot precompute" in err


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


def test_commands_to_copy_are_quoted(trained: Path, capsys: Output) -> None:
    _, err = output(capsys, "export", "my methods.zip")
    assert err == "next:  ccot import 'my methods.zip' -w new-run --model DIR\n"
    _, err = output(capsys, "import", "my methods.zip", "-w", "new run", code=2)
    assert err.endswith("fix:   ccot import 'my methods.zip' -w 'new run' --model DIR\n")


def test_an_existing_file_is_replaced_only_by_force(trained: Path, capsys: Output) -> None:
    Path("methods.zip").write_text("mine")
    _, err = output(capsys, "export", "methods.zip", code=2)
    assert err == "error: methods.zip exists already\nfix:   name another file, or replace it with --force\n"
    assert Path("methods.zip").read_text() == "mine"
    output(capsys, "export", "methods.zip", "--force")
    assert zipfile.is_zipfile("methods.zip")


def test_a_file_that_cannot_be_written_is_named(trained: Path, capsys: Output) -> None:
    Path("folder").mkdir()
    _, err = output(capsys, "export", "no where/methods.zip", "--force", code=2)
    assert err == "error: there is no folder no where\nfix:   mkdir 'no where'\n"
    _, err = output(capsys, "export", "folder", "--force", code=2)
    assert err == "error: folder is a folder\nfix:   name a file in it, or another one\n"


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


def test_every_byte_of_the_given_model_s_weights_counts(
    trained: Path, model_folder: Path, tmp_path: Path, capsys: Output
) -> None:
    output(capsys, "export", "methods.zip")
    other = shutil.copytree(model_folder, tmp_path / "other") / "model.safetensors"
    tensors = load_file(other)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 1] += 1  # The fingerprint reads samples, without this one.
    save_file(tensors, other, metadata={"format": "pt"})
    _, err = output(capsys, "import", "methods.zip", "-w", "new", "--model", str(other.parent), code=4)
    assert "is not the model that the methods were trained on, model" in err


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


@pytest.fixture
def unpacked(trained: Path, capsys: Output) -> Path:
    """The files of an archive in a folder."""
    output(capsys, "export", "methods.zip")
    with zipfile.ZipFile("methods.zip") as archive:
        archive.extractall("unpacked")
    return Path("unpacked")


def plain(model_folder: Path, adapter: Path) -> tuple[PeftModel, torch.Tensor, torch.Tensor]:
    """Load θ with an adapter, the question's ids and those of <ANS>, by transformers and PEFT alone."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folder), str(adapter)).eval()
    query, marker = (tokenizer(text, return_tensors="pt").input_ids for text in (f"{QUESTION}\n", "\n####"))
    start = torch.full((1, 1), tokenizer.bos_token_id)
    return model, torch.cat([start, query], dim=1), marker


@torch.no_grad()
def test_transformers_and_peft_alone_compute_the_logits_of_direct(
    unpacked: Path, trained: Path, model_folder: Path
) -> None:
    model, query_ids, marker_ids = plain(model_folder, unpacked / "train-baseline/direct/psi")
    ids = torch.cat([query_ids, marker_ids], dim=1)
    logits = model(input_ids=ids).logits[:, -marker_ids.shape[1] :]
    method = load(trained, method="direct").method
    assert isinstance(method, DirectMethod)
    sequence = method.prepare([method.theta.encoder.query(QUESTION)]).sequence
    method.adapters.use(PSI)
    fed = torch.tensor([method.theta.encoder.answer_marker])
    states = method.theta.blocks.run_ids(fed, torch.ones_like(fed, dtype=torch.bool), sequence)
    torch.testing.assert_close(logits, method.theta.blocks.logits(states))
    with model.disable_adapter():
        assert (model(input_ids=ids).logits[:, -marker_ids.shape[1] :] - logits).abs().max() > 1e-2


@torch.no_grad()
def test_transformers_and_peft_alone_compute_phis_first_states(
    unpacked: Path, trained: Path, model_folder: Path
) -> None:
    model, query_ids, _ = plain(model_folder, unpacked / "train-psi/r0.10/phi")
    layer = json.loads((unpacked / "train-psi/r0.10/method.json").read_text())["autoregressive_layer"]
    with model.disable_adapter():
        read = model(input_ids=query_ids, output_hidden_states=True, use_cache=True)
    states, fed = [], read.hidden_states[layer][:, -1:]
    with model.disable_adapter():
        cache = deepcopy(read.past_key_values)
        unchanged = model(inputs_embeds=fed, past_key_values=cache, output_hidden_states=True).hidden_states[layer]
    for _ in range(3):
        step = model(inputs_embeds=fed, past_key_values=read.past_key_values, output_hidden_states=True)
        fed = step.hidden_states[layer][:, -1:]
        states.append(fed)
    method = load(trained).method
    assert isinstance(method, CcotMethod)
    sequence, first_BD = encode_query(method.adapters, [method.theta.encoder.query(QUESTION)], layer=layer)
    tokens = contemplate(
        method.adapters, sequence, first_BD, layer=layer, max_tokens=3, is_end=None, chance=None, reserved=8
    )
    torch.testing.assert_close(torch.cat(states, dim=1), tokens.lower_BKD)
    assert (unchanged - states[0]).abs().max() > 1e-2


@pytest.mark.parametrize("content", ["", "{}", '{"rows": []}', '[{"method": "ccot"}]', "[1]"])
def test_a_file_that_has_the_name_of_the_results_is_refused_by_name(
    trained: Path, capsys: Output, content: str
) -> None:
    (trained / "results.json").write_text(content)
    _, err = output(capsys, "export", "methods.zip", code=4)
    assert "results.json does not hold the results of an import" in err
