"""When to ask END: ours. A look costs a pass through the layers above l, a token behind END one through those up to l;
a token's state at index l tells how likely it is END.

Dimensions: B batch, T tokens, D width.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Chance = Callable[[Tensor], Tensor]
"""States at index l (B, D) -> how likely each row's token is END (B)."""


class Lookout:
    """Watches the tokens since the last look, and tells when the next one is due.

    A look in vain costs L - l layer passes, waiting where all rows have ended l more: the look is due where the second
    is at least as much on the mean, the rows taken for independent. A chance that is wrong costs layers, up to the cap.

    Args:
        chance: How likely a token is END.
        wanted_BT: True at tokens that may come; a row without another one is not waited for.
    """

    def __init__(self, chance: Chance, wanted_BT: Tensor, *, layer: int, num_layers: int) -> None:
        self._chance = chance
        self._going_on_BT = F.pad(wanted_BT[:, 1:].float(), (0, 1))
        self._seen = 0
        self._is_open_B = torch.ones_like(self._going_on_BT[:, 0])
        """How likely a row has not come to END."""
        self._least = (num_layers - layer) / num_layers

    def is_due(self, lower_BD: Tensor) -> bool:
        """Whether to look behind the next token, with these states at index l."""
        self._is_open_B = self._is_open_B * (1 - self._chance(lower_BD))
        have_ended: Tensor = (1 - self._is_open_B * self._going_on_BT[:, self._seen]).prod()
        self._seen += 1
        return bool(have_ended >= self._least)
