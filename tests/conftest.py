"""Tiny random models of several families, and what tests share."""

import os
import random
import weakref
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    StableLmConfig,
)

from ccot_cli.data.problems import Problem
from ccot_cli.data.prompts import EncodedProblem, Encoder, Template
from ccot_cli.data.tokenizer import train_tokenizer
from ccot_cli.data.word_problems import generate
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.blocks import Blocks
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training import optimiser

FAMILIES = ("llama", "qwen3", "mistral", "gpt2")
"""Families that most tests run on: they differ in all that matters to the method."""
OTHER_FAMILIES: dict[str, tuple[type[PretrainedConfig], dict[str, object]]] = {
    "llama3": (
        LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "smollm": (LlamaConfig, {"tie_word_embeddings": True}),
    "smollm3": (SmolLM3Config, {}),
    "qwen2": (Qwen2Config, {}),
    "gemma": (GemmaConfig, {}),
    "gemma2": (Gemma2Config, {"sliding_window": 6, "query_pre_attn_scalar": 8}),
    "gemma3": (Gemma3TextConfig, {"sliding_window": 6, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8}),
    "phi": (PhiConfig, {}),
    "phi3": (Phi3Config, {}),
    "olmo2": (Olmo2Config, {}),
    "granite": (
        GraniteConfig,
        {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0, "attention_multiplier": 0.1},
    ),
    "stablelm": (StableLmConfig, {}),
    "gpt_neox": (GPTNeoXConfig, {"num_key_value_heads": None}),
}
"""Further families that go through all stages."""
SHARED = Path(__file__).parent.parent.parent / "shared"
GSM8K = Path(os.environ.get("CCOT_GSM8K", SHARED / "data" / "gsm8k" / "train.jsonl"))
"""Real problems, if they are at hand."""


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    # Of one subset, so that new forms of text do not change every random model.
    problems = list(islice(generate("train", subset="two_steps"), 300))
    texts = [text for problem in problems for text in (problem.question, problem.solution)]
    return train_tokenizer([*texts, *(text for each in short_problems(300) for text in (each.question, each.chain))])


def tiny_config(family: str, vocab_size: int) -> PretrainedConfig:
    """Describe a four-layer model, with grouped heads and a sliding window if the family has them."""
    if family == "gpt2":
        return GPT2Config(vocab_size=vocab_size, n_embd=32, n_layer=4, n_head=4, n_positions=512)
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    if family in OTHER_FAMILIES:
        kind, special = OTHER_FAMILIES[family]
        return kind(**{**sizes, **special})
    if family == "mistral":
        return MistralConfig(**sizes, sliding_window=6)
    return {"llama": LlamaConfig, "qwen3": Qwen3Config}[family](**sizes)


def tiny(family: str, tokenizer: PreTrainedTokenizerFast) -> Theta:
    """Make a random model of a family."""
    return as_theta(tiny_config(family, len(tokenizer)), tokenizer)


def as_theta(config: PretrainedConfig, tokenizer: PreTrainedTokenizerFast) -> Theta:
    """Make a random model, its weights large enough that layers matter."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    model.requires_grad_(False).eval()
    return Theta(config.model_type, model, Encoder(tokenizer, Template()), Blocks(model))


def save_tiny(family: str, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save one of them as a user's model would be."""
    tiny(family, tokenizer).model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


MakeTheta = Callable[[str], Theta]


@pytest.fixture
def make_theta(tokenizer: PreTrainedTokenizerFast) -> MakeTheta:
    """Make a random model of a family when called with its name."""
    return partial(tiny, tokenizer=tokenizer)


@pytest.fixture(params=FAMILIES)
def theta(request: pytest.FixtureRequest, make_theta: MakeTheta) -> Theta:
    """Make each family in turn."""
    return make_theta(request.param)


@pytest.fixture
def muon_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Muon out of bfloat16, which makes count for more in what order sums are added up."""
    monkeypatch.setattr(optimiser, "multiplies_bfloat16", lambda device: False)


@pytest.fixture
def llama(make_theta: MakeTheta) -> Theta:
    return make_theta("llama")


def shaken(theta: Theta, *adapter_names: str) -> Adapters:
    """Attach fresh adapters φ and ψ of rank 4; those named get weights that do something."""
    adapters = Adapters(theta)
    adapters.add(PHI, rank=4, alpha=8, seed=1)
    adapters.add(PSI, rank=4, alpha=8, seed=2)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in adapters.named_parameters():
        if "lora_B" in name and any(f".{adapter}." in name for adapter in adapter_names):
            parameter.data.normal_(0, 0.2, generator=generator)
    return adapters


@pytest.fixture
def adapters(theta: Theta) -> Adapters:
    """Attach φ and ψ to each family, with weights that do something."""
    return shaken(theta, PHI, PSI)


class Offloaded:
    """A model whose decoder layers rest in one place and come to another, both on the CPU; counts those that are away.

    Where they rest they are not numbers, so whatever computes there comes to nothing. `most_kept` is the most layers of
    which a copy was in memory at a time.
    """

    def __init__(self, theta: Theta) -> None:
        theta.blocks.to(torch.device("cpu"), offload=True)
        self._layers = theta.blocks.layers
        self._home = [_weights(layer) for layer in self._layers]
        self._copies = [list[weakref.ref[nn.Parameter]]() for _ in self._layers]
        self.most_away = self.most_kept = 0
        for number, (layer, weights) in enumerate(zip(self._layers, self._home, strict=True)):
            layer.register_forward_pre_hook(partial(self._arrive, number, [each.detach().clone() for each in weights]))
            for each in weights:
                each.data.fill_(torch.nan)

    @property
    def num_away(self) -> int:
        return sum(_weights(layer)[0] is not home[0] for layer, home in zip(self._layers, self._home, strict=True))

    @property
    def num_kept(self) -> int:
        return sum(any(copy() is not None for copy in copies) for copies in self._copies)

    def _arrive(self, number: int, truths: list[torch.Tensor], layer: nn.Module, _inputs: object) -> None:
        """Give a layer that has come its numbers."""
        self.most_away = max(self.most_away, self.num_away)
        for weight, truth in zip(_weights(layer), truths, strict=True):
            weight.data.copy_(truth)
            self._copies[number].append(weakref.ref(weight))
        self.most_kept = max(self.most_kept, self.num_kept)


def _weights(layer: nn.Module) -> list[nn.Parameter]:
    """Return a layer's own weights, without those of adapters."""
    return [each for name, each in layer.named_parameters() if "lora_" not in name]


def short_problems(count: int) -> list[Problem]:
    """Tell word problems of two and three steps in few words, so that a tiny model's figures depend on nothing else."""
    rng, problems = random.Random(0), []
    for number in range(count):
        name, things, amount = (
            rng.choice(("Mia", "Ben", "Tom")),
            rng.choice(("pens", "books", "cards")),
            rng.randint(9, 60),
        )
        sentences, lines = [f"{name} has {amount} {things}."], []
        for _ in range(rng.randint(2, 3)):
            change, is_gain = rng.randint(2, 7), rng.random() < 0.6
            before, amount = amount, amount + change if is_gain else amount - change
            sentences.append(f"{name} {'buys' if is_gain else 'loses'} {change} {things}.")
            lines.append(f"Then {name} has {before} {'+' if is_gain else '-'} {change} = {amount} {things}.")
        question = " ".join([*sentences, f"How many {things} does {name} have?"])
        problems.append(Problem(str(number), question, "\n".join(lines), str(amount)))
    return problems


def encoded_problems(theta: Theta, count: int) -> list[EncodedProblem]:
    """Encode short problems as the model reads them."""
    return [theta.encoder.problem(problem) for problem in short_problems(count)]
