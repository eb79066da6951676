"""Offloading: decoder layers stay in main memory and come to the device one at a time, for a model larger than it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn


class Offload:
    """Copies modules to a device when they run, and frees the copies afterwards.

    Args:
        modules: The modules to offload. Hooks on their forward pass do all the work.
        device: Where they compute.
    """

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self._device = device
        self._num_users: Counter[nn.Module] = Counter()
        self._homes: dict[nn.Module, list[tuple[Tensor, Tensor, int]]] = {}
        """For each module on the device: its tensors, their numbers in main memory, and their versions on loading."""
        for module in modules:
            module.register_forward_pre_hook(lambda module, inputs: self._load(module))
            module.register_forward_hook(lambda module, inputs, output: self._unload(module), always_call=True)

    @contextmanager
    def holding(self, module: nn.Module) -> Iterator[None]:
        """Keep a module on the device inside the block, and copy back what was trained there.

        Gradients need this: a backward pass reads the weights of the forward pass in the same memory.
        """
        try:
            self._load(module)
            yield
        finally:
            self._unload(module)

    def _load(self, module: nn.Module) -> None:
        self._num_users[module] += 1
        if self._num_users[module] > 1:
            return
        homes = self._homes[module] = []
        for tensor in chain(module.parameters(), module.buffers()):
            homes.append((tensor, tensor.data, tensor._version))
            tensor.data = tensor.data.to(self._device, copy=True)

    def _unload(self, module: nn.Module) -> None:
        self._num_users[module] -= 1
        if self._num_users[module]:
            return
        for tensor, home, version in self._homes.pop(module):
            if tensor._version != version:
                home.copy_(tensor.data)
            tensor.data = home
        # The module's hooks refer to this object; a reference back would be a cycle, which keeps a model that is no
        # longer used in memory until Python collects garbage.
        del self._num_users[module]
