"""Small examples for φ and ψ, and trainers of both."""

from collections.abc import Sequence
from typing import Any

import torch
from conftest import encoded_problems
from torch import Tensor

from ccot_cli.config import TrainPhiConfig, TrainPsiConfig
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import GoldExample, gold_states
from ccot_cli.models.training.contexts import RolloutContext, roll_out
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.models.training.phi_joint import JointTraining
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.queries import FreshQueries

LAYER = 2


def seeded(seed: int) -> torch.Generator:
    """Make a generator of random numbers."""
    return torch.Generator().manual_seed(seed)


def descend(optimiser: Optimiser, loss: Tensor) -> float:
    """Take one step down a loss that is there already."""
    return optimiser.step_on([0], lambda part, whole: loss)


def gradients(training: JointTraining | PsiTraining, parts: list[list[int]]) -> tuple[float, list[Tensor]]:
    """Compute the loss and the gradients of a batch in parts, without a step."""
    whole = [number for part in parts for number in part]
    parameters = list(training.optimiser.parameters.values())
    for parameter in parameters:
        parameter.grad = None
    total = 0.0
    for part in parts:
        loss = training.part_loss(part, whole)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, [torch.zeros(1) if each.grad is None else each.grad.clone() for each in parameters]


# φ


def phi_examples(theta: Theta, count: int, *, dtype: torch.dtype = torch.float32) -> list[GoldExample]:
    """Make examples of 2 to 4 gold tokens from the model's own states."""
    problems = encoded_problems(theta, count)
    states = dict(gold_states(theta, problems, indices=range(theta.num_layers + 1), batch_tokens=4096, dtype=dtype))
    counts = [2 + number % 3 for number in range(count)]
    return [
        GoldExample(problem.query, states[number][: 1 + kept], torch.tensor(problem.chain[1 : 1 + kept]))
        for (number, problem), kept in zip(enumerate(problems), counts, strict=True)
    ]


def fresh_queries(
    adapters: Adapters, examples: Sequence[PsiExample | GoldExample], *, reader: str | None = None
) -> FreshQueries:
    """Run the examples' queries whenever they are asked for, under θ or the adapter that is named."""
    return FreshQueries(adapters, [example.query for example in examples], LAYER, reader=reader)


def layerwise_config(**changes: Any) -> TrainPhiConfig:
    """Settings of training φ layer by layer."""
    settings = {"epochs": 1, "batch_size": 3, "learning_rate": 1e-2, "optimiser": "adamw", "seed": 5, **changes}
    return TrainPhiConfig(schedule="layerwise", autoregressive_layer=LAYER, **settings)


def joint_training(adapters: Adapters, examples: list[GoldExample], **changes: Any) -> JointTraining:
    """Train all layers of φ together: two epochs taught, four on its own rollouts."""
    settings = {"taught_epochs": 2, "epochs": 4, "batch_size": 4, "learning_rate": 2e-2, "seed": 3, **changes}
    config = TrainPhiConfig(autoregressive_layer=LAYER, optimiser="muon", **settings)
    return JointTraining(adapters, examples, fresh_queries(adapters, examples), config)


# ψ


def psi_examples(theta: Theta) -> list[PsiExample]:
    """Make eight examples with 1 to 3 contemplation tokens."""
    marker = theta.encoder.answer_marker
    problems = encoded_problems(theta, 8)
    return [PsiExample(each.query, marker, each.answer, 1 + number % 3) for number, each in enumerate(problems)]


def rolled_out(adapters: Adapters, examples: list[PsiExample], *, reader: str | None = None) -> list[Tensor]:
    """Roll out φ on every example."""
    queries, counts = fresh_queries(adapters, examples, reader=reader), [example.num_tokens for example in examples]
    return roll_out(adapters, queries, counts, layer=LAYER, batch_size=4)


def psi_training(
    adapters: Adapters,
    examples: list[PsiExample],
    *,
    trains_above: bool = True,
    learned: Sequence[PsiExample] | None = None,
    reader: str | None = None,
    **changes: Any,
) -> PsiTraining:
    """Train ψ on the examples' rollouts, or on as much of them as the examples that are learned read."""
    settings = {"epochs": 6, "batch_size": 3, "learning_rate": 5e-2, "optimiser": "adamw", "seed": 1, **changes}
    rollouts = rolled_out(adapters, examples, reader=reader)
    queries = fresh_queries(adapters, examples, reader=reader)
    context = RolloutContext(adapters, queries, rollouts, LAYER, trains_above=trains_above)
    return PsiTraining(adapters, examples if learned is None else learned, context, TrainPsiConfig(**settings))
