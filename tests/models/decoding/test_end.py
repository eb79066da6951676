"""END, and when it is asked: if another token would cost more layer passes than asking, on the mean."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ccot_cli.errors import CorruptError
from ccot_cli.models.decoding.end import End, EndSchedule
from ccot_cli.tensors.probes import Logistic

STATES = torch.zeros(1, 4)


# When END is asked


def due(chances: list[float], layer: int, num_layers: int) -> list[bool]:
    """Say after which tokens of one row END would be asked, if it had not been asked before."""
    coming, wanted = iter(chances), torch.ones(1, len(chances) + 1, dtype=torch.bool)
    schedule = EndSchedule(lambda lower_BD: torch.tensor([next(coming)]), wanted, layer=layer, num_layers=num_layers)
    return [schedule.is_due(STATES) for _ in chances]


@pytest.mark.parametrize(("layer", "num_layers"), [(7, 8), (4, 8), (1, 8), (16, 32)])
@pytest.mark.parametrize("chance", [0.05, 0.124, 0.126, 0.3, 0.49, 0.51, 0.874, 0.876, 0.99])
def test_end_is_asked_if_waiting_costs_more_layers_on_the_mean(chance: float, layer: int, num_layers: int) -> None:
    in_vain, waiting = (1 - chance) * (num_layers - layer), chance * layer
    assert due([chance], layer, num_layers) == [waiting > in_vain]


def test_chances_add_up_until_end_is_asked() -> None:
    # 1 - 0.8, 1 - 0.8 ** 2, 1 - 0.8 ** 3, 1 - 0.8 ** 4
    assert due([0.2] * 4, 4, 8) == [False, False, False, True]
    found = due([0.01] * 30, 7, 8)
    assert found.index(True) == next(count for count in range(30) if 1 - 0.99 ** (count + 1) >= 1 / 8)
    assert all(not before or after for before, after in pairwise(found))


def test_if_all_layers_are_fed_back_asking_end_costs_nothing() -> None:
    assert due([0.0, 0.0], 8, 8) == [True, True]


def test_an_end_that_is_not_expected_is_not_asked_for() -> None:
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
    schedule = EndSchedule(lambda lower_BD: torch.tensor(chances), wanted, layer=4, num_layers=8)
    assert schedule.is_due(torch.zeros(3, 4)) == is_due


def test_a_row_that_can_have_no_other_token_is_not_waited_for() -> None:
    wanted = torch.tensor([[True, True, False, False], [True, True, True, True]])
    coming = iter([[0.0, 0.0], [0.0, 0.9], [0.0, 0.0]])
    schedule = EndSchedule(lambda lower_BD: torch.tensor(next(coming)), wanted, layer=4, num_layers=8)
    assert [schedule.is_due(torch.zeros(2, 4)) for _ in range(2)] == [False, True]
    full = EndSchedule(lambda lower_BD: torch.zeros(2), wanted[:1, :2], layer=4, num_layers=8)
    assert [full.is_due(torch.zeros(1, 4)) for _ in range(2)] == [False, True]


# END itself


def test_a_stricter_rule_ends_if_the_logit_is_above_the_threshold() -> None:
    rule, states = Logistic(torch.tensor([1.0, 0.0]), torch.tensor(0.5)), torch.tensor([[[-1.0, 9.0], [1.0, 9.0]]])
    for by, expected in ((0.0, True), (1.4, True), (1.6, False)):
        assert End(rule.stricter(by), rule)(states).tolist() == [[False, expected]]


def test_end_survives_saving(tmp_path: Path) -> None:
    rule, hint = Logistic(torch.tensor([1.0, -2.0]), torch.tensor(0.5)), Logistic(torch.ones(2), torch.tensor(-1.0))
    end = End(rule, hint)
    end.save(tmp_path)
    states, read = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), End.load(tmp_path, 2)
    assert read(states).tolist() == end(states).tolist() == [[True, False]]
    assert torch.equal(read.chance(states), end.chance(states))
    assert end.chance(torch.tensor([[0.5, 0.5]])).tolist() == [0.5]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"hint_weight": torch.ones(3)}, "does not fit"),
        ({"bias": torch.zeros(1)}, "does not fit"),
        ({"hint_bias": torch.tensor(torch.nan)}, "does not fit"),
        ({"hint_weight": None}, "cannot be read"),
    ],
)
def test_a_damaged_end_is_refused(tmp_path: Path, change: dict[str, Tensor | None], match: str) -> None:
    rule = Logistic(torch.tensor([1.0, -2.0]), torch.tensor(0.5))
    End(rule, Logistic(torch.ones(2), torch.tensor(0.0))).save(tmp_path)
    saved = {**load_file(tmp_path / "end.safetensors"), **change}
    save_file({name: each for name, each in saved.items() if each is not None}, tmp_path / "end.safetensors")
    with pytest.raises(CorruptError, match=match):
        End.load(tmp_path, 2)
