"""Confidence is mapped to the share of right answers, or left as it is where that share cannot be told."""

import random
from math import exp, log
from pathlib import Path

import pytest

from ccot_cli.errors import CorruptError
from ccot_cli.models.methods.calibration import FILE_NAME, LEAST_OF_EACH, Calibration


def share(score: float) -> float:
    """How often answers of this score are right: less often than the score says, and less so at the ends."""
    return 1 / (1 + exp(-(0.6 * log(score / (1 - score)) - 0.8)))


def answers(count: int) -> tuple[list[float], list[bool]]:
    rng = random.Random(0)
    scores = [rng.uniform(0.01, 0.99) for _ in range(count)]
    return scores, [rng.random() < share(score) for score in scores]


def test_the_map_is_the_one_that_made_the_answers_right() -> None:
    found = Calibration.fit(*answers(20_000))
    assert found is not None
    assert (found.slope, found.intercept) == (pytest.approx(0.6, abs=0.04), pytest.approx(-0.8, abs=0.04))
    for score in (0.05, 0.3, 0.5, 0.9):
        assert found(score) == pytest.approx(share(score), abs=0.02)


def test_the_map_rises_and_stays_between_0_and_1() -> None:
    found = Calibration(3.0, -50.0)
    values = [found(score) for score in (0.0, 1e-30, 1e-5, 0.01, 0.5, 0.99, 0.99999, 1.0)]
    assert values == sorted(values)
    assert values[0] == 0
    assert 0 <= values[-1] <= 1
    assert 0 < Calibration(900.0, 0.0)(0.4) < 1e-100 or Calibration(900.0, 0.0)(0.4) == 0


def test_answers_without_a_number_are_not_right_and_do_not_count() -> None:
    scores, are_right = answers(500)
    found = Calibration.fit(scores, are_right)
    assert found == Calibration.fit([*scores, *[0.0] * 300], [*are_right, *[True] * 300])
    assert found is not None
    assert found(0.0) == 0.0


def test_what_cannot_be_calibrated_is_left_alone() -> None:
    scores, are_right = answers(500)
    assert Calibration.fit([], []) is None
    assert Calibration.fit(scores, [True] * 500) is None
    assert Calibration.fit(scores, [False] * 500) is None
    assert Calibration.fit(scores, [not each for each in are_right]) is None
    assert Calibration.fit([0.0] * 500, are_right) is None
    assert Calibration.fit([0.5] * 500, are_right) is None
    few = [0.9] * (LEAST_OF_EACH - 1) + [0.1] * LEAST_OF_EACH
    assert Calibration.fit(few, [score == 0.9 for score in few]) is None
    assert Calibration.fit([*few, 0.9], [score == 0.9 for score in [*few, 0.9]]) is not None


def test_a_map_is_saved_and_loaded_and_damage_is_noticed(tmp_path: Path) -> None:
    assert Calibration.load(tmp_path) is None
    Calibration(0.5, -1.25).save(tmp_path)
    assert Calibration.load(tmp_path) == Calibration(0.5, -1.25)
    for damaged in ("", "[]", "{}", '{"slope": "x", "intercept": 0}', '{"slope": -1, "intercept": 0}', "[" * 99_999):
        (tmp_path / FILE_NAME).write_text(damaged)
        with pytest.raises(CorruptError, match=FILE_NAME):
            Calibration.load(tmp_path)
