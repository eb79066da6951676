"""φ and ψ as two named LoRA adapters on θ, through PEFT.

PEFT makes, saves and loads them. Which of them computes is decided here: PEFT's own switch walks through all modules,
which takes as long as a small model takes for a few tokens, and re-enables gradients. Here a switch changes what the
linear layers compute and nothing else; what is trained is declared once.

Where the model is small, an adapter computes with merged copies of its matrices, one product instead of three; a
gradient reaches the adapter through the merging. θ's own are never touched: merged in place and back, they would drift.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora.layer import Linear as LoraLinear
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ccot_cli.errors import CorruptError, retrain_hint
from ccot_cli.models.base.memory import fits
from ccot_cli.models.base.theta import Theta

PHI, PSI = "phi", "psi"
MOST_MERGED_BYTES = 2 * 10**9
"""Size of θ up to which adapters keep merged copies."""
Forward = Callable[[Tensor], Tensor]
_LAYER_NUMBER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")


def have_room_to_merge(theta: Theta) -> bool:
    """Whether merged copies under φ and under ψ fit beside θ, for answering: in half precision they round anew."""
    return not theta.blocks.is_offloaded and fits(2 * theta.num_bytes, theta.device)


class Adapters:
    """The adapters of one base model. θ itself is `use(None)`."""

    def __init__(self, theta: Theta, *, merges: bool | None = None) -> None:
        """Attach nothing yet.

        Args:
            merges: Whether to compute with merged copies; by default where θ is small, on the device and in
                float32, which loses nothing by merging.
        """
        self.theta = theta
        is_small = theta.dtype == torch.float32 and theta.num_bytes <= MOST_MERGED_BYTES
        self.merges = is_small and not theta.blocks.is_offloaded if merges is None else merges
        self._peft: PeftModel | None = None
        self._layers: list[LoraLinear] = []
        self._merged: dict[tuple[str, LoraLinear], _Merged] = {}
        self._kept: dict[tuple[str, bool], _Kept] = {}

    def add(self, name: str, *, rank: int, alpha: int, seed: int) -> None:
        """Attach a fresh adapter to every linear layer of the decoder. It starts equal to θ (LoRA's B is zero)."""
        # GPT-2 keeps its matrices transposed, in modules of transformers' own.
        is_transposed = any(isinstance(module, Conv1D) for module in self.theta.model.modules())
        config = LoraConfig(
            r=rank,
            lora_alpha=alpha,
            target_modules="all-linear",
            lora_dropout=0.0,
            fan_in_fan_out=is_transposed,
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._attach(name, config)

    def _attach(self, name: str, config: LoraConfig) -> None:
        self._merged = {key: kept for key, kept in self._merged.items() if key[0] != name}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Adapter .* was active which is now deleted")
            # PEFT 0.21 asks transformers 5.23 for an attribute by its old name.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
            if self._peft is None:
                self._peft = get_peft_model(self.theta.model, config, adapter_name=name)
            else:
                if name in self._peft.peft_config:
                    self._peft.delete_adapter(name)
                self._peft.add_adapter(name, config)
        self._layers = [module for module in self.theta.model.modules() if isinstance(module, LoraLinear)]
        self._plain = [cast(Forward, layer.get_base_layer().forward) for layer in self._layers]
        self._weights = {
            each: [cast(Tensor, part[each].weight) for layer in self._layers for part in (layer.lora_A, layer.lora_B)]
            for each in self._peft.peft_config
        }
        self._kept.clear()
        self.theta.model.eval()
        self.train_only(())

    def load(self, name: str, folder: Path) -> None:
        """Attach the adapter saved in `folder`.

        Raises:
            CorruptError: where a tensor is missing, too many, misshapen or not finite, or a file is damaged.
        """
        try:
            settings = json.loads((folder / "adapter_config.json").read_text())
            saved = load_file(folder / "adapter_model.safetensors")
            rank, alpha = settings["r"], settings["lora_alpha"]
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CorruptError(f"adapter {folder} cannot be read: {error}", fix=retrain_hint(folder.parent)) from error
        self.add(name, rank=rank, alpha=alpha, seed=0)
        self._check(folder, saved, self.state(name))
        set_peft_model_state_dict(self.peft, saved, adapter_name=name)
        self.train_only(())

    @staticmethod
    def _check(folder: Path, saved: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
        unlike = sorted(saved.keys() ^ expected.keys())
        unlike += [name for name in saved.keys() & expected.keys() if saved[name].shape != expected[name].shape]
        if unlike:
            raise CorruptError(
                f"adapter {folder} does not fit this model: {len(unlike)} tensors differ, the first is {unlike[0]}",
                fix=f"use the model it was trained on, or {retrain_hint(folder.parent)}",
            )
        broken = [name for name, tensor in saved.items() if not tensor.isfinite().all()]
        if broken:
            raise CorruptError(
                f"adapter {folder} holds numbers that are not finite: {broken[0]}", fix=retrain_hint(folder.parent)
            )

    def save(self, name: str, folder: Path) -> None:
        """Write `folder/name/` so that plain PEFT can load it."""
        self.peft.save_pretrained(str(folder), selected_adapters=[name])
        for place in (folder, folder / name):
            (place / "README.md").unlink(missing_ok=True)

    @property
    def peft(self) -> PeftModel:
        assert self._peft is not None, "no adapter was added"
        return self._peft

    def use(self, name: str | None) -> None:
        """Compute with this adapter from now on; None is θ alone."""
        if self._peft is None:
            assert name is None, f"no adapter {name}"
            return
        for layer, forward in zip(self._layers, self._forwards(name), strict=True):
            layer.__dict__["forward"] = forward

    @torch.no_grad()
    def prepare(self) -> None:
        """Make the merged copies of all adapters, if there are to be any, before the first answer is waited for."""
        for name in self._peft.peft_config if self._peft else ():
            self.use(name)

    def _forwards(self, name: str | None) -> list[Forward]:
        """What all layers compute; kept where nothing is trained, for to look at every layer takes long."""
        if name is None:
            return self._plain
        if torch.is_grad_enabled():
            return [self._forward(layer, name) for layer in self._layers]
        versions, kept = [weight._version for weight in self._weights[name]], self._kept.pop((name, self.merges), None)
        if kept is None or kept.versions != versions:
            del kept  # before there are new copies beside the old ones
            kept = _Kept(versions, [self._forward(layer, name) for layer in self._layers])
        self._kept[name, self.merges] = kept
        return kept.forwards

    def _forward(self, layer: LoraLinear, name: str) -> Forward:
        """What a layer computes under an adapter.

        A merged copy that a gradient passes is made anew every time, because a backward pass goes through it once; the
        others are kept for as long as their adapter does not change.
        """
        if not self.merges:
            return _split(layer, name)
        down, up = cast(Tensor, layer.lora_A[name].weight), cast(Tensor, layer.lora_B[name].weight)
        if torch.is_grad_enabled() and (down.requires_grad or up.requires_grad):
            return _merge(layer, name) if _is_cheap_to_merge(down, up) else _split(layer, name)
        version, kept = (down._version, up._version), self._merged.get((name, layer))
        if kept is None or kept.version != version:
            with torch.no_grad():
                kept = self._merged[name, layer] = _Merged(version, _merge(layer, name))
        return kept.forward

    def train_only(self, names: Iterable[str]) -> None:
        """Declare the exact set of trainable parameters, by name; the others keep no gradient."""
        trained = set(names)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in trained)
            if name not in trained:
                parameter.grad = None

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.theta.model.named_parameters())

    def parameters(self, adapter: str, *, layers: range | None = None) -> dict[str, nn.Parameter]:
        """One adapter's parameters by name, of the given decoder layers only (counted from 0)."""
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if f".{adapter}." in name and (layers is None or _layer_of(name) in layers)
        }

    def state(self, name: str) -> dict[str, Tensor]:
        """The adapter's tensors as PEFT saves them."""
        state: dict[str, Tensor] = get_peft_model_state_dict(self.peft, adapter_name=name)
        return state


class _Kept(NamedTuple):
    """What every layer computes under one adapter."""

    versions: list[int]
    """Of its matrices."""
    forwards: list[Forward]


class _Merged(NamedTuple):
    """A function that computes what a LoRA layer does, with one matrix."""

    version: tuple[int, int]
    """Changes whenever a number of the adapter does."""
    forward: Forward


def _split(layer: LoraLinear, name: str) -> Forward:
    """θ's product and, beside it, the adapter's two, whose numbers may be finer."""
    # Not the layer itself, which will hold the function: a model in such a circle stays in memory when it is let go.
    parts = layer.get_base_layer(), layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
    return partial(_add_low_rank, *cast(tuple[nn.Module, nn.Linear, nn.Linear, float], parts))


def _add_low_rank(base: nn.Module, down: nn.Linear, up: nn.Linear, scale: float, inputs: Tensor) -> Tensor:
    outputs: Tensor = base(inputs)
    added: Tensor = up(down(inputs.to(down.weight.dtype))) * scale
    return (outputs + added).to(outputs.dtype)


def _merge(layer: LoraLinear, name: str) -> Forward:
    base = cast(nn.Linear, layer.get_base_layer())
    weight = (base.weight + layer.get_delta_weight(name)).to(base.weight.dtype)
    # GPT-2's modules have no bias-free form and keep their matrices transposed.
    return partial(F.linear, weight=weight.T.contiguous() if isinstance(base, Conv1D) else weight, bias=base.bias)


def _is_cheap_to_merge(down: Tensor, up: Tensor) -> bool:
    """Whether making one matrix, and its gradient, costs less than a backward pass through two narrow ones.

    The matrix's own gradient takes in·out products for a token, theirs and what passes through them 3·rank·(in + out).
    Being one product instead of three is worth a factor of two (timed on a CPU, at 1,024 tokens).
    """
    (rank, width_in), width_out = down.shape, len(up)
    return width_in * width_out <= 6 * rank * (width_in + width_out)


def _layer_of(parameter_name: str) -> int:
    found = _LAYER_NUMBER.search(parameter_name)
    return int(found.group(1)) if found else -1
