"""Decoder layers that rest in main memory and come to the device one at a time, for a model that is larger than it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn


class Offload:
    """Brings modules to a device whenever they run, and lets them go afterwards.

    Args:
        modules: What rests; from now on each comes and goes by itself.
        device: Where they compute.
    """

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self._device = device
        self._num_entered: Counter[nn.Module] = Counter()
        self._resting: dict[nn.Module, list[tuple[Tensor, Tensor, int]]] = {}
        for module in modules:
            module.register_forward_pre_hook(lambda module, inputs: self._come(module))
            module.register_forward_hook(lambda module, inputs, output: self._go(module), always_call=True)

    @contextmanager
    def holding(self, module: nn.Module) -> Iterator[None]:
        """Keep a module on the device meanwhile, and take home what was trained there.

        Only so can a gradient pass it: a backward pass needs the numbers of the forward one where they were.
        """
        try:
            self._come(module)
            yield
        finally:
            self._go(module)

    def _come(self, module: nn.Module) -> None:
        self._num_entered[module] += 1
        if self._num_entered[module] > 1:
            return
        resting = self._resting[module] = []
        for tensor in chain(module.parameters(), module.buffers()):
            resting.append((tensor, tensor.data, tensor._version))
            tensor.data = tensor.data.to(self._device, copy=True)

    def _go(self, module: nn.Module) -> None:
        self._num_entered[module] -= 1
        if self._num_entered[module]:
            return
        for tensor, home, version in self._resting.pop(module):
            if tensor._version != version:
                home.copy_(tensor.data)
            tensor.data = home
        # A model in a circle would stay in memory when it is let go.
        del self._num_entered[module]
