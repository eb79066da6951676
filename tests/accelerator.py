"""A mock device: what a GPU would refuse is refused without one.

Its tensors compute on the CPU, but an operation that mixes them with the CPU's own is an error, as on a GPU. They say
that they are on `meta`, the only device beside the CPU that every build of torch can name.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import AutoModelForCausalLM

from ccot_cli.models.base import adapters
from ccot_cli.models.training import phi_layerwise

DEVICE = torch.device("meta")
aten = torch.ops.aten
_MOVES = (aten.copy_.default, aten._to_copy.default)
_READS_AT = (aten.index.Tensor,)
_WRITES_AT = (aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default)


class Mixed(AssertionError):  # noqa: N818
    """Tensors of two devices in one operation."""


class Away(Tensor):
    """A tensor on the mock device."""

    here: Tensor
    """Its numbers."""

    @staticmethod
    def __new__(cls, here: Tensor) -> "Away":
        layout = {"strides": here.stride(), "storage_offset": here.storage_offset(), "layout": here.layout}
        return Tensor._make_wrapper_subclass(cls, here.size(), dtype=here.dtype, device=DEVICE, **layout)

    def __init__(self, here: Tensor) -> None:
        self.here = here

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Away({self.here})"

    def tolist(self) -> Any:
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Mocking(TorchDispatchMode):
    """Makes on the device the tensors that are asked for there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    away = [each for each in tensors if isinstance(each, Away)]
    if away:
        _refuse_mixed(func, args, tensors)
    asked = kwargs.get("device")
    if asked is not None:
        is_away, kwargs = torch.device(asked) == DEVICE, {**kwargs, "device": "cpu"}
    else:
        is_away = isinstance(args[0], Away) if func is aten.copy_.default else bool(away)
    args_here, kwargs_here = tree_map_only(Away, lambda each: each.here, (args, kwargs))
    result = func(*args_here, **kwargs_here)
    if not is_away:
        return result
    result = tree_map_only(Tensor, Away, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if away and asked is None else result


def _refuse_mixed(func: Any, args: Any, tensors: list[Tensor]) -> None:
    """Refuse what a GPU does: a single number may come from the CPU, and so may the places to read or write at."""
    if func in _MOVES:
        return
    if func in _READS_AT + _WRITES_AT:
        tensors = [args[0], *args[2:3]] if isinstance(args[0], Away) else tensors
    homes = {isinstance(each, Away) for each in tensors if each.dim() or isinstance(each, Away)}
    if len(homes) > 1:
        raise Mixed(f"{func}: {[('device' if isinstance(each, Away) else 'cpu', *each.shape) for each in tensors]}")


def _move_adapter(model: nn.Module, name: str) -> None:
    """Move an adapter to θ's device; PEFT does so itself for devices other than this."""
    for module in model.modules():
        if isinstance(module, LoraLinear):
            module.lora_A[name].to(module.get_base_layer().weight.device)
            module.lora_B[name].to(module.get_base_layer().weight.device)


@contextmanager
def mock_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of the device; while it lasts, models may be moved there."""
    make_tensor, load, add = torch.tensor, AutoModelForCausalLM.from_pretrained, PeftModel.add_adapter

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        made = make_tensor(data, **options)
        return made if device is None else made.to(device)

    def attach_first(model: Any, config: Any, adapter_name: str) -> PeftModel:
        peft = get_peft_model(model, config, adapter_name=adapter_name)
        _move_adapter(peft, adapter_name)
        return peft

    def attach_another(peft: PeftModel, name: str, config: Any) -> None:
        add(peft, name, config)
        _move_adapter(peft, name)

    @torch.no_grad()
    def set_state(peft: Any, saved: dict[str, Tensor], adapter_name: str) -> None:
        for name, parameter in get_peft_model_state_dict(peft, adapter_name=adapter_name).items():
            parameter.copy_(saved[name])

    def load_here(*args: Any, **options: Any) -> Any:
        # transformers uses `meta` for its own ends. In another thread nothing is mocked.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(load, *args, **options).result()

    mocking = partial(ThreadPoolExecutor, initializer=lambda: _Mocking().__enter__())
    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(adapters, "get_peft_model", attach_first)
    monkeypatch.setattr(PeftModel, "add_adapter", attach_another)
    monkeypatch.setattr(adapters, "set_peft_model_state_dict", set_state)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load_here)
    monkeypatch.setattr(phi_layerwise, "ThreadPoolExecutor", mocking)
    with _Mocking():
        yield DEVICE.type
