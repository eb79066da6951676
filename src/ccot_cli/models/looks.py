"""When to ask END: ours. A look costs a pass through the layers above l, a token behind END one through those up to l;
a token's state at index l tells how likely it is END.

Dimensions: B batch, D width.
"""

from collections.abc import Callable

from torch import Tensor

Chance = Callable[[Tensor], Tensor]
"""States at index l (B, D) -> how likely END follows (B)."""


class Lookout:
    """Watches the tokens since the last look, and tells when the next one is due.

    A look in vain costs L - l layer passes, waiting where all rows have ended l more: the look is due where the second
    is at least as much on the mean, the rows taken for independent.

    Args:
        chance: A token's.
        is_alive_B: Rows that END has not ended yet.
    """

    def __init__(self, chance: Chance, is_alive_B: Tensor, *, layer: int, num_layers: int) -> None:
        self._chance = chance
        self._is_open_B = is_alive_B.float()
        """How likely a row has not come to END."""
        self._least = (num_layers - layer) / num_layers

    def is_due(self, lower_BD: Tensor) -> bool:
        """Whether to look behind the token with these states at index l."""
        self._is_open_B = self._is_open_B * (1 - self._chance(lower_BD))
        have_ended: Tensor = (1 - self._is_open_B).prod()
        return bool(have_ended >= self._least)
