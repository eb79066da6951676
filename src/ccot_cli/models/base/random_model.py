"""Models of a given shape with random weights: how fast a method is does not depend on what a model has learned."""

import re

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.errors import UsageError
from ccot_cli.models.base.blocks import Blocks
from ccot_cli.models.base.theta import EMBEDDED_FOLDER, Theta

NAMED = {"llama2-7b": (32, 4096, 11008, 32, 32000)}
"""Layers, width, width of the feed-forward part, heads, vocabulary."""


def read_shape(text: str) -> tuple[int, int, int, int, int]:
    """`llama2-7b`, or layers and width as `16x512`.

    Raises:
        UsageError: for anything else.
    """
    if text in NAMED:
        return NAMED[text]
    found = re.fullmatch(r"([1-9][0-9]{0,2})x([1-9][0-9]{1,4})", text)
    if found is None or int(found[2]) % 64:
        raise UsageError(
            f"{text!r} is no shape",
            fix=f"--shape 16x512 (layers, and a width in 64s), or {', '.join(NAMED)}",
        )
    layers, width = int(found[1]), int(found[2])
    return layers, width, -(-8 * width // 3 // 64) * 64, width // 64, 32000


def random_theta(shape: str, *, device: torch.device, dtype: torch.dtype) -> Theta:
    """A Llama of that shape, seed 0, with the embedded tokenizer.

    Raises:
        UsageError: for a shape that cannot be read.
    """
    layers, width, inner, heads, vocabulary = read_shape(shape)
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=vocabulary,
        max_position_embeddings=4096,
    )
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(0)
        model = LlamaForCausalLM._from_config(config, dtype=dtype)
    model.requires_grad_(False).eval()
    encoder = Encoder(AutoTokenizer.from_pretrained(EMBEDDED_FOLDER), Template())
    return Theta(name=f"random {shape}", model=model, encoder=encoder, blocks=Blocks(model))
