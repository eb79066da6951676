"""What recipes are given, and what the trainings that they make ask of ψ."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from typing import NoReturn

from torch import nn

from ccot_cli.config import TrainPsiConfig
from ccot_cli.data.problems import Problem, split_solution
from ccot_cli.data.word_problems import generate
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.selection.gold import gold_states
from ccot_cli.models.selection.selector import Selector
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.recipes.base import RecipeSetup

RATIO = Decimal("0.1")
PROBLEMS = [
    Problem(str(number), each.question, *split_solution(each.solution))
    for number, each in enumerate(islice(generate("train", seed=3), 6))
]


def make_setup(adapters: Adapters, *, epochs: int = 8) -> RecipeSetup:
    """Give a recipe six problems, in batches of three."""
    problems = [adapters.theta.encoder.problem(problem) for problem in PROBLEMS]
    return RecipeSetup(adapters, problems, RATIO, TrainPsiConfig(epochs=epochs, batch_size=3, lora_rank=4))


def with_gold(setup: RecipeSetup, selector: Selector) -> RecipeSetup:
    """Add the gold states of the tokens that a selector chooses."""
    theta, problems = setup.adapters.theta, setup.problems
    setup.adapters.use(None)
    indices = range(theta.num_layers + 1)
    states = dict(gold_states(theta, problems, indices=indices, batch_tokens=999))
    gold = []
    for number, problem in enumerate(problems):
        kept = selector.positions(problem, states_MD=states[number][1:, selector.layer])
        gold.append(states[number][[0, *(position + 1 for position in kept)]])
    return replace(setup, gold=gold, selector=selector)


class _Asked(Exception):  # noqa: N818
    """The examples that ψ was to learn from."""

    def __init__(self, examples: Sequence[PsiExample]) -> None:
        self.examples = list(examples)


class _Asking:
    """A context that tells what it is asked to prepare."""

    trained: dict[str, nn.Parameter] = {}  # noqa: RUF012

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> NoReturn:
        raise _Asked(batch)


def examples_of(training: PsiTraining, epoch: int) -> list[PsiExample]:
    """Find what ψ learns from in an epoch: every problem's example."""
    context, step = training.context, training.optimiser.step_count
    training.context, training.optimiser.step_count = _Asking(), epoch * training.steps_per_epoch
    numbers = range(len(training.lengths))
    try:
        training.part_loss(numbers, numbers)
    except _Asked as asked:
        return asked.examples
    finally:
        training.context, training.optimiser.step_count = context, step
    raise AssertionError("the context was not asked")
