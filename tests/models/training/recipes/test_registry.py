"""Every recipe trains a method that answers from what it learned to answer from."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from conftest import shaken
from setups import PROBLEMS, RATIO, examples_of, make_setup, with_gold

from ccot_cli.config import DecodingConfig
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.psi import Text, decode
from ccot_cli.models.methods.coconut import CoconutMethod
from ccot_cli.models.methods.gold import GoldMethod
from ccot_cli.models.methods.loading import load_method
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.models.selection.selector import Selector
from ccot_cli.models.training.recipes.base import Recipe
from ccot_cli.models.training.recipes.pause import FillerRecipe, PauseRecipe
from ccot_cli.models.training.recipes.registry import RECIPES
from ccot_cli.names import BaselineName


def test_every_method_has_its_recipe() -> None:
    assert set(RECIPES) == set(get_args(BaselineName))


@pytest.mark.parametrize("kind", RECIPES.values(), ids=list(RECIPES))
def test_every_method_trains_saves_and_answers_as_it_was_trained(
    llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Recipe]
) -> None:
    adapters = shaken(llama, PSI)
    setup = with_gold(make_setup(adapters, epochs=3), Selector("even", RATIO, llama.encoder))
    recipe = kind()
    training = recipe.training(setup)
    held_out = recipe.held_out(setup, setup.problems[:5], setup.gold[:5])
    before = {name: parameter.detach().clone() for name, parameter in training.optimiser.parameters.items()}
    assert all(loss > 0 for loss in training.steps())
    assert any(not torch.equal(before[name], each) for name, each in training.optimiser.parameters.items())
    # It is judged as it answers, on problems of its own.
    assert held_out.examples == examples_of(training, 2)[:5]
    training.optimiser.step_count = training.optimiser.num_steps - 1
    whole = float(training.part_loss(range(5), range(5)).detach())
    assert training.judge(held_out).loss == pytest.approx(whole, rel=1e-5)
    learned = {name: each.clone() for name, each in adapters.state(PSI).items()}
    adapters.save(PSI, tmp_path)
    recipe.save(tmp_path)
    MethodInfo(recipe.name, f"{setup.ratio:f}", num_tokens=recipe.num_tokens(setup)).save(tmp_path)
    method = load_method(adapters, tmp_path, DecodingConfig(max_chain_tokens=9))
    assert method.name == recipe.name
    assert method.ratio == RATIO
    assert all(torch.equal(each, learned[name]) for name, each in adapters.state(PSI).items())
    if isinstance(method, GoldMethod):
        method.show(PROBLEMS)
    started: list[tuple[CachedSequence, list[list[int]]]] = []

    def watched(adapters: Adapters, sequence: CachedSequence, start: list[list[int]], **options: Any) -> Text:
        started.append((sequence.copy(), start))
        return decode(adapters, sequence, start, **options)

    for module in ("method", "chain"):
        monkeypatch.setattr(f"ccot_cli.models.methods.{module}.decode", watched)
    replies, seconds = method.reply([problem.question for problem in PROBLEMS[:2]])
    assert len(replies) == 2
    assert seconds.total > 0
    if kind in (PauseRecipe, FillerRecipe):
        assert {reply.num_contemplation for reply in replies} == {setup.num_tokens}
    # What it answers from is what it learned to answer from.
    [(asked, start)], last = started, examples_of(training, 2)[:2]
    read = training.context.read([0, 1], last).sequence
    assert start == [example.start for example in last]
    assert torch.equal(asked.mask_BS, read.mask_BS)
    for layer in range(llama.num_layers):
        torch.testing.assert_close(asked.keys_values(layer), read.keys_values(layer), atol=1e-5, rtol=1e-4)
    if isinstance(method, CoconutMethod):
        assert method.num_thoughts == last[0].num_tokens > 0
