"""The gold oracle answers from what it was trained on."""

import pytest
import torch
from conftest import MakeTheta, shaken
from setups import PROBLEMS, RATIO, make_setup, with_gold

from ccot_cli.config import DecodingConfig
from ccot_cli.data.problems import Problem
from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.gold import GoldMethod
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.models.selection.selector import Selector
from ccot_cli.models.training.recipes.gold import GoldRecipe


def test_at_test_time_gold_reads_what_it_was_trained_on(theta: Theta) -> None:
    selector = Selector("even", RATIO, theta.encoder)
    adapters = shaken(theta, PSI)
    setup = with_gold(make_setup(adapters), selector)
    context = GoldRecipe().training(setup).context
    method = GoldMethod(adapters, MethodInfo("gold", f"{RATIO:f}"), DecodingConfig(), selector)
    method.show(PROBLEMS)
    for number, problem in enumerate(setup.problems):
        trained = context.read([number], []).sequence
        asked = method.prepare([problem.query]).sequence
        for layer in range(theta.num_layers):
            for one, other in zip(trained.keys_values(layer), asked.keys_values(layer), strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    with pytest.raises(UsageError, match="this question has none"):
        method.prepare([[5, 6, 7]])


def test_a_solution_beyond_gpt2s_last_position_is_refused(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    most = theta.blocks.num_positions
    assert most is not None
    decoding, selector = DecodingConfig(max_answer_tokens=3), Selector("last", RATIO, theta.encoder)
    method = GoldMethod(shaken(theta, PSI), MethodInfo("gold", "0.1"), decoding, selector)
    asked = next(text for count in range(most, 0, -1) if len(theta.encoder.query(text := "pens " * count)) <= most - 4)
    method.show([Problem("0", asked, "3 + 4 = 7", "7")])
    with pytest.raises(UsageError, match="positions"):
        method.reply([asked])
