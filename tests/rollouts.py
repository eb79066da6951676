"""Rollouts of a few short queries, and classifiers that say END after the tokens that a test chooses."""

from collections.abc import Callable
from itertools import count as counting

import pytest
import torch
from torch import Tensor

from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.decoding.end import EndChance
from ccot_cli.models.decoding.phi import Contemplation, contemplate
from ccot_cli.models.decoding.query import encode_query

QUERIES = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17, 18]]
COUNTS = [3, 7, 5]
LAYER = 2


@torch.no_grad()
def roll(adapters: Adapters, queries: list[list[int]], counts: list[int]) -> tuple[Contemplation, CachedSequence]:
    """Generate a number of tokens for each query."""
    sequence, first = encode_query(adapters, queries, layer=LAYER)
    tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=torch.tensor(counts))
    return tokens, sequence


def expecting(*, every: int) -> EndChance:
    """Expect END at every so many tokens, in all rows."""
    place = counting(1)
    return lambda lower_BD: torch.full((len(lower_BD),), float(next(place) % every == 0))


class EndAfter:
    """Says END after so many tokens of each row, whatever their states are."""

    def __init__(self, counts: list[int]) -> None:
        self._left_B = torch.tensor(counts)
        self.asked: list[int] = []
        """How many tokens it was asked about, each time."""

    def __call__(self, last_BTD: Tensor) -> Tensor:
        self.asked.append(last_BTD.shape[1])
        found_BT = torch.arange(1, last_BTD.shape[1] + 1) == self._left_B[:, None]
        self._left_B = self._left_B - last_BTD.shape[1]
        return found_BT


MakeChance = Callable[[], EndChance | None]
SCHEDULES = pytest.mark.parametrize(
    "make_chance",
    [lambda: None, lambda: expecting(every=1), lambda: expecting(every=3), lambda: expecting(every=99)],
    ids=["reference", "all", "third", "none"],
)
"""When END is asked: after every token without an estimate, or if one expects it that often."""
