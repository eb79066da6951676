"""A model that an adapter was merged into when it was loaded, against PEFT itself."""

from pathlib import Path

import pytest
import torch
from conftest import save_tiny, shaken
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from ccot_cli.config import ModelConfig
from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.files import strict_json
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.theta import load_theta
from ccot_cli.names import ADAPTER_CONFIG_FILE, ADAPTER_FILE

IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture(params=["llama", "gpt2", "gemma2"])
def folder(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    """A tiny random model."""
    save_tiny(request.param, tokenizer, tmp_path / "model")
    return tmp_path / "model"


def save_adapter(model_folder: Path, folder: Path, config: LoraConfig | PromptTuningConfig) -> Tensor:
    """Save an adapter that does something, and return PEFT's logits with it."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), config)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(str(folder))
    with torch.no_grad():
        logits: Tensor = model(input_ids=IDS).logits
    return logits


def own_adapter(model_folder: Path, folder: Path) -> Tensor:
    """Save one as a stage trains it, and return its logits."""
    adapters = shaken(load_theta(ModelConfig(name=str(model_folder))), PSI)
    adapters.save(PSI, folder)
    adapters.use(PSI)
    return logits_of(adapters.theta.model)


@torch.no_grad()
def logits_of(model: torch.nn.Module) -> Tensor:
    logits: Tensor = model(input_ids=IDS).logits
    return logits


def test_theta_with_a_trained_adapter_has_its_logits(folder: Path, tmp_path: Path) -> None:
    expected = own_adapter(folder, tmp_path)
    theta = load_theta(ModelConfig(name=str(folder), adapter=str(tmp_path / PSI)))
    assert theta.has_adapter
    assert not any("lora" in name for name, _ in theta.model.named_parameters())
    assert torch.equal(logits_of(theta.model), expected)
    assert not torch.equal(logits_of(load_theta(ModelConfig(name=str(folder))).model), expected)


def test_any_lora_adapter_of_peft_is_merged(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    save_tiny("llama", tokenizer, tmp_path / "model")
    config = LoraConfig(r=4, lora_alpha=2, target_modules=["q_proj", "v_proj"], use_rslora=True, use_dora=True)
    expected = save_adapter(tmp_path / "model", tmp_path / "adapter", config)
    theta = load_theta(ModelConfig(name=str(tmp_path / "model"), adapter=str(tmp_path / "adapter")))
    torch.testing.assert_close(logits_of(theta.model), expected)


def test_new_adapters_learn_on_it_and_name_no_base(folder: Path, tmp_path: Path) -> None:
    own_adapter(folder, tmp_path)
    adapters = Adapters(load_theta(ModelConfig(name=str(folder), adapter=str(tmp_path / PSI))))
    plain = logits_of(adapters.theta.model)
    adapters.add(PSI, rank=2, alpha=2, seed=0)
    adapters.use(PSI)
    torch.testing.assert_close(logits_of(adapters.theta.model), plain)
    adapters.theta.__dict__["name"] = "me/a-model-of-the-hub"
    adapters.save(PSI, tmp_path / "new")
    saved = strict_json((tmp_path / "new" / PSI / ADAPTER_CONFIG_FILE).read_bytes())
    assert saved["base_model_name_or_path"] is None


class TestRefused:
    """What cannot be merged is an error that names it, before anything runs."""

    @pytest.fixture
    def config(self, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> ModelConfig:
        save_tiny("llama", tokenizer, tmp_path / "model")
        own_adapter(tmp_path / "model", tmp_path)
        return ModelConfig(name=str(tmp_path / "model"), adapter=str(tmp_path / PSI))

    @pytest.mark.parametrize("missing", [ADAPTER_FILE, ADAPTER_CONFIG_FILE])
    def test_no_adapter(self, config: ModelConfig, missing: str, tmp_path: Path) -> None:
        (tmp_path / PSI / missing).unlink()
        (tmp_path / PSI / "adapter_model.bin").write_bytes(b"a pickle, which would be run")
        with pytest.raises(UsageError, match=f"is no adapter's folder: it has no {missing}"):
            load_theta(config)

    @pytest.mark.parametrize("file", [ADAPTER_FILE, ADAPTER_CONFIG_FILE])
    def test_damaged(self, config: ModelConfig, file: str, tmp_path: Path) -> None:
        (tmp_path / PSI / file).write_bytes(b"{")
        with pytest.raises(CorruptError, match="cannot be put into the model"):
            load_theta(config)

    def test_of_another_model(self, config: ModelConfig, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
        save_tiny("gpt2", tokenizer, tmp_path / "other")
        with pytest.raises(CorruptError, match=r"does not fit|cannot be put"):
            load_theta(config.model_copy(update={"name": str(tmp_path / "other")}))

    def test_of_another_width(self, config: ModelConfig) -> None:
        with pytest.raises(CorruptError, match="does not fit this model: its tensors have other shapes"):
            load_theta(config.model_copy(update={"name": "embedded"}))

    @pytest.mark.parametrize("change", ["missing", "unknown"])
    def test_other_tensors(self, config: ModelConfig, change: str, tmp_path: Path) -> None:
        path = tmp_path / PSI / ADAPTER_FILE
        tensors = load_file(path)
        first = sorted(tensors)[0]
        if change == "missing":
            del tensors[first]
        else:
            tensors[first.replace("lora_A", "lora_C")] = tensors[first].clone()
        save_file(tensors, path)
        with pytest.raises(CorruptError, match="does not fit this model: 1 tensors differ"):
            load_theta(config)

    def test_numbers_that_are_not_finite(self, config: ModelConfig, tmp_path: Path) -> None:
        path = tmp_path / PSI / ADAPTER_FILE
        tensors = load_file(path)
        first = sorted(tensors)[0]
        save_file({**tensors, first: torch.full_like(tensors[first], torch.nan)}, path)
        with pytest.raises(CorruptError, match="not finite"):
            load_theta(config)

    def test_another_kind(self, config: ModelConfig, tmp_path: Path) -> None:
        kind = PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
        save_adapter(Path(config.name), tmp_path / "prompt", kind)
        with pytest.raises(UsageError, match="of the kind PROMPT_TUNING, which cannot be merged"):
            load_theta(config.model_copy(update={"adapter": str(tmp_path / "prompt")}))
