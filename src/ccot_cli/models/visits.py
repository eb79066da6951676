"""Decoder layers that rest in main memory and come to the device one at a time, for a model that is larger than it."""

from itertools import chain
from types import TracebackType

import torch
from torch import Tensor, nn


class Visit:
    """Brings one module to a device whenever it runs, and lets it go afterwards; as a context, for longer.

    Only within the context can a gradient pass the module: a backward pass needs the numbers of the forward one where
    they were. What was trained meanwhile is taken home.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module, self._device = module, device
        self._resting: list[tuple[Tensor, Tensor, int]] = []
        self._num_entered = 0
        module.register_forward_pre_hook(lambda *_: self._come())
        module.register_forward_hook(lambda *_: self._go(), always_call=True)

    def __enter__(self) -> None:
        try:
            self._come()
        except BaseException:
            self._go()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._go()

    def _come(self) -> None:
        self._num_entered += 1
        if self._num_entered > 1:
            return
        for tensor in chain(self._module.parameters(), self._module.buffers()):
            self._resting.append((tensor, tensor.data, tensor._version))
            tensor.data = tensor.data.to(self._device, copy=True)

    def _go(self) -> None:
        self._num_entered -= 1
        if self._num_entered:
            return
        for tensor, resting, version in self._resting:
            if tensor._version != version:
                resting.copy_(tensor.data)
            tensor.data = resting
        self._resting.clear()
