"""Layers run by hand against the model's own forward pass."""

import weakref
from typing import Any

import pytest
import torch
from conftest import MakeTheta, as_theta, tiny_config
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    DynamicCache,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from ccot_cli.errors import UsageError
from ccot_cli.models.base.blocks import Blocks
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.tensors.masks import pad_left

QUERIES = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17, 18]]


def hugging_face_states(theta: Theta, ids: list[int]) -> list[torch.Tensor]:
    """Every index by transformers' own forward pass, the last one raw, caught by a hook before the final norm."""
    caught: list[torch.Tensor] = []

    def hook(_module: object, _inputs: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        caught.append(output[0] if isinstance(output, tuple) else output)

    handle = theta.blocks.layers[-1].register_forward_hook(hook)
    states = theta.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    handle.remove()
    return [*states[:-1], caught[0]]


def run_from_zero(theta: Theta, ids: torch.Tensor, mask: torch.Tensor, last: int) -> torch.Tensor:
    return theta.blocks.run_ids(ids, mask, CachedSequence.empty(len(ids), theta.device), last=last)


def test_every_index_equals_transformers_hidden_states(theta: Theta) -> None:
    expected = hugging_face_states(theta, QUERIES[0])
    ids = torch.tensor([QUERIES[0]])
    for index, state in enumerate(expected):
        torch.testing.assert_close(run_from_zero(theta, ids, torch.ones_like(ids).bool(), index), state)


def test_left_padding_never_changes_a_state(theta: Theta) -> None:
    ids, mask = pad_left(QUERIES, fill=theta.pad_id)
    padded = run_from_zero(theta, ids, mask, theta.num_layers)
    for row, query in enumerate(QUERIES):
        alone = hugging_face_states(theta, query)[-1][0]
        torch.testing.assert_close(padded[row, -len(query) :], alone)


def test_holes_in_the_sequence_are_as_if_they_were_not_there(theta: Theta) -> None:
    ids = torch.tensor([QUERIES[0]])
    sequence = CachedSequence.empty(1, theta.device)
    theta.blocks.run_ids(ids[:, :3], torch.ones(1, 3).bool(), sequence)
    theta.blocks.run_ids(torch.tensor([[1, 2]]), torch.zeros(1, 2).bool(), sequence)
    after = theta.blocks.run_ids(ids[:, 3:], torch.ones(1, 3).bool(), sequence)
    torch.testing.assert_close(after, hugging_face_states(theta, QUERIES[0])[-1][:, 3:])


def test_running_in_two_halves_equals_running_at_once(theta: Theta) -> None:
    ids = torch.tensor([QUERIES[0]])
    mask = torch.ones_like(ids).bool()
    sequence = CachedSequence.empty(1, theta.device)
    lower = theta.blocks.run_ids(ids, mask, sequence, last=2)
    upper = theta.blocks.run(lower, 2, theta.num_layers, sequence)
    assert torch.equal(upper, run_from_zero(theta, ids, mask, theta.num_layers))


def test_only_the_newest_states_are_kept_while_layers_run(llama: Theta) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def watch(_module: object, _inputs: object, output: torch.Tensor) -> None:
        made.append(weakref.ref(output))
        alive.append(sum(each() is not None for each in made))

    handles = [layer.register_forward_hook(watch) for layer in llama.blocks.layers]
    with torch.no_grad():
        run_from_zero(llama, *pad_left(QUERIES, fill=llama.pad_id), llama.num_layers)
    for handle in handles:
        handle.remove()
    assert len(alive) == llama.num_layers
    assert max(alive) <= 2


@pytest.mark.parametrize("index", [0, 2])
def test_a_filled_layer_holds_what_a_layer_that_is_run_leaves_and_goes_no_further(theta: Theta, index: int) -> None:
    ids, mask = pad_left(QUERIES, fill=theta.pad_id)
    sequence, expected = CachedSequence.empty(3, theta.device), CachedSequence.empty(3, theta.device)
    below = theta.blocks.run_ids(ids, mask, sequence, last=index)
    theta.blocks.run_ids(ids, mask, expected)
    finished: list[object] = []
    handle = theta.blocks.layers[index].register_forward_hook(lambda *_: finished.append(_))
    theta.blocks.fill(below, index, sequence)
    handle.remove()
    assert not finished
    for found, wanted in zip(sequence.keys_values(index), expected.keys_values(index), strict=True):
        torch.testing.assert_close(found, wanted)


def test_logits_equal_the_models_own_with_its_cache(theta: Theta) -> None:
    cache = DynamicCache()
    theta.model(input_ids=torch.tensor([QUERIES[0][:4]]), past_key_values=cache)
    expected = theta.model(input_ids=torch.tensor([QUERIES[0][4:]]), past_key_values=cache).logits
    sequence = CachedSequence.empty(1, theta.device)
    theta.blocks.run_ids(torch.tensor([QUERIES[0][:4]]), torch.ones(1, 4).bool(), sequence)
    found = theta.blocks.run_ids(torch.tensor([QUERIES[0][4:]]), torch.ones(1, 2).bool(), sequence)
    torch.testing.assert_close(theta.blocks.logits(found), expected)


def test_a_family_that_works_otherwise_is_refused(llama: Theta) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self, norm: torch.nn.Module) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return 1.5 * self.norm(states)

    blocks = Blocks(llama.model)
    blocks.norm = Scaled(blocks.norm)
    with pytest.raises(UsageError, match="off by"):
        blocks.verify()


def test_a_model_without_known_parts_is_refused(llama: Theta) -> None:
    llama.model.model.layers_by_another_name = llama.model.model.layers
    del llama.model.model.layers
    with pytest.raises(UsageError, match="does not know"):
        Blocks(llama.model)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 100.0},
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0},
    ],
    ids=["dynamic", "longrope"],
)
def test_rotary_frequencies_that_follow_the_length_are_refused_by_name(
    tokenizer: PreTrainedTokenizerFast, rope: dict[str, Any]
) -> None:
    config = tiny_config("llama", len(tokenizer))
    config.max_position_embeddings = 9
    config.rope_parameters = {**rope, "rope_theta": 10.0, "original_max_position_embeddings": 9}
    with pytest.raises(UsageError, match=f"change with the length.*{rope['rope_type']}"):
        as_theta(config, tokenizer)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rotary_frequencies_that_are_fixed_are_taken(tokenizer: PreTrainedTokenizerFast, rope: dict[str, Any]) -> None:
    config = tiny_config("llama", len(tokenizer))
    config.rope_parameters = {**rope, "rope_theta": 10.0}
    as_theta(config, tokenizer).blocks.verify()


SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SIZES, sliding_window=4),
        Qwen2Config(**SIZES),
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=2),
        Gemma2Config(**SIZES, sliding_window=4),
        Gemma3TextConfig(**SIZES, sliding_window=4, layer_types=["sliding_attention", "full_attention"] * 2),
    ],
    ids=["mistral", "qwen2", "qwen2 with windows in half of its layers", "gemma2", "gemma3"],
)
@torch.no_grad()
def test_families_with_sliding_windows_equal_their_own_forward_pass(config: PretrainedConfig) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    blocks = Blocks(model)
    ids = torch.arange(20)[None]
    found = blocks.logits(blocks.run_ids(ids, torch.ones_like(ids).bool(), CachedSequence.empty(1, model.device)))
    torch.testing.assert_close(found, model(input_ids=ids).logits)


@pytest.mark.parametrize(
    "config",
    [
        FalconConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        OPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48),
        MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2),
        BloomConfig(vocab_size=100, hidden_size=32, n_layer=2, n_head=4),
        DeepseekV3Config(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            q_lora_rank=8,
            kv_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=4,
            first_k_dense_replace=2,
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_families_that_work_otherwise_or_keep_another_cache_are_refused(config: PretrainedConfig) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UsageError, match=rf"{type(model).__name__} .*(layer by layer|does not know)") as caught:
        Blocks(model).verify()
    assert "Llama" in caught.value.fix


def test_gradients_in_half_precision_are_near_those_in_full(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, attention is then computed by torch's plain kernel."""
    seen: list[bool] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: Any, **named: Any) -> torch.Tensor:
        seen.append(torch.backends.cuda.flash_sdp_enabled())
        return attention(*args, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    gradients = {}
    for dtype in (torch.float32, torch.bfloat16):
        theta = make_theta("llama")
        theta.model.to(dtype)
        ids, mask = pad_left(QUERIES, fill=theta.pad_id)
        sequence = CachedSequence.empty(len(ids), theta.device)
        sequence.extend(mask)
        hidden_BTD = theta.blocks.enter(theta.blocks.embed(ids), sequence).detach().requires_grad_()
        theta.blocks.run(hidden_BTD, 0, theta.num_layers, sequence).float().square().mean().backward()
        assert hidden_BTD.grad is not None
        gradients[dtype] = hidden_BTD.grad.float()
    full, half = gradients[torch.float32], gradients[torch.bfloat16]
    assert float((half - full).norm() / full.norm()) < 0.05
    assert {*seen[: len(seen) // 2]} == {True}, "in full precision the fused kernel is as fast"
    assert {*seen[len(seen) // 2 :]} == {False}
    assert torch.backends.cuda.flash_sdp_enabled()
