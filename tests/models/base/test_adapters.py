"""φ and ψ as adapters on θ, against PEFT itself."""

import gc
import json
import os
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import MakeTheta, as_theta, shaken, tiny_config
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from ccot_cli.errors import CorruptError
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def both(theta: Theta) -> Adapters:
    adapters = Adapters(theta)
    adapters.add(PHI, rank=4, alpha=8, seed=1)
    adapters.add(PSI, rank=2, alpha=2, seed=2)
    return adapters


def shake(adapters: Adapters, name: str) -> None:
    """Give an adapter weights that do something."""
    generator = torch.Generator().manual_seed(3)
    for parameter_name, parameter in adapters.named_parameters():
        if f".{name}." in parameter_name:
            parameter.data.normal_(0, 0.2, generator=generator)


def logits(theta: Theta) -> torch.Tensor:
    return theta.model(input_ids=IDS).logits


def test_untrained_adapters_equal_theta(theta: Theta) -> None:
    plain = logits(theta)
    adapters = both(theta)
    for name in (PHI, PSI, None):
        adapters.use(name)
        torch.testing.assert_close(logits(theta), plain)


def test_each_adapter_computes_with_its_own_weights_and_theta_with_none(theta: Theta) -> None:
    plain = logits(theta)
    adapters = both(theta)
    shake(adapters, PHI)
    adapters.use(PSI)
    torch.testing.assert_close(logits(theta), plain)
    adapters.use(PHI)
    assert (logits(theta) - plain).abs().max() > 1e-2
    adapters.use(None)
    assert torch.equal(logits(theta), plain)


def test_the_trainable_set_survives_every_switch(theta: Theta) -> None:
    adapters = both(theta)
    chosen = [*adapters.parameters(PHI, layers=range(1, 2)), *adapters.parameters(PSI)]
    adapters.train_only(chosen)
    for name in (PHI, None, PSI, PHI, None):
        adapters.use(name)
        assert {name for name, p in adapters.named_parameters() if p.requires_grad} == set(chosen)


def test_names_pick_the_layers_of_one_adapter(theta: Theta) -> None:
    adapters = both(theta)
    by_layer = [adapters.parameters(PHI, layers=range(layer, layer + 1)) for layer in range(theta.num_layers)]
    assert all(by_layer)
    assert sorted(name for names in by_layer for name in names) == sorted(adapters.parameters(PHI))


def test_saved_and_loaded_gives_the_same_logits(theta: Theta, tmp_path: Path) -> None:
    adapters = both(theta)
    shake(adapters, PHI)
    adapters.use(PHI)
    expected = logits(theta)
    adapters.save(PHI, tmp_path)
    shake(adapters, PSI)
    adapters.load(PHI, tmp_path / PHI)
    adapters.use(PHI)
    assert torch.equal(logits(theta), expected)


def test_some_layers_of_an_adapter_are_loaded_or_cleared(theta: Theta, tmp_path: Path) -> None:
    adapters, last = both(theta), theta.num_layers - 1
    shake(adapters, PHI)
    saved = {name: each.detach().clone() for name, each in adapters.parameters(PHI).items()}
    adapters.save(PHI, tmp_path)
    for each in adapters.parameters(PHI).values():
        each.data.fill_(0.5)
    assert adapters.load_layers(PHI, tmp_path / PHI, range(last, theta.num_layers))
    of_last = adapters.parameters(PHI, layers=range(last, theta.num_layers)).keys()
    for name, each in adapters.parameters(PHI).items():
        assert torch.equal(each, saved[name] if name in of_last else torch.full_like(each, 0.5))
    assert 0 < len(of_last) < len(saved)
    adapters.clear(PHI, range(last))
    for name, each in adapters.parameters(PHI).items():
        is_clear = name not in of_last and ".lora_B." in name
        assert each.any() != is_clear
    adapters.clear(PHI, range(last, theta.num_layers))
    adapters.use(None)
    plain = logits(theta)
    adapters.use(PHI)
    assert torch.equal(logits(theta), plain)


def test_layers_of_an_adapter_of_another_rank_stay_out(llama: Theta, tmp_path: Path) -> None:
    adapters = both(llama)
    adapters.save(PSI, tmp_path)
    before = {name: each.detach().clone() for name, each in adapters.state(PHI).items()}
    assert not adapters.load_layers(PHI, tmp_path / PSI, range(llama.num_layers))
    assert all(torch.equal(before[name], each) for name, each in adapters.state(PHI).items())


def test_every_process_writes_the_same_bytes(tmp_path: Path) -> None:
    """A set's order differs from process to process, and manifests hash what is saved."""
    code = (
        "import sys, torch; from pathlib import Path; from ccot_cli.models.base.adapters import Adapters\n"
        "from ccot_cli.models.base.random_model import random_theta\n"
        "theta = random_theta('1x64', device=torch.device('cpu'), dtype=torch.float32)\n"
        "adapters = Adapters(theta); adapters.add('phi', rank=2, alpha=2, seed=0)\n"
        "adapters.save('phi', Path(sys.argv[1]))\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / seed)], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert [each.wait() for each in started] == [0, 0]
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / seed / PHI).iterdir()} for seed in ("1", "2")
    )
    assert sorted(first) == ["adapter_config.json", "adapter_model.safetensors", "training.json"]
    assert first == second


def test_an_adapters_files_follow_the_umask(llama: Theta, tmp_path: Path) -> None:
    adapters = both(llama)
    before = os.umask(0o027)
    try:
        adapters.save(PHI, tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / PHI).iterdir()} == {0o640}


def test_plain_peft_loads_what_was_saved(theta: Theta, make_theta: MakeTheta, tmp_path: Path) -> None:
    adapters = both(theta)
    shake(adapters, PHI)
    adapters.use(PHI)
    expected = logits(theta)
    adapters.save(PHI, tmp_path)
    plain = PeftModel.from_pretrained(make_theta(theta.name).model, str(tmp_path / PHI))
    torch.testing.assert_close(plain(input_ids=IDS).logits, expected)


@pytest.mark.parametrize(
    "fault", ["missing", "extra", "misshapen", "not finite", "truncated", "no settings", "no alpha"]
)
def test_a_damaged_adapter_is_refused(llama: Theta, tmp_path: Path, fault: str) -> None:
    adapters = both(llama)
    adapters.save(PHI, tmp_path)
    path = tmp_path / PHI / "adapter_model.safetensors"
    tensors = load_file(path)
    first = next(iter(tensors))
    if fault == "missing":
        del tensors[first]
    elif fault == "extra":
        tensors["base_model.model.model.layers.9.mlp.up_proj.lora_A.weight"] = torch.zeros(2, 2)
    elif fault == "misshapen":
        tensors[first] = tensors[first][:1].clone()
    elif fault == "not finite":
        tensors[first][0, 0] = float("nan")
    save_file(tensors, path)
    if fault == "truncated":
        path.write_bytes(path.read_bytes()[:-10])
    elif fault == "no settings":
        (tmp_path / PHI / "adapter_config.json").unlink()
    elif fault == "no alpha":
        settings = tmp_path / PHI / "adapter_config.json"
        settings.write_text(settings.read_text().replace('"lora_alpha": 8', '"lora_alpha": NaN'))
    for attempt in (partial(adapters.load_layers, layers=range(1)), adapters.load):
        with pytest.raises(CorruptError, match=r"adapter .*phi"):
            attempt(PHI, tmp_path / PHI)


@pytest.mark.parametrize("change", [{"use_rslora": True}, {"alpha_pattern": {"q_proj": 32}}])
def test_an_adapter_with_another_scale_is_refused(llama: Theta, tmp_path: Path, change: dict[str, object]) -> None:
    adapters = both(llama)
    adapters.save(PHI, tmp_path)
    settings = tmp_path / PHI / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | change))
    with pytest.raises(CorruptError, match=rf"adapter .*phi has {next(iter(change))}") as caught:
        adapters.load(PHI, tmp_path / PHI)
    assert "lora_alpha" in caught.value.fix


def test_the_same_seed_gives_the_same_adapter_and_leaves_the_global_state_alone(make_theta: MakeTheta) -> None:
    one, other = make_theta("llama"), make_theta("llama")
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first = both(one).state(PHI)
    assert torch.equal(torch.rand(1), expected)
    adapters = Adapters(other)
    adapters.add(PHI, rank=4, alpha=8, seed=1)
    assert all(torch.equal(first[name], tensor) for name, tensor in adapters.state(PHI).items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_that_are_not_merged_compute_what_peft_does_to_the_last_bit(theta: Theta, dtype: torch.dtype) -> None:
    theta.model.to(dtype)
    adapters = shaken(theta, PHI, PSI)
    adapters.merges = False
    ids = torch.arange(3, 15)[None]
    found = {}
    with torch.no_grad():
        for name in (None, PHI, PSI):
            adapters.use(name)
            found[name] = theta.model(ids).logits
        assert not torch.equal(found[PHI], found[PSI])
        for module in theta.model.modules():
            vars(module).pop("forward", None)
        for name in (PHI, PSI):
            adapters.peft.set_adapter(name)
            # PEFT multiplies float32 adapters of a bfloat16 model in float32, unless autocast is on.
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                assert torch.equal(theta.model(ids).logits, found[name])
        with adapters.peft.disable_adapter():
            assert torch.equal(theta.model(ids).logits, found[None])


def test_merged_copies_compute_what_the_adapter_does_and_leave_theta_alone(theta: Theta) -> None:
    adapters = shaken(theta, PHI, PSI)
    ids = torch.arange(3, 15)[None]
    before = {name: parameter.detach().clone() for name, parameter in adapters.named_parameters()}
    for name in (PHI, PSI):
        with torch.no_grad():
            adapters.merges = False
            adapters.use(name)
            expected = theta.model(ids).logits
            adapters.merges = True
            adapters.use(name)
            torch.testing.assert_close(theta.model(ids).logits, expected, atol=1e-4, rtol=1e-4)
    adapters.use(None)
    assert all(torch.equal(parameter, before[name]) for name, parameter in adapters.named_parameters())


def test_a_merged_copy_has_theta_s_precision(theta: Theta) -> None:
    theta.model.bfloat16()
    adapters = shaken(theta, PHI)
    ids = torch.arange(3, 15)[None]
    found = []
    with torch.no_grad():
        for adapters.merges in (False, True):
            adapters.use(PHI)
            found.append(theta.model(ids).logits)
    assert found[1].dtype == torch.bfloat16
    assert not torch.equal(*found)
    torch.testing.assert_close(found[1], found[0], atol=0.1, rtol=0.1)


@pytest.mark.parametrize(("merges", "offload"), [(False, False), (True, False), (False, True)])
def test_a_model_that_is_let_go_leaves_memory_at_once(make_theta: MakeTheta, merges: bool, offload: bool) -> None:
    theta = make_theta("llama")
    theta.blocks.to(theta.device, offload=offload)
    adapters = both(theta)
    adapters.merges = merges
    adapters.use(PHI)
    theta.model(torch.tensor([[5, 6]]))
    weight = weakref.ref(next(iter(theta.blocks.layers[0].parameters())))
    gc.collect()
    gc.disable()
    try:
        del theta, adapters
        assert weight() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("width", "rank", "is_merged"),
    [(192, 32, True), (1024, 64, False), (1024, 85, False), (1024, 86, True), (1024, 128, True)],
)
def test_a_learning_adapter_is_merged_if_that_costs_less(
    tokenizer: PreTrainedTokenizerFast, width: int, rank: int, is_merged: bool
) -> None:
    config = tiny_config("llama", 100)
    config.hidden_size, config.num_hidden_layers, config.num_key_value_heads = width, 1, 4
    config.head_dim = width // 4
    theta = as_theta(config, tokenizer)
    adapters = Adapters(theta)
    adapters.add(PHI, rank=rank, alpha=rank, seed=1)
    shake(adapters, PHI)
    adapters.train_only(adapters.parameters(PHI))
    inputs = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    outputs = []
    for adapters.merges in (False, True):
        adapters.use(PHI)
        outputs.append(theta.blocks.layers[0].self_attn.q_proj(inputs).detach())
    torch.testing.assert_close(*outputs, atol=1e-2, rtol=1e-3)
    # One product rounds otherwise than three.
    assert torch.equal(*outputs) != is_merged


def test_gradients_through_merged_copies_are_those_of_the_adapter(theta: Theta) -> None:
    theta.model.double()
    adapters = shaken(theta, PHI)
    trained = adapters.parameters(PHI, layers=range(1, 3))
    adapters.train_only(trained)
    gradients = []
    for adapters.merges in (False, True, True):
        # The second merged pass sees copies of its own: the first one's graph is gone.
        theta.model.zero_grad()
        adapters.use(PHI)
        theta.model(torch.arange(3, 15)[None]).logits.sin().sum().backward()
        found = {name: parameter.grad for name, parameter in adapters.named_parameters() if parameter.grad is not None}
        assert set(found) == set(trained)
        gradients.append({name: gradient.clone() for name, gradient in found.items()})
    for merged in gradients[1:]:
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(merged[name], gradient, atol=1e-4, rtol=1e-3)


def test_merged_copies_are_made_again_when_the_adapter_has_changed(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    ids = torch.arange(3, 15)[None]

    def logits() -> torch.Tensor:
        with torch.no_grad():
            adapters.use(PHI)
            return llama.model(ids).logits

    first, again = logits(), logits()
    assert torch.equal(first, again)
    with torch.no_grad():
        next(iter(adapters.parameters(PHI).values())).add_(0.5)
    changed = logits()
    assert not torch.allclose(first, changed, atol=1e-3)
    adapters.merges = False
    adapters.use(PHI)
    torch.testing.assert_close(changed, llama.model(ids).logits.detach(), atol=1e-4, rtol=1e-4)
