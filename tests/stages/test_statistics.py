"""Intervals and tests are those of the textbooks."""

import random

import pytest

from ccot_cli.stages.statistics import auroc, calibration_error, interval, mcnemar, paired_difference, student, wilson


def test_wilson_intervals_are_those_of_the_textbook() -> None:
    share = wilson(8, 10)
    assert (share.low, share.high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 10).low == 0
    assert wilson(10, 10).high == 1


def test_an_accuracy_lies_in_its_interval_also_where_sums_are_rounded() -> None:
    for n in range(1, 100):
        for num_correct in (0, n // 3, n):
            share = wilson(num_correct, n)
            assert 0 <= share.low <= share.accuracy <= share.high <= 1


def test_intervals_are_over_problems_and_over_seeds_where_there_are_several() -> None:
    assert interval([0.8], 10) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    # Mean 0.5, standard deviation 0.1, three seeds: 0.5 ± 4.303 * 0.1 / sqrt(3), the problems being very many.
    found = interval([0.4, 0.5, 0.6], 10**8)
    assert found == (pytest.approx(0.2516, abs=1e-3), pytest.approx(0.7484, abs=1e-3))
    # Wilson's half of 5 in 10 is 0.2634: 0.5 ± hypot(0.2484, 0.2634).
    found = interval([0.4, 0.5, 0.6], 10)
    assert found == (pytest.approx(0.1379, abs=1e-3), pytest.approx(0.8621, abs=1e-3))
    # Seeds that agree answered the same problems.
    assert interval([1.0, 1.0, 1.0], 100) == (pytest.approx(0.9630, abs=1e-4), 1.0)
    assert interval([0.85, 0.85], 200) == pytest.approx(interval([0.85], 200))
    # Of the table, and of the expansion beyond it.
    quantiles = {1: 12.706, 9: 2.262, 10: 2.228, 15: 2.131, 30: 2.042, 120: 1.980}
    assert {freedom: student(freedom) for freedom in quantiles} == pytest.approx(quantiles, abs=1e-3)


def test_mcnemar_is_the_sign_test_on_what_differs() -> None:
    assert mcnemar(0, 0) == 1
    assert mcnemar(5, 5) == 1
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert mcnemar(1, 7) == mcnemar(7, 1) == pytest.approx(2 * (1 + 8) / 256)
    assert mcnemar(900, 100) < 1e-100


def test_auroc_is_the_share_of_pairs_in_the_right_order() -> None:
    assert auroc([0.9, 0.8, 0.2, 0.1], [True, True, False, False]) == 1
    assert auroc([0.9, 0.8, 0.2, 0.1], [True, False, True, False]) == 0.75
    assert auroc([0.9, 0.8, 0.2, 0.1], [False, False, True, True]) == 0
    assert auroc([True, False, True, False, False], [True, True, False, False, False]) == pytest.approx(3.5 / 6)
    assert auroc([0.5] * 5, [True, False, True, False, False]) == 0.5
    assert auroc([0.5, 0.7], [True, True]) is None
    assert auroc([], []) is None
    rng = random.Random(0)
    scores, labels = [rng.randint(0, 9) for _ in range(60)], [rng.random() < 0.4 for _ in range(60)]
    right, wrong = ([s for s, label in zip(scores, labels, strict=True) if label == kind] for kind in (True, False))
    pairs = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    assert auroc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))


def test_the_calibration_error_is_the_gap_between_confidence_and_share_bin_by_bin() -> None:
    assert calibration_error([0.8] * 5, [True] * 4 + [False]) == pytest.approx(0)
    assert calibration_error([0.9, 0.9, 0.2, 0.2], [True, False, False, False]) == pytest.approx((0.4 + 0.2) / 2)
    assert calibration_error([1.0, 0.0], [False, True]) == 1
    rng = random.Random(0)
    scores = [*(rng.random() for _ in range(300)), 0.0, 1.0, 0.1, 0.3, 0.7]
    labels = [rng.random() < score**2 for score in scores]
    for num_bins in (1, 5, 10):
        total = 0.0
        for number in range(num_bins):
            low, high = number / num_bins, (number + 1) / num_bins
            # The last bin holds 1.
            inside = [at for at, score in enumerate(scores) if low <= score < high or score == high == 1]
            if inside:
                confidence = sum(scores[at] for at in inside) / len(inside)
                total += len(inside) / len(scores) * abs(confidence - sum(labels[at] for at in inside) / len(inside))
        assert calibration_error(scores, labels, num_bins=num_bins) == pytest.approx(total)


def test_the_interval_of_a_paired_difference_holds_the_truth_in_95_of_100_samples() -> None:
    rng = random.Random(0)
    for n, wins, losses in ((40, 0.1, 0.05), (200, 0.3, 0.1), (1000, 0.02, 0.02)):
        held = 0
        for _ in range(1000):
            draws = [rng.random() for _ in range(n)]
            won, lost = sum(draw < wins for draw in draws), sum(wins <= draw < wins + losses for draw in draws)
            low, high = paired_difference(won, lost, n)
            held += low <= wins - losses <= high
        assert 0.93 <= held / 1000 <= 0.98
    assert paired_difference(0, 0, 100) == (pytest.approx(-0.0192, abs=1e-4), pytest.approx(0.0192, abs=1e-4))
    assert paired_difference(7, 2, 50) == tuple(-each for each in paired_difference(2, 7, 50)[::-1])
