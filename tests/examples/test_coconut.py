"""COCONUT's own task."""

from decimal import Decimal

import pytest
import torch

from examples.scripts import script


@pytest.mark.slow
def test_coconut_s_own_task_is_learned_from_chains_and_leaves_theta_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    check = script("research/coconut.py")
    sizes = {"NUM_DIGITS": 3, "NUM_TRAIN": 64, "NUM_TEST": 30, "THETA_STEPS": 500}
    for name, size in sizes.items():
        monkeypatch.setattr(check, name, size)
    monkeypatch.setattr(check, "COURSE", check.COURSE.model_copy(update={"epochs": 4}))
    train, tests = check.problems(0)
    assert not {problem.question for problem in train} & {problem.question for problem in tests}
    assert all(sum(map(int, each.question.split())) % check.MODULUS == int(each.answer) for each in (*train, *tests))

    encoder = check.encoder_for(train)
    encoded = [encoder.problem(each) for each in train]
    theta = check.fresh_theta(encoder, 0)
    epochs = check.teach_chains(theta, encoded, 0)
    assert epochs == check.THETA_STEPS * check.COURSE.batch_size // len(train)
    chain = check.ChainMethod(check.Adapters(theta), check.MOST_TOKENS)
    assert check.accuracy(chain, train) > 0.9
    before = {name: each.clone() for name, each in theta.model.named_parameters()}
    for coconut in (check.CoconutRecipe(), check.Staged(), check.Unstaged()):
        method, steps = check.train_coconut(theta, encoded, check.COURSE, coconut)
        assert steps == 4
        # All weights of a copy learn.
        after = {name.replace(".base_layer", ""): each for name, each in method.adapters.named_parameters()}
        changed = [not torch.equal(weight, after[name]) for name, weight in before.items()]
        assert all(changed) if isinstance(coconut, check.Staged) else not any(changed)
    adapters = check.Adapters(check.fresh_theta(encoder, 0))
    adapters.add(check.PSI, rank=4, alpha=4, seed=0)
    setup, stages = check.RecipeSetup(adapters, encoded, Decimal(0), check.COURSE), {}
    for coconut in (check.Staged(), check.StagedFromChains(), check.Unstaged()):
        coconut.training(setup)
        stages[type(coconut).__name__] = [coconut.stage(setup, epoch) for epoch in range(4)]
    assert stages == {"Staged": [0, 0, 1, 2], "StagedFromChains": [1, 1, 2, 2], "Unstaged": [2, 2, 2, 2]}
    assert check.accuracy(chain, train) > 0.9
