"""When END is asked: the plan against every other, the forecast against draws."""

import random
from itertools import combinations
from statistics import fmean

import pytest

from ccot_cli.models.looks import UNFORESEEN, Forecast, plan


def cost(looks: list[int], count: int, layer: int, num_layers: int) -> int:
    """Layers that are run for a contemplation of so many tokens."""
    seen = next(place for place, look in enumerate(looks, start=1) if look >= count)
    return looks[seen - 1] * layer + seen * (num_layers - layer)


def mean_cost(looks: list[int], shares: list[float], layer: int, num_layers: int) -> float:
    return sum(share * cost(looks, count, layer, num_layers) for count, share in enumerate(shares, start=1))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("layer", "num_layers"), [(7, 8), (4, 8), (1, 8), (8, 8)])
def test_no_other_plan_runs_fewer_layers(seed: int, layer: int, num_layers: int) -> None:
    generator = random.Random(seed)
    drawn = [generator.random() ** 4 for _ in range(8)]
    shares = [each / sum(drawn) for each in drawn]
    every = [[*some, 8] for size in range(8) for some in combinations(range(1, 8), size)]
    least = min(mean_cost(looks, shares, layer, num_layers) for looks in every)
    looks = plan(shares, layer=layer, num_layers=num_layers)
    assert looks in every
    assert mean_cost(looks, shares, layer, num_layers) == pytest.approx(least)


def test_a_sure_forecast_looks_where_the_end_is() -> None:
    assert plan([0.0, 0.0, 1.0, 0.0, 1e-9], layer=4, num_layers=8)[0] == 3


def test_a_forecast_is_the_line_through_the_examples() -> None:
    generator = random.Random(0)
    lengths = [generator.randrange(20, 100) for _ in range(4000)]
    found = Forecast.fit(lengths, [round(2 + 0.1 * length + generator.gauss(0, 1.5)) for length in lengths])
    assert found.base == pytest.approx(2, abs=0.2)
    assert found.slope == pytest.approx(0.1, abs=0.005)
    assert found.spread == pytest.approx(1.5, abs=0.1)


def test_one_length_or_one_count_is_forecast_too() -> None:
    assert Forecast.fit([30, 30], [4, 6]) == Forecast(5, 0, 1)
    sure = Forecast.fit([30, 40], [4, 4])
    assert sure.shares([35], 8)[3] > 0.9


def test_shares_are_those_of_a_batchs_longest_contemplation() -> None:
    forecast, lengths, most = Forecast(1, 0.1, 1.2), [40, 40, 55, 60], 20
    shares = forecast.shares(lengths, most)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= UNFORESEEN / most * 0.999
    generator = random.Random(0)
    longest = [
        max(round(generator.gauss(forecast.base + forecast.slope * each, forecast.spread)) for each in lengths)
        for _ in range(20_000)
    ]
    for count, share in enumerate(shares, start=1):
        assert share == pytest.approx(fmean(each == count for each in longest), abs=0.02)


def test_what_lies_beyond_the_cap_ends_there() -> None:
    assert Forecast(50, 0, 1).shares([10], 5)[-1] > 0.98
