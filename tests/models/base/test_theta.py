"""A base model is loaded in the precision that suits its device; errors say why it cannot be loaded."""

from pathlib import Path

import pytest
import torch
from conftest import as_theta, save_tiny
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, GPT2Config, PreTrainedModel, PreTrainedTokenizerFast

from ccot_cli.config import ModelConfig
from ccot_cli.errors import ResourceError, UsageError
from ccot_cli.models.base import theta
from ccot_cli.models.base.blocks import Blocks
from ccot_cli.models.base.theta import load_theta, resolve_device


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("You are trying to access a gated repo.\nMake sure to have access", "hf auth login"),
        ("401 Client Error: Unauthorized", "hf auth login"),
        ("We couldn't connect to the Hub", "hf download some/model"),
    ],
)
def test_a_model_that_cannot_be_had_says_how(monkeypatch: pytest.MonkeyPatch, said: str, fix: str) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise OSError(said)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(ResourceError) as caught:
        load_theta(ModelConfig(name="some/model"))
    assert fix in caught.value.fix


def test_a_model_that_does_not_fit_the_device_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(model: nn.Module, device: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(nn.Module, "to", full)
    monkeypatch.setattr(PreTrainedModel, "to", full)
    with pytest.raises(ResourceError, match=r"embedded needs 0\.0 GB, more than is free on cpu"):
        load_theta(ModelConfig())


@pytest.mark.parametrize("name", ["meta", "nowhere", "cuda:99"])
def test_a_device_that_computes_nothing_here_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"no device '{name}'"):
        resolve_device(name)


def test_a_folder_that_is_no_model_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no model") as caught:
        load_theta(ModelConfig(name=str(tmp_path / "empty")))
    assert "hf download" not in caught.value.fix
    with pytest.raises(UsageError, match=r"there is no folder \./nowhere"):
        load_theta(ModelConfig(name="./nowhere"))


def test_on_a_gpu_float16_becomes_bfloat16(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny("llama", tokenizer, tmp_path)
    config = ModelConfig(name=str(tmp_path))
    load_theta(config).model.half().save_pretrained(tmp_path)
    on_cpu = {dtype: load_theta(config.model_copy(update={"dtype": dtype})) for dtype in ("bfloat16", "float32")}
    assert len({each.fingerprint() for each in on_cpu.values()}) == 1, "a model is the same on a GPU and on a CPU"
    monkeypatch.setattr(Blocks, "verify", lambda self: None)
    monkeypatch.setattr(theta, "resolve_device", torch.device)
    for asked, found in (("auto", torch.bfloat16), ("float16", torch.float16), ("float32", torch.float32)):
        loaded = load_theta(config.model_copy(update={"device": "meta", "dtype": asked}))
        assert loaded.dtype == found
        assert loaded.blocks.rotary.inv_freq.dtype == torch.float32


@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_for_what_follows_the_comparison_with_the_model_s_own_forward_pass(
    monkeypatch: pytest.MonkeyPatch, tf32: bool
) -> None:
    during, matmul = list[str](), torch.backends.cuda.matmul
    monkeypatch.setattr(Blocks, "verify", lambda self: during.append(matmul.fp32_precision))
    matmul.fp32_precision = "tf32"
    try:
        load_theta(ModelConfig(tf32=tf32))
        assert (*during, matmul.fp32_precision) == ("ieee", "tf32" if tf32 else "ieee")
    finally:
        matmul.fp32_precision = "ieee"


@pytest.mark.parametrize(
    ("device", "offload", "is_offloaded"), [("meta", True, True), ("meta", False, False), ("cpu", True, False)]
)
def test_layers_rest_in_main_memory_where_the_device_has_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, device: str, offload: bool, is_offloaded: bool
) -> None:
    monkeypatch.setattr(Blocks, "verify", lambda self: None)
    monkeypatch.setattr(theta, "resolve_device", torch.device)
    loaded = load_theta(ModelConfig(device=device, offload=offload))
    assert loaded.blocks.is_offloaded == is_offloaded
    homes = {parameter.device.type for parameter in loaded.blocks.layers.parameters()}
    assert homes == {"cpu" if is_offloaded else device}
    assert loaded.blocks.embedding.weight.device.type == loaded.device.type == device


@pytest.mark.parametrize("name", ["embeded", "Embedded", "embbedded"])
def test_a_typing_error_is_told_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise AssertionError("this would ask the hub")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(UsageError, match=f"there is no model '{name}'") as caught:
        load_theta(ModelConfig(name=name))
    assert caught.value.fix == "did you mean embedded?"


def test_a_hub_that_does_not_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ResourceError, match="is not on this machine and cannot be downloaded"):
        load_theta(ModelConfig(name="some/model"))
    assert slept == []


def test_a_chat_model_brings_its_prompt_and_its_ends(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    save_tiny("llama", tokenizer, tmp_path)
    chat = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    chat.chat_template = "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}<pad>{% endfor %}"
    chat.save_pretrained(tmp_path)
    GenerationConfig(eos_token_id=[chat.eos_token_id, chat.pad_token_id]).save_pretrained(tmp_path)
    plain, own = (load_theta(ModelConfig(name=str(tmp_path), prompt=prompt)) for prompt in ("{question}", "auto"))
    assert own.encoder.template.prompt == "<s>user: {question}<pad>"
    assert own.encoder.query("Why?") == [*chat("<s>user: Why?<pad>").input_ids]
    assert plain.encoder.ends == own.encoder.ends == {chat.eos_token_id, chat.pad_token_id}
    assert plain.fingerprint() != own.fingerprint()
    told = theta.diagnose(str(tmp_path))
    assert "a text ends with </s>, <pad>" in told
    assert "model.prompt: auto is '<s>user: {question}<pad>'" in told


@pytest.mark.parametrize(("most", "longest"), [(64, 32), (512, 256), (1024, 768)])
def test_a_query_may_take_half_of_few_positions(tokenizer: PreTrainedTokenizerFast, most: int, longest: int) -> None:
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=4, n_positions=most)
    assert as_theta(config, tokenizer).longest_query == longest
