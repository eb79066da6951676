"""How many tokens a method has, and how a curriculum takes the chain away."""

from dataclasses import replace
from decimal import Decimal

import pytest
from conftest import as_theta, shaken
from setups import RATIO, examples_of, make_setup
from transformers import GPT2Config, PreTrainedTokenizerFast

from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training.recipes.base import Recipe, usual_length
from ccot_cli.models.training.recipes.chain import ImplicitCotRecipe
from ccot_cli.models.training.recipes.coconut import THOUGHTS, CoconutRecipe
from ccot_cli.models.training.recipes.pause import FillerRecipe, PauseRecipe
from ccot_cli.tensors.select import num_kept


def test_as_many_pause_tokens_as_ccot_has_at_the_mean_chain(llama: Theta) -> None:
    setup = make_setup(shaken(llama, PSI))
    mean = sum(len(each.chain) for each in setup.problems) / len(setup.problems)
    assert setup.num_tokens == num_kept(RATIO, round(mean))
    for recipe in (PauseRecipe(), FillerRecipe()):
        assert {each.num_tokens for each in examples_of(recipe.training(setup), 0)} == {setup.num_tokens}


def test_a_curriculum_of_one_epoch_is_refused_and_of_two_ends_without_the_chain(llama: Theta) -> None:
    adapters = shaken(llama, PSI)
    setup = make_setup(adapters, epochs=2)
    for kind in (CoconutRecipe, ImplicitCotRecipe):
        with pytest.raises(UsageError, match="two epochs"):
            kind.check(make_setup(adapters, epochs=1).config)
        marker = llama.encoder.answer_marker
        answers = [[*marker, *each.answer] for each in setup.problems]
        assert [each.answer for each in examples_of(kind().training(setup), 1)] == answers


def test_a_few_very_long_chains_do_not_stretch_a_curriculum(llama: Theta) -> None:
    assert usual_length([4] * 19 + [50]) == 4
    assert usual_length([4] * 18 + [9, 50]) == 9
    assert usual_length([3]) == 3
    setup = make_setup(shaken(llama, PSI), epochs=8)
    [first, *others] = setup.problems
    long = replace(first, chain=[token for _ in range(9) for token in [*first.chain, *llama.encoder.answer_marker[:1]]])
    setup = replace(setup, problems=[long, *(other for other in others for _ in range(5))])
    marker = llama.encoder.answer_marker
    for recipe in (CoconutRecipe(), ImplicitCotRecipe()):
        training = recipe.training(setup)
        assert examples_of(training, 0)[0].answer == [*long.chain, *marker, *long.answer]
        assert examples_of(training, 7)[0].answer == [*marker, *long.answer]
    most = max(1 + llama.encoder.lines(other.chain)[-1] for other in others)
    latent = CoconutRecipe()
    latent.training(setup)
    assert latent.num_tokens(setup) == THOUGHTS * most < THOUGHTS * llama.encoder.lines(long.chain)[-1]


@pytest.mark.parametrize("recipe", [PauseRecipe(), FillerRecipe(), CoconutRecipe()])
def test_no_more_tokens_are_learned_than_the_model_has_positions_for(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe
) -> None:
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
    theta = as_theta(GPT2Config(vocab_size=len(tokenizer), **sizes), tokenizer)
    setup = make_setup(shaken(theta, PSI), epochs=4)
    line = [6, 6, *theta.encoder.tokenizer("\n", add_special_tokens=False).input_ids]
    marker = len(theta.encoder.answer_marker)
    # One query leaves two positions, and its chain is short; the others' chains are long.
    tight = EncodedProblem("", [5] * (64 - 2 - marker - 2), [6, 6], [7, 8])
    setup = replace(
        setup, problems=[tight, *[EncodedProblem("", [5] * 9, line * 13, [7, 8])] * 5], ratio=Decimal("0.2")
    )
    training, numbers = recipe.training(setup), range(6)
    for epoch in range(4):
        training.optimiser.step_count = epoch * training.steps_per_epoch
        training.part_loss(numbers, numbers)
    assert [each.num_tokens for each in examples_of(training, 3)] == [2, *[recipe.num_tokens(setup)] * 5]
    [judged] = recipe.held_out(setup, [tight]).examples
    assert judged.num_tokens == 2
