"""Load the frozen base model θ and its tokenizer."""

import hashlib
import json
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from ccot_cli import ranks
from ccot_cli.config import AUTO, ModelConfig
from ccot_cli.data.prompts import Encoder, Template, chat_prompt
from ccot_cli.errors import ResourceError, UsageError
from ccot_cli.files import remembered_sha256
from ccot_cli.models.base.blocks import Blocks
from ccot_cli.models.base.memory import is_out_of_memory
from ccot_cli.models.base.merged import merge_adapter
from ccot_cli.models.base.pretrained import load_pretrained, weight_files
from ccot_cli.models.base.threads import use_threads

RESERVED_POSITIONS = 256
"""Positions left after a query for contemplation tokens, or a chain, and the answer; half of them if there are few."""
_FINGERPRINTED = (
    "rope_parameters",
    "rope_theta",
    "rope_scaling",
    "sliding_window",
    "layer_types",
    "num_attention_heads",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "hidden_act",
    "activation_function",
)
"""Settings of a model that change what it computes but none of its weights."""


CPU_PASS_TOKENS, GPU_PASS_TOKENS = 1024, 8192
"""Tokens in one forward pass: on a CPU so few that the states between layers stay in its caches."""


@dataclass(frozen=True)
class Theta:
    """The frozen base model with its tokenizer and its parts."""

    name: str
    model: PreTrainedModel
    encoder: Encoder
    blocks: Blocks
    has_adapter: bool = False
    """Whether it is the model of that name with an adapter merged into it."""

    @property
    def device(self) -> torch.device:
        """Where states are computed."""
        return self.blocks.device

    @property
    def device_name(self) -> str:
        """Name of the device for reports of times: the GPU's name, or the CPU's number of threads."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        threads = torch.get_num_threads()
        return f"{self.device.type}, {threads} thread{'' if threads == 1 else 's'}"

    @property
    def pass_tokens(self) -> int:
        """Tokens in one forward pass, padding included, that this device is fast with."""
        return CPU_PASS_TOKENS if self.device.type == "cpu" else GPU_PASS_TOKENS

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights and the states."""
        return self.model.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters, including those of attached adapters."""
        return sum(parameter.nbytes for parameter in self.model.parameters())

    @property
    def num_layers(self) -> int:
        """L, the number of decoder layers."""
        return self.blocks.num_layers

    @property
    def pad_id(self) -> int:
        """A token id for padding. Any id works: padding is masked."""
        pad: int | None = self.encoder.tokenizer.pad_token_id
        return self.eos_id if pad is None else pad

    @property
    def longest_query(self) -> int | None:
        """Most tokens of a query that leaves room for what follows; None if there is no limit."""
        most: int | None = getattr(self.model.config, "max_position_embeddings", None)
        return None if most is None else most - min(RESERVED_POSITIONS, most // 2)

    @property
    def eos_id(self) -> int:
        """The token id that ends every answer in training."""
        eos: int = self.encoder.tokenizer.eos_token_id
        return eos

    def twin(self) -> "Theta":
        """Return the same model with modules of its own, for other adapters; both share one copy of the weights."""
        blocks = self.blocks.twin()
        return replace(self, model=blocks.model, blocks=blocks)

    def fingerprint(self) -> str:
        """Compute a hash that tells this model, tokenizer and template from others; `weights_hash` has every weight.

        It covers shapes and samples of the weights, the settings in `_FINGERPRINTED` and the token ids of a text. The
        precision that a device asks for and attached adapters make no difference.
        """
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            if "lora_" in name:
                continue
            sample = tensor.flatten()[:: max(1, tensor.numel() // 64)].bfloat16().float().cpu().numpy().tobytes()
            digest.update(f"{name.replace('.base_layer', '')}{tuple(tensor.shape)}".encode() + sample)
        config = {key: getattr(self.model.config, key, None) for key in _FINGERPRINTED}
        digest.update(json.dumps(config, sort_keys=True, default=str).encode())
        digest.update(str(self.encoder.query('Mia has 12 of forty pens: $3.50, "all".\n')).encode())
        digest.update(str(self.encoder.answer_marker).encode())
        return digest.hexdigest()


def weights_hash(config: ModelConfig) -> str:
    """Hash every byte of the files that hold a model's weights; the model was loaded before."""
    return hashlib.sha256("".join(map(remembered_sha256, weight_files(config))).encode()).hexdigest()


def resolve_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is a GPU, or the CPU if there is none. Each rank has a GPU of its own.

    Raises:
        UsageError: if there is no such device.
    """
    own_gpu = f"cuda:{ranks.local_rank()}" if ranks.size() > 1 else "cuda"
    if name == "auto":
        return torch.device(own_gpu if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(own_gpu if name == "cuda" else name)
        torch.zeros(1, device=device).tolist()  # A device such as `meta` computes nothing.
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        first_line = str(error).splitlines()[0]
        raise UsageError(f"no device {name!r}: {first_line}", fix="--device cpu, or --device auto") from None
    return device


def load_theta(config: ModelConfig) -> Theta:
    """Load the model and check that it can be run layer by layer.

    Raises:
        UsageError: if the name is not a model's, the family is not supported, or an adapter is none.
        CorruptError: if files are damaged, or an adapter does not fit.
        ResourceError: if files cannot be fetched, or the model does not fit into the device's memory.
    """
    device = resolve_device(config.device)
    if device.type == "cpu":
        use_threads(config.threads)
    tokenizer, model = load_pretrained(config, device)
    if config.adapter is not None:
        model = merge_adapter(model, config.adapter)
    blocks = Blocks(model.requires_grad_(False).eval())
    try:
        blocks.to(device, offload=config.offload and device.type != "cpu")
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        needed = sum(parameter.nbytes for parameter in model.parameters())
        raise ResourceError(
            f"{config.name} needs {needed / 1e9:,.1f} GB, more than is free on {device}",
            fix="--device cpu, or model.dtype: bfloat16 or model.offload: true in ccot.yaml",
        ) from None
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    blocks.verify()
    torch.backends.cuda.matmul.fp32_precision = "tf32" if config.tf32 else "ieee"
    prompt = chat_prompt(tokenizer, config.system) if config.prompt == AUTO else config.prompt
    encoder = Encoder(tokenizer, Template(prompt, config.answer_marker), ends=_ends(model))
    return Theta(config.name, model, encoder, blocks, has_adapter=config.adapter is not None)


def _ends(model: PreTrainedModel) -> list[int]:
    """Return the ids with which the model ends a text, if it names any: a chat model may have several."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    return [each for each in (ends if isinstance(ends, list) else [ends]) if isinstance(each, int)]


def diagnose(name: str) -> list[str]:
    """Load a model and describe it for `ccot doctor`, one line for each finding.

    Raises:
        CcotError: if the model cannot be used; the message says why.
    """
    theta = load_theta(ModelConfig(name=name))
    config = theta.model.config
    num_parameters = sum(parameter.numel() for parameter in theta.model.parameters())
    return [
        f"{type(theta.model).__name__}, {num_parameters / 1e6:,.1f} M parameters, {theta.dtype}".replace("torch.", ""),
        f"{theta.num_layers} layers, width {config.hidden_size}, vocabulary {config.vocab_size:,}",
        "run layer by layer, it equals its own forward pass up to rounding",
        *_describe_prompt(theta.encoder),
    ]


def _describe_prompt(encoder: Encoder) -> list[str]:
    tokenizer = encoder.tokenizer
    ends = ", ".join(map(str, tokenizer.convert_ids_to_tokens(sorted(encoder.ends))))
    try:
        prompt = f"model.prompt: auto is {chat_prompt(tokenizer, None)!r}"
    except UsageError as error:
        prompt = f"model.prompt: auto cannot be used: {error.message}"
    return [f"a text ends with {ends}", prompt]
