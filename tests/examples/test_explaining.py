"""The table of how well explanations fit."""

from types import ModuleType

import pytest

from ccot_cli.stages.explanations import Exchange, Explanations, Recovery
from ccot_cli.stages.statistics import wilson
from examples.scripts import script


@pytest.fixture(scope="module")
def explaining() -> ModuleType:
    return script("research/explaining.py")


def test_every_share_that_was_counted_has_a_row(explaining: ModuleType) -> None:
    right = Recovery(10, wilson(8, 12), wilson(1, 2), 0.9, wilson(7, 10))
    wrong = Recovery(0, None, None, None, None)
    exchange = Exchange(5, wilson(4, 5), wilson(3, 5), wilson(2, 5), wilson(1, 5), wilson(0, 9))
    rows = explaining.rows(Explanations(right, wrong, exchange))
    assert [row[1:4] for row in rows] == [
        ["right answers", 12, 8 / 12],
        ["right answers", 2, 1 / 2],
        ["right answers", 10, 7 / 10],
        *(["pairs with exchanged tokens", 5, count / 5] for count in (4, 3, 2)),
        ["pairs with exchanged tokens", 9, 0.0],
    ]
    assert rows[0] == [
        "results of the chain that the explanation has",
        "right answers",
        12,
        8 / 12,
        [wilson(8, 12).low, wilson(8, 12).high],
    ]
    assert all(len(row) == len(explaining.COLUMNS) for row in rows)
