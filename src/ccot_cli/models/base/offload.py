"""Offloading: decoder layers stay in main memory and come to the device one at a time, for a model larger than it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Offload:
    """Copies frozen modules to a device when they run, and lets the copies go afterwards.

    A copy stands in the module in the place of the tensor at home. If a gradient will pass through the module, its
    backward pass keeps the copy, unless it runs the module again. What is added to the modules later, as adapters are,
    is left where it is.

    Args:
        modules: The modules to offload. Hooks on their forward pass do all the work.
        device: Where they compute.
    """

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self._device = device
        self._num_users: Counter[nn.Module] = Counter()
        self._offloaded: set[int] = set()
        """Of each tensor that moves, its id: a module's twin shares the tensors."""
        self._homes: dict[nn.Module, list[_Home]] = {}
        """For each module on the device: what its copies stand for."""
        for module in modules:
            self._offloaded.update(id(home.tensor) for home in _homes(module))
            module.register_forward_pre_hook(lambda module, inputs: self._load(module))
            module.register_forward_hook(lambda module, inputs, output: self._unload(module), always_call=True)

    def is_held(self, module: nn.Module) -> bool:
        """Tell whether a module is on the device now."""
        return self._num_users[module] > 0

    @contextmanager
    def holding(self, module: nn.Module) -> Iterator[None]:
        """Keep a module on the device inside the block: it comes once, however often it runs."""
        try:
            self._load(module)
            yield
        finally:
            self._unload(module)

    def _load(self, module: nn.Module) -> None:
        self._num_users[module] += 1
        if self._num_users[module] > 1:
            return
        self._homes[module] = []
        for home in _homes(module):
            if id(home.tensor) in self._offloaded:
                copy = home.tensor.detach().to(self._device, copy=True)
                is_parameter = isinstance(home.tensor, nn.Parameter)
                home.shelf[home.name] = nn.Parameter(copy, requires_grad=False) if is_parameter else copy
                self._homes[module].append(home)

    def _unload(self, module: nn.Module) -> None:
        self._num_users[module] -= 1
        if self._num_users[module]:
            return
        for home in self._homes.pop(module):
            home.shelf[home.name] = home.tensor
        # The module's hooks refer to this object; a reference back would be a cycle, which keeps a model that is no
        # longer used in memory until Python collects garbage.
        del self._num_users[module]


class _Home(NamedTuple):
    """A tensor of a module, and where the module keeps it."""

    shelf: dict[str, Any]
    """The parameters or the buffers of a part of the module."""
    name: str
    tensor: Tensor


def _homes(module: nn.Module) -> list[_Home]:
    return [
        _Home(shelf, name, tensor)
        for part in module.modules()
        for shelf in (part._parameters, part._buffers)
        for name, tensor in shelf.items()
        if tensor is not None
    ]
