"""Weights that are damaged, or are not those of the configuration, are refused before anything is computed."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import save_tiny
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from ccot_cli.config import ModelConfig
from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.models.base import pretrained
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.theta import load_theta

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Tensors = dict[str, Tensor]


@pytest.fixture
def folder(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    save_tiny("llama", tokenizer, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("model.layers.1.mlp.down_proj.weight"), r"lack model\.layers\.1\.mlp\.down_proj"),
        (lambda tensors: tensors.pop("model.norm.weight"), r"lack model\.norm"),
        (lambda tensors: tensors.update({"model.layers.9.extra": torch.ones(2)}), r"beyond .*model\.layers\.9\.extra"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}), r"another shape .*model\.norm"),
    ],
    ids=["a matrix is missing", "a norm is missing", "one too many", "another shape"],
)
def test_other_tensors_than_the_configuration_asks_for_are_named(
    folder: Path, change: Callable[[Tensors], object], said: str
) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(CorruptError, match=said):
        load_theta(ModelConfig(name=str(folder)))


def test_fewer_layers_than_the_weights_have_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] - 1}))
    with pytest.raises(CorruptError, match="beyond what its configuration asks for"):
        load_theta(ModelConfig(name=str(folder)))


def test_a_damaged_header_is_refused(folder: Path) -> None:
    damaged = bytearray((folder / WEIGHTS).read_bytes())
    damaged[3] ^= 1
    (folder / WEIGHTS).write_bytes(damaged)
    with pytest.raises(CorruptError, match="cannot be read"):
        load_theta(ModelConfig(name=str(folder)))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": [1]}}', "\xff"])
def test_an_index_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text, encoding="latin-1")
    with pytest.raises(CorruptError, match="cannot be read"):
        load_theta(ModelConfig(name=str(folder)))


@pytest.mark.parametrize("named", ["pytorch_model.bin", "../other.safetensors", "/tmp/other.safetensors"])
def test_an_index_names_only_safetensors_files_of_its_folder(folder: Path, named: str) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, named)}))
    with pytest.raises(CorruptError, match="no safetensors file beside it"):
        load_theta(ModelConfig(name=str(folder)))


def test_a_tokenizer_that_names_no_end_of_text_is_refused(folder: Path) -> None:
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": None}))
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    with pytest.raises(CorruptError, match="names no token that ends a text") as caught:
        load_theta(ModelConfig(name=str(folder)))
    assert "eos_token" in caught.value.fix


def test_a_folder_that_holds_an_adapter_is_refused(folder: Path) -> None:
    # transformers would put it into the model without a word.
    model = AutoModelForCausalLM.from_pretrained(folder)
    get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder)
    with pytest.raises(UsageError, match="holds a LoRA adapter") as caught:
        load_theta(ModelConfig(name=str(folder)))
    assert "model.adapter" in caught.value.fix


def hub_copy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put a model into a cache of the hub, as if it had been downloaded; return its name."""
    commit, repository = "0" * 40, tmp_path / "hub" / "models--acme--tiny"
    shutil.copytree(folder, repository / "snapshots" / commit, ignore=lambda *_: ["hub"])
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(pretrained, "hub_answers", lambda: False)
    return "acme/tiny"


def test_a_model_of_the_hub_that_is_on_this_machine_asks_nobody(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object, **__: object) -> None:
        pytest.fail("it asks the network")

    expected = load_theta(ModelConfig(name=str(folder))).fingerprint()
    name = hub_copy(folder, tmp_path, monkeypatch)
    # The hub's library asks on its own what program calls it, whatever it is then told not to fetch.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr("socket.getaddrinfo", ask)
    theta = load_theta(ModelConfig(name=name))
    assert theta.fingerprint() == expected
    adapters = Adapters(theta)
    adapters.add(PSI, rank=2, alpha=2, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapters.save(PSI, tmp_path / "saved")
        Adapters(load_theta(ModelConfig(name=name))).load(PSI, tmp_path / "saved" / PSI)


def test_pickled_weights_of_the_hub_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    (folder / "weights.bin").write_bytes(b"pickled")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, "weights.bin")}))
    with pytest.raises(CorruptError, match="no safetensors file beside it"):
        load_theta(ModelConfig(name=hub_copy(folder, tmp_path, monkeypatch)))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tokenizer.json", lambda value: value["model"].update(merges=[3])),
        ("tokenizer.json", lambda value: value.pop("added_tokens")),
        ("config.json", lambda value: value.update(hidden_size="abc")),
        ("config.json", None),
        ("tokenizer_config.json", None),
    ],
    ids=["merges", "added tokens", "a size in words", "no config", "no settings"],
)
def test_a_damaged_file_beside_the_weights_is_refused_by_name(
    folder: Path, name: str, damage: Callable[[dict[str, Any]], object] | None
) -> None:
    value = json.loads((folder / name).read_text())
    if damage:
        damage(value)
    (folder / name).write_text(json.dumps(value if damage else []))
    with pytest.raises(UsageError, match="holds no model that can be loaded"):
        load_theta(ModelConfig(name=str(folder)))


def test_what_is_no_id_ends_no_text(folder: Path) -> None:
    expected = load_theta(ModelConfig(name=str(folder))).encoder.ends
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token_id": "two"}))
    assert load_theta(ModelConfig(name=str(folder))).encoder.ends == expected
