"""Recipes for written chains: cut short, or taken away from epoch to epoch."""

from dataclasses import replace
from itertools import pairwise
from math import exp

import pytest
from conftest import shaken
from setups import RATIO, examples_of, make_setup

from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training.recipes.chain import ImplicitCotRecipe, ShortCotRecipe
from ccot_cli.tensors.select import num_kept


def test_the_short_chain_has_as_many_tokens_as_ccot(llama: Theta) -> None:
    setup = make_setup(shaken(llama, PSI))
    for example, problem in zip(examples_of(ShortCotRecipe().training(setup), 0), setup.problems, strict=True):
        kept = num_kept(RATIO, len(problem.chain))
        end = [*llama.encoder.answer_marker, *problem.answer]
        assert example.answer == [*problem.chain[:kept], *end]


def test_internalisation_goes_from_the_whole_chain_to_none(llama: Theta) -> None:
    setup = make_setup(shaken(llama, PSI))
    training = ImplicitCotRecipe().training(setup)
    marker = llama.encoder.answer_marker
    left = []
    for epoch in range(8):
        examples = examples_of(training, epoch)
        for example, problem in zip(examples, setup.problems, strict=True):
            # What is left is the chain's end, and the answer comes after it.
            end = [*marker, *problem.answer]
            assert example.answer[-len(end) :] == end
            rest = example.answer[: -len(end)]
            assert rest == problem.chain[len(problem.chain) - len(rest) :]
        left.append([len(example.answer) for example in examples])
    assert [example.answer for example in examples_of(training, 0)] == [
        [*each.chain, *marker, *each.answer] for each in setup.problems
    ]
    assert all(sum(later) < sum(earlier) for earlier, later in pairwise(left[:7]))
    shortest = [len(marker) + len(each.answer) for each in setup.problems]
    assert left[6] == left[7] == shortest
    assert training.optimiser.restarts == [2 * epoch for epoch in range(7)]


def test_internalisation_now_and_then_removes_a_token_more(llama: Theta) -> None:
    setup = make_setup(shaken(llama, PSI))
    training = ImplicitCotRecipe().training(replace(setup, problems=setup.problems[:1] * 3000))
    for epoch, expected in ((0, 0.0), (1, exp(-4))):
        lengths = [len(example.answer) for example in examples_of(training, epoch)]
        shorter = sum(length < max(lengths) for length in lengths) / len(lengths)
        assert shorter == pytest.approx(expected, abs=0.01)
