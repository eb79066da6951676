"""φ and ψ as two named LoRA adapters on θ, through PEFT.

PEFT creates, saves and loads the adapters. This module decides which of them computes. PEFT's own switch is not used:
it walks through all modules, which takes as long as a small model takes for a few tokens, and it re-enables gradients.
Here a switch replaces the `forward` of the linear layers and changes nothing else. What is trained is declared once.

If θ is small, an adapter computes with merged copies W + s·B·A of θ's matrices W: one product instead of three.
Gradients reach A and B through the merge. θ's own matrices are never changed: merged in place and back, they would
drift (see `_merge`).
"""

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
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ccot_cli.errors import CorruptError, retrain_hint
from ccot_cli.files import set_usual_mode, strict_json, write_json
from ccot_cli.models.base.blocks import LAYERS
from ccot_cli.models.base.history import History, TrainingRun, read_history, write_history
from ccot_cli.models.base.memory import fits
from ccot_cli.models.base.theta import Theta
from ccot_cli.names import ADAPTER_CONFIG_FILE, ADAPTER_FILE, MODELS

PHI, PSI, DECODER = "phi", "psi", "decoder"
MOST_MERGED_BYTES = 2 * 10**9
"""Size of θ up to which adapters keep merged copies."""
Forward = Callable[[Tensor], Tensor]
"""What a linear layer computes: (..., in) -> (..., out)."""
_LAYER_NUMBER = re.compile(rf"\.(?:{'|'.join(LAYERS)})\.(\d+)\.")


def have_room_to_merge(theta: Theta) -> bool:
    """Decide whether merged copies for φ and for ψ fit into memory beside θ.

    Ask this for answering only: in half precision a merged copy is rounded once more.
    """
    return not theta.blocks.is_offloaded and fits(2 * theta.num_bytes, theta.device)


class Adapters:
    """The adapters of one base model. θ itself is `use(None)`."""

    def __init__(self, theta: Theta, *, merges: bool | None = None) -> None:
        """Attach nothing yet.

        Args:
            theta: The model that `add` and `load` attach adapters to.
            merges: Whether to compute with merged copies. By default if θ is small, resident on the device and in
                float32, so that merging loses nothing.
        """
        self.theta = theta
        is_small = theta.dtype == torch.float32 and theta.num_bytes <= MOST_MERGED_BYTES
        self.merges = is_small and not theta.blocks.is_offloaded if merges is None else merges
        self._peft: PeftModel | None = None
        self._layers: list[LoraLinear] = []
        self._plain_forwards: list[Forward] = []
        self._weights: dict[str, list[Tensor]] = {}
        self._merged_layers: dict[tuple[str, LoraLinear], _MergedLayer] = {}
        self._adapter_forwards: dict[tuple[str, bool], _AdapterForwards] = {}
        self._histories: dict[str, History | None] = {}

    def add(self, name: str, *, rank: int, alpha: int, seed: int) -> None:
        """Attach a fresh adapter to every linear layer of the decoder. It starts equal to θ (LoRA's B is zero).

        An adapter of this name that is already attached is replaced.
        """
        # GPT-2 keeps its matrices transposed, in transformers' own Conv1D.
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
        self._histories[name] = []

    def _attach(self, name: str, config: LoraConfig) -> None:
        self._merged_layers = {key: layer for key, layer in self._merged_layers.items() if key[0] != name}
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
        self._plain_forwards = [cast(Forward, layer.get_base_layer().forward) for layer in self._layers]
        self._weights = {
            each: [cast(Tensor, part[each].weight) for layer in self._layers for part in (layer.lora_A, layer.lora_B)]
            for each in self._peft.peft_config
        }
        # PEFT puts them beside the layers' own weights, which may be offloaded.
        for weight in self._weights[name]:
            weight.data = weight.data.to(self.theta.device)
        self._adapter_forwards.clear()
        self.theta.model.eval()
        self.train_only(())

    def load(self, name: str, folder: Path) -> None:
        """Attach the adapter saved in `folder`.

        Raises:
            CorruptError: if a file is damaged, a tensor is missing, unknown, of a wrong shape or not finite, or the
                adapter was trained with another scale than alpha / rank.
        """
        rank, alpha, saved = _read(folder)
        history = read_history(folder)
        self.add(name, rank=rank, alpha=alpha, seed=0)
        self._histories[name] = history
        self._check(folder, saved, self.state(name))
        set_peft_model_state_dict(self.peft, saved, adapter_name=name)
        self.train_only(())

    def load_layers(self, name: str, folder: Path, layers: range) -> bool:
        """Copy some decoder layers, counted from 0, of a saved adapter into the attached one.

        Returns:
            False, with nothing copied, if the saved one has another rank or alpha.

        Raises:
            CorruptError: as `load` does.
        """
        rank, alpha, saved = _read(folder)
        if (rank, alpha) != self.rank_and_alpha(name):
            return False
        state = self.state(name)
        self._check(folder, saved, state)
        chosen = {key: saved[key] if _layer_of(key) in layers else each for key, each in state.items()}
        set_peft_model_state_dict(self.peft, chosen, adapter_name=name)
        return True

    @torch.no_grad()
    def clear(self, name: str, layers: range) -> None:
        """Make some decoder layers of an adapter, counted from 0, equal to θ's again (LoRA's B is zero)."""
        for key, weight in self.parameters(name, layers=layers).items():
            if ".lora_B." in key:
                weight.zero_()

    @staticmethod
    def _check(folder: Path, saved: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
        wrong = sorted(saved.keys() ^ expected.keys())
        wrong += [name for name in saved.keys() & expected.keys() if saved[name].shape != expected[name].shape]
        if wrong:
            raise CorruptError(
                f"adapter {folder} does not fit this model: {len(wrong)} tensors differ, the first is {wrong[0]}",
                fix=f"use the model it was trained on, or {retrain_hint(folder.parent)}",
            )
        not_finite = [name for name, tensor in saved.items() if not tensor.isfinite().all()]
        if not_finite:
            raise CorruptError(
                f"adapter {folder} holds numbers that are not finite: {not_finite[0]}", fix=retrain_hint(folder.parent)
            )

    def save(self, name: str, folder: Path) -> None:
        """Write `folder/name/` so that plain PEFT can load it."""
        config = self.peft.peft_config[name]
        if isinstance(config, LoraConfig) and isinstance(config.target_modules, set):
            # PEFT writes the set in an order that differs from process to process, and manifests hash the file.
            config.target_modules = sorted(config.target_modules)
        self.peft.save_pretrained(str(folder), selected_adapters=[name], save_embedding_layers=False)
        for written in (folder, folder / name):  # PEFT's model card, an empty form
            (written / "README.md").unlink(missing_ok=True)
        # PEFT notes where θ lies on this machine, which is of no use elsewhere; with an adapter it is another model.
        config_file, theta_name = folder / name / ADAPTER_CONFIG_FILE, self.theta.name
        is_on_hub = not self.theta.has_adapter and theta_name not in MODELS and not Path(theta_name).exists()
        base = {"base_model_name_or_path": theta_name if is_on_hub else None}
        write_json(config_file, strict_json(config_file.read_bytes()) | base)
        if (history := self._histories[name]) is not None:
            write_history(history, folder / name)
        for path in (folder / name).iterdir():
            set_usual_mode(path)

    @property
    def peft(self) -> PeftModel:
        """θ as PEFT wraps it, once an adapter is attached."""
        assert self._peft is not None, "no adapter was added"
        return self._peft

    def use(self, name: str | None) -> None:
        """Compute with this adapter from now on; None is θ alone.

        Call it again after a training step, and in the gradient mode of the pass that follows: a merged copy has the
        adapter's numbers of this moment, and a copy made under `no_grad` passes no gradient on.
        """
        if self._peft is None:
            assert name is None, f"no adapter {name}"
            return
        for layer, forward in zip(self._layers, self._forwards(name), strict=True):
            layer.__dict__["forward"] = forward

    @torch.no_grad()
    def prepare(self) -> None:
        """Make the merged copies of all adapters, if any are used, so that the first answer need not wait for them."""
        for name in self._peft.peft_config if self._peft else ():
            self.use(name)

    @torch.no_grad()
    def merge(self, name: str, dtype: torch.dtype) -> PreTrainedModel:
        """Add an adapter to θ's own weights and return the model without any adapter; these adapters are gone then.

        Every sum is computed in float32 and rounded once, to `dtype`.
        """
        for layer in self._layers:
            base = cast(nn.Linear, layer.get_base_layer())
            added = layer.get_delta_weight(name).to(base.weight.device)
            base.weight.data = (base.weight.float() + added.float()).to(dtype)
        model: PreTrainedModel = self.peft.unload()
        model.to(dtype)  # type: ignore[arg-type]
        return model

    def _forwards(self, name: str | None) -> list[Forward]:
        """Return what every linear layer computes under an adapter, in the order of `_layers`."""
        if name is None:
            return self._plain_forwards
        if torch.is_grad_enabled():
            return [self._forward(layer, name) for layer in self._layers]
        # Without gradients the whole list is kept as long as the adapter is the same, because asking every layer by
        # itself is slow. torch counts a tensor's in-place writes in `_version`: a training step or a load raises it, so
        # stale copies are found without comparing numbers. Writes through `.data` are not counted.
        versions = [weight._version for weight in self._weights[name]]
        cached = self._adapter_forwards.pop((name, self.merges), None)
        if cached is None or cached.versions != versions:
            del cached  # so that each old copy is freed as its new one is made
            cached = _AdapterForwards(versions, [self._forward(layer, name) for layer in self._layers])
        self._adapter_forwards[name, self.merges] = cached
        return cached.forwards

    def _forward(self, layer: LoraLinear, name: str) -> Forward:
        """Return what one layer computes under an adapter."""
        if not self.merges:
            return _split(layer, name)
        down, up = cast(Tensor, layer.lora_A[name].weight), cast(Tensor, layer.lora_B[name].weight)
        if torch.is_grad_enabled() and (down.requires_grad or up.requires_grad):
            # Merged at every step: the merge is a part of the graph from A and B to the loss, the backward pass frees
            # that graph, and the step that follows changes A and B.
            return _merge(layer, name) if _is_cheap_to_merge(down, up) else _split(layer, name)
        # Nothing is trained in this layer, so its copy serves until A or B changes. Each layer has a version of its
        # own: a step of training layer by layer changes one layer and leaves the copies of the others valid.
        version, cached = (down._version, up._version), self._merged_layers.get((name, layer))
        if cached is None or cached.version != version:
            with torch.no_grad():
                cached = self._merged_layers[name, layer] = _MergedLayer(version, _merge(layer, name))
        return cached.forward

    def train_only(self, names: Iterable[str]) -> None:
        """Declare the exact set of trainable parameters, by name; drop the gradients of all others."""
        trained = set(names)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in trained)
            if name not in trained:
                parameter.grad = None

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return all parameters by name: θ's and those of every adapter."""
        return list(self.theta.model.named_parameters())

    def parameters(self, adapter: str, *, layers: range | None = None) -> dict[str, nn.Parameter]:
        """Return one adapter's parameters by name; if decoder layers are given (counted from 0), only theirs."""
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if f".{adapter}." in name and (layers is None or _layer_of(name) in layers)
        }

    def record(self, name: str, *, steps: int, batch_size: int, problems: int, passes: int) -> None:
        """Add a run of training to an adapter's history, unless what it started from has none."""
        weights = sum(parameter.numel() for parameter in self.parameters(name).values())
        if (history := self._histories[name]) is not None:
            history.append(TrainingRun(steps, batch_size, problems, passes, weights))

    def histories(self, *names: str) -> dict[str, History | None]:
        """Return the runs of training behind each of these adapters; None if they are not known."""
        return {name: self._histories[name] for name in names}

    def rank_and_alpha(self, name: str) -> tuple[int, int]:
        """Return an adapter's rank, and its alpha."""
        config = cast(LoraConfig, self.peft.peft_config[name])
        return config.r, config.lora_alpha

    def state(self, name: str) -> dict[str, Tensor]:
        """Return the adapter's tensors, named as PEFT saves them."""
        state: dict[str, Tensor] = get_peft_model_state_dict(self.peft, adapter_name=name, save_embedding_layers=False)
        return state


def _read(folder: Path) -> tuple[int, int, dict[str, Tensor]]:
    """Read rank, alpha and tensors of the adapter saved in `folder`; see `Adapters.load`."""
    try:
        settings = strict_json((folder / ADAPTER_CONFIG_FILE).read_bytes())
        saved = load_file(folder / ADAPTER_FILE)
        rank, alpha = settings["r"], settings["lora_alpha"]
        if not all(type(number) is int and number > 0 for number in (rank, alpha)):
            raise ValueError(f"rank {rank!r} or alpha {alpha!r} is no positive number")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise CorruptError(f"adapter {folder} cannot be read: {error}", fix=retrain_hint(folder.parent)) from error
    for key in ("use_rslora", "alpha_pattern"):
        if settings.get(key):
            raise CorruptError(
                f"adapter {folder} has {key}, but ccot scales all layers by lora_alpha / r",
                fix=f"train it with lora_alpha alone; if ccot trained it, {retrain_hint(folder.parent)}",
            )
    return rank, alpha, saved


class _AdapterForwards(NamedTuple):
    """What every linear layer computes under one adapter."""

    versions: list[int]
    """Of the adapter's matrices when the copies were made."""
    forwards: list[Forward]


class _MergedLayer(NamedTuple):
    """A merged copy of one linear layer under one adapter."""

    version: tuple[int, int]
    """Of A and B when the copy was made."""
    forward: Forward


def _split(layer: LoraLinear, name: str) -> Forward:
    """Return the function x -> W·x + s·B·(A·x), three products in the precision of x."""
    # The parts, not the layer: the layer will hold this function, and a reference cycle would keep a model that is no
    # longer used in memory until Python collects garbage.
    parts = layer.get_base_layer(), layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
    return partial(_add_low_rank, *cast(tuple[nn.Module, nn.Linear, nn.Linear, float], parts))


def _add_low_rank(base: nn.Module, down: nn.Linear, up: nn.Linear, scale: float, inputs: Tensor) -> Tensor:
    # As autocast does: A and B stay in float32, where small steps add up, and copies in θ's precision are multiplied.
    outputs: Tensor = base(inputs)
    low = F.linear(inputs, down.weight.to(inputs.dtype))
    return outputs + F.linear(low, up.weight.to(inputs.dtype)) * scale


def _merge(layer: LoraLinear, name: str) -> Forward:
    """Return the function x -> (W + s·B·A)·x, one product with a merged copy.

    A copy, never W itself: θ, φ and ψ alternate within a question. Adding s·B·A to W and subtracting it again would
    leave a rounding error at every switch, most of all in bfloat16, and θ would drift away from the model it was.
    """
    base = cast(nn.Linear, layer.get_base_layer())
    # Rounded once: the sum has the finer precision of the two.
    weight = (base.weight + layer.get_delta_weight(name)).to(base.weight.dtype)
    # GPT-2's Conv1D keeps its matrix transposed.
    return partial(F.linear, weight=weight.T.contiguous() if isinstance(base, Conv1D) else weight, bias=base.bias)


def _is_cheap_to_merge(down: Tensor, up: Tensor) -> bool:
    """Decide whether training through one merged matrix costs less than through A and B.

    Per token, the gradient of the merged matrix takes in·out multiplications; A and B, with what passes through them,
    take 3·rank·(in + out). One product instead of three is worth a factor of two (timed on a CPU, at 1,024 tokens).

    Args:
        down: A, (rank, in).
        up: B, (out, rank).
    """
    (rank, width_in), width_out = down.shape, len(up)
    return width_in * width_out <= 6 * rank * (width_in + width_out)


def _layer_of(parameter_name: str) -> int:
    """Return the decoder layer of a parameter (counted from 0), -1 if it is in none."""
    match = _LAYER_NUMBER.search(parameter_name)
    return int(match.group(1)) if match else -1
