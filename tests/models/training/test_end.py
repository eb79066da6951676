"""END and its hint are fitted, rollouts end late, and END is judged."""

import pytest
import torch
from trainers import seeded

from ccot_cli.models.training.end import MOST_EXTRA, LateEnds, end_loss, fit_end, judge_end, label_ends
from ccot_cli.tensors.probes import Logistic, fit_logistic

# Labels and END's loss


def test_the_last_of_each_problems_tokens_is_labelled_and_those_after_it_are_left_out() -> None:
    states = [torch.full((count, 2), float(number)) for number, count in enumerate((3, 1, 4))]
    last, labels = label_ends(states, [2, 1, 4])
    assert last[:, 0].tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert labels.tolist() == [False, True, True, False, False, False, True]


def test_the_end_loss_is_that_of_a_linear_classifier_on_states_of_unit_size() -> None:
    last, labels = torch.randn(6, 4, generator=seeded(0)), torch.tensor([False, True, False, False, True, True])
    weights = torch.randn(1, 5, generator=seeded(1))
    losses = []
    for state, is_last in zip(last, labels.tolist(), strict=True):
        logit = float(state / state.norm() * 2 @ weights[0, :4] + weights[0, 4])
        says = torch.sigmoid(torch.tensor(logit if is_last else -logit))
        losses.append(-float(says.log()))
    assert float(end_loss(weights, last, labels)) == pytest.approx(sum(losses) / len(losses), abs=1e-5)


# Fitting


def test_end_finds_a_plane_that_separates() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(400, 6, generator=generator) * torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0, 100.0]) + 5
    labels = (states[:, 1] - 5) / 10 + (states[:, 2] - 5) / 0.1 > 0.5
    end = fit_end(fit_logistic(states, labels), [-states], [states])
    report = judge_end(end, states, labels)
    assert report.accuracy > 0.98
    assert report.true_ends + report.missed_ends == int(labels.sum())


def test_the_hint_learns_what_the_rule_says_of_tokens_up_to_the_first_end() -> None:
    generator = torch.Generator().manual_seed(0)
    lower = [torch.randn(1 + number % 6, 3, generator=generator) for number in range(400)]
    # The rule sees at L what the hint sees at l, with the other sign; after the first END both signs are the same.
    last = [-each for each in lower]
    rule = Logistic(torch.tensor([0.0, 2.0, 0.0]), torch.tensor(-0.5))
    for low, high in zip(lower, last, strict=True):
        said = (rule.logits(high) > 0).tolist()
        if True in said:
            low[said.index(True) + 1 :] *= -1
    end = fit_end(rule, lower, last)
    chances = [end.chance(each) for each in lower]
    for chance, high in zip(chances, last, strict=True):
        said = (rule.logits(high) > 0).tolist()
        reached = said.index(True) + 1 if True in said else len(said)
        sure = rule.logits(high)[:reached].abs() > 0.3
        assert ((chance[:reached] > 0.5) == torch.tensor(said[:reached]))[sure].all()


# Late ends


def test_ends_are_as_often_late_as_ends_own_and_never_early() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = [2 + number % 3 for number in range(600)]
    # One channel says how many tokens are left, not clearly: END can be sure of nothing.
    states = [
        torch.stack([torch.tensor([count - 1.0 - column, 1.0]) for column in range(count + MOST_EXTRA)])
        + 0.7 * torch.randn(count + MOST_EXTRA, 2, generator=generator)
        for count in counts
    ]
    ends = LateEnds(states, counts, threshold=0.0, seed=0)
    assert ends(0) == ends(0)
    assert ends(0) != ends(1)
    assert all(count <= drawn <= count + MOST_EXTRA for drawn, count in zip(ends(0), counts, strict=True))
    end = fit_logistic(*label_ends(states, counts))
    expected = torch.zeros(3)
    for state, count in zip(states, counts, strict=True):
        chance = end.logits(state).sigmoid()
        going_on = torch.cat([torch.ones(1), (1 - chance).cumprod(0)])
        # Right or too early, one too late, and later still.
        late = going_on[count]
        expected += torch.stack([1 - late, late * chance[count], late * (1 - chance[count])])
    assert 0.5 < expected[0] / 600 < 0.95
    assert expected[2] / 600 > 0.005
    off = [drawn - count for epoch in range(20) for drawn, count in zip(ends(epoch), counts, strict=True)]
    found = [off.count(each) / 20 for each in range(3)]
    assert found == pytest.approx(expected.tolist(), rel=0.1)


def test_a_stricter_end_misses_more() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = [2] * 200
    states = [torch.tensor([[0.0], [1.0], [1.0], [1.0]]) + torch.randn(4, 1, generator=generator) for _ in counts]
    late = [sum(end > 2 for end in LateEnds(states, counts, threshold=each, seed=0)(0)) for each in (0.0, 1.0, 2.0)]
    assert late[0] + 20 < late[1] < late[2] - 5


def test_ends_that_are_certain_are_the_true_ones() -> None:
    counts = [1 + number % 4 for number in range(80)]
    # Many channels that say the same make it certain against the penalty.
    states = [
        torch.tensor([[float(column == count - 1)] * 100 for column in range(count + MOST_EXTRA)]) for count in counts
    ]
    assert LateEnds(states, counts, threshold=0.0, seed=0)(0) == counts


def test_ends_are_drawn_from_an_end_that_was_fitted_on_other_problems() -> None:
    # Enough random channels to learn every problem by heart: of those that it has seen, END would be sure.
    generator = torch.Generator().manual_seed(0)
    counts = [2] * 20
    states = [torch.randn(2 + MOST_EXTRA, 200, generator=generator) for _ in counts]
    end = fit_logistic(*label_ends(states, counts))
    assert all((end.logits(each) > 0).tolist()[:2] == [False, True] for each in states)
    ends = LateEnds(states, counts, threshold=0.0, seed=0)
    assert sum(drawn > 2 for epoch in range(10) for drawn in ends(epoch)) > 20


def test_a_single_problem_has_late_ends_too() -> None:
    states = [torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])]
    assert LateEnds(states, [2], threshold=0.0, seed=0)(0) == [2]
