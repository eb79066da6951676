"""Weights that are damaged, or are not those of the configuration, are refused before anything is computed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import save_tiny
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ccot_cli.config import ModelConfig
from ccot_cli.errors import CorruptError
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
