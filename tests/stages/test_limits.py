"""Stages learn from the first training problems, as many as their settings say."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ccot_cli.models.training.recipes.gold import GoldRecipe
from ccot_cli.stages import train_phi, train_psi
from stages.runs import MakeRun, same_tensors, stored_problems

Spy = Callable[[Any, str], list[tuple[Any, ...]]]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    """Watch a function or class of a module; returns the list of what it will be called with."""

    def watch(module: Any, name: str) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []
        watched = getattr(module, name)

        def called(*arguments: Any, **options: Any) -> Any:
            calls.append(arguments)
            return watched(*arguments, **options)

        monkeypatch.setattr(module, name, called)
        return calls

    return watch


def queries(problems: Sequence[Any]) -> list[list[int]]:
    return [each.query for each in problems]


@pytest.mark.parametrize(("schedule", "training"), [("joint", "JointTraining"), ("layerwise", "train_layerwise")])
def test_phi_learns_from_the_first_problems_and_is_probed_with_all(
    make_run: MakeRun, spy: Spy, schedule: str, training: str
) -> None:
    run = make_run(**{"train_phi.limit": 9, "train_phi.schedule": schedule})
    run.precompute()
    run.score()
    learned, judged = spy(train_phi, training), spy(train_phi, "PhiJudge")
    run.train_phi()
    stored = queries(stored_problems(run, is_validation=False))
    assert queries(learned[0][1]) == stored[:9]
    assert queries(judged[0][1]) == stored
    assert queries(judged[0][2]) == queries(stored_problems(run, is_validation=True))


def test_psi_and_baselines_learn_from_the_first_problems_and_are_validated_on_all(make_run: MakeRun, spy: Spy) -> None:
    run = make_run(**{"train_psi.limit": 9})
    run.precompute()
    run.score()
    assert run.train_phi().num_steps == 6
    by_psi, by_gold = spy(train_psi, "PsiTraining"), spy(GoldRecipe, "training")
    results = run.train_psi(), run.train_baseline("gold")
    stored = queries(stored_problems(run, is_validation=False))
    assert queries(by_psi[0][1]) == queries(by_gold[0][1].problems) == stored[:9]
    assert len(by_gold[0][1].gold) == 9
    assert [(each.num_steps, each.num_validation) for each in results] == [(2, 6), (2, 6)]


def test_a_limit_above_the_number_of_problems_means_all(make_run: MakeRun) -> None:
    runs = [make_run("all"), make_run("many", **{"train_phi.limit": 21, "train_psi.limit": 10**6})]
    for run in runs:
        run.precompute()
        run.score()
        run.train_phi()
        run.train_psi()
    one, other = (run.workspace.folder("train-psi", "r0.10") for run in runs)
    assert same_tensors(one, other)
