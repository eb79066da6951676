"""Models of a given shape with random weights, to measure speed: it does not depend on what a model has learned."""

import re

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.errors import UsageError
from ccot_cli.models.base.blocks import Blocks
from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER
from ccot_cli.models.base.theta import Theta

NAMED_SHAPES = {"llama2-7b": (32, 4096, 11008, 32, 32000)}
"""Layers, width, width of the feed-forward part, heads, vocabulary."""


def read_shape(text: str) -> tuple[int, int, int, int, int]:
    """Parse a name such as `llama2-7b`, or layers and width such as `16x512`.

    Returns:
        Layers, width, width of the feed-forward part, heads, vocabulary.

    Raises:
        UsageError: if the text is neither, or the width is not a multiple of 64.
    """
    if text in NAMED_SHAPES:
        return NAMED_SHAPES[text]
    match = re.fullmatch(r"([1-9][0-9]{0,2})x([1-9][0-9]{1,4})", text)
    if match is None or int(match[2]) % 64:
        raise UsageError(
            f"{text!r} is not a shape",
            fix=f"--shape 16x512 (layers, and a width that is a multiple of 64), or {', '.join(NAMED_SHAPES)}",
        )
    layers, width = int(match[1]), int(match[2])
    return layers, width, -(-8 * width // 3 // 64) * 64, width // 64, 32000


def random_theta(shape: str, *, device: torch.device, dtype: torch.dtype) -> Theta:
    """Build a Llama of a shape (see `read_shape`) with random weights, always the same, and the embedded tokenizer.

    Raises:
        UsageError: if the shape cannot be read.
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
