"""When END is asked: where another token would cost more layers than a look, on the mean."""

from itertools import pairwise

import pytest
import torch

from ccot_cli.models.decoding.end import EndSchedule

STATES = torch.zeros(1, 4)


def due(chances: list[float], layer: int, num_layers: int) -> list[bool]:
    """Whether a look is due behind each token of one row, where none has come before."""
    coming, wanted = iter(chances), torch.ones(1, len(chances) + 1, dtype=torch.bool)
    lookout = EndSchedule(lambda lower_BD: torch.tensor([next(coming)]), wanted, layer=layer, num_layers=num_layers)
    return [lookout.is_due(STATES) for _ in chances]


@pytest.mark.parametrize(("layer", "num_layers"), [(7, 8), (4, 8), (1, 8), (16, 32)])
@pytest.mark.parametrize("chance", [0.05, 0.124, 0.126, 0.3, 0.49, 0.51, 0.874, 0.876, 0.99])
def test_a_look_is_due_where_waiting_costs_more_layers_on_the_mean(chance: float, layer: int, num_layers: int) -> None:
    in_vain, waiting = (1 - chance) * (num_layers - layer), chance * layer
    assert due([chance], layer, num_layers) == [waiting > in_vain]


def test_chances_add_up_until_the_next_look() -> None:
    # 1 - 0.8, 1 - 0.8 ** 2, 1 - 0.8 ** 3, 1 - 0.8 ** 4
    assert due([0.2] * 4, 4, 8) == [False, False, False, True]
    found = due([0.01] * 30, 7, 8)
    assert found.index(True) == next(count for count in range(30) if 1 - 0.99 ** (count + 1) >= 1 / 8)
    assert all(not before or after for before, after in pairwise(found))


def test_where_all_layers_are_fed_back_a_look_costs_nothing() -> None:
    assert due([0.0, 0.0], 8, 8) == [True, True]


def test_an_end_that_is_not_expected_is_not_looked_for() -> None:
    assert due([0.0] * 50, 7, 8) == [False] * 50


@pytest.mark.parametrize(
    ("chances", "is_alive", "is_due"),
    [
        ([1.0, 1.0, 0.0], [True, True, True], False),
        ([1.0, 1.0, 0.0], [True, True, False], True),
        ([0.8, 0.8, 1.0], [True, True, True], True),
        ([0.7, 0.7, 1.0], [True, True, True], False),
        ([0.7, 0.7, 1.0], [False, True, True], True),
    ],
)
def test_a_batch_waits_for_all_of_its_rows(chances: list[float], is_alive: list[bool], is_due: bool) -> None:
    wanted = torch.tensor(is_alive)[:, None].expand(3, 5)
    lookout = EndSchedule(lambda lower_BD: torch.tensor(chances), wanted, layer=4, num_layers=8)
    assert lookout.is_due(torch.zeros(3, 4)) == is_due


def test_a_row_that_can_have_no_other_token_is_not_waited_for() -> None:
    wanted = torch.tensor([[True, True, False, False], [True, True, True, True]])
    coming = iter([[0.0, 0.0], [0.0, 0.9], [0.0, 0.0]])
    lookout = EndSchedule(lambda lower_BD: torch.tensor(next(coming)), wanted, layer=4, num_layers=8)
    assert [lookout.is_due(torch.zeros(2, 4)) for _ in range(2)] == [False, True]
    full = EndSchedule(lambda lower_BD: torch.zeros(2), wanted[:1, :2], layer=4, num_layers=8)
    assert [full.is_due(torch.zeros(1, 4)) for _ in range(2)] == [False, True]
