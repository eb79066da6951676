"""Training the scorer: its loss and gradient, what a step draws, and steps in parts."""

from collections.abc import Sequence
from copy import deepcopy
from decimal import Decimal
from itertools import islice
from typing import Any

import pytest
import torch
from conftest import as_theta, encoded_problems, shaken
from torch import Tensor
from transformers import GPT2Config, PreTrainedTokenizerFast

from ccot_cli.config import ScoreConfig, TrainPsiConfig
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.scorer import Scorer, chain_scores
from ccot_cli.models.training.psi import answer_loss
from ccot_cli.models.training.scorer import ScorerTraining
from ccot_cli.tensors.select import best, num_kept

LAYER = 2
RATIO = Decimal("0.2")


def make_training(adapters: Adapters, kind: str = "linear", **changes: Any) -> ScorerTraining:
    """Train on six problems, eight steps of three."""
    theta, decoder = adapters.theta, {"batch_size": 3, "learning_rate": 1e-2, "optimiser": "muon", **changes}
    return ScorerTraining(
        adapters,
        Scorer(theta, kind, seed=0),  # type: ignore[arg-type]
        encoded_problems(theta, 6),
        LAYER,
        ScoreConfig(scorer_steps=8, seed=0),
        TrainPsiConfig(**decoder),
    )


# Loss and gradient


def test_the_scorer_learns_from_states_at_its_layer(theta: Theta) -> None:
    training, seen = make_training(shaken(theta, PSI)), []
    [problem, *_] = training.problems
    training.scorer.register_forward_pre_hook(lambda _scorer, inputs: seen.append(inputs[0]))
    training.loss([problem], RATIO)
    [states] = seen
    training.adapters.use(None)
    every = theta.model(input_ids=torch.tensor([[*problem.query, *problem.chain]]), output_hidden_states=True)
    torch.testing.assert_close(states, every.hidden_states[LAYER])


@torch.no_grad()
def read(adapters: Adapters, problem: EncodedProblem) -> tuple[CachedSequence, Tensor]:
    """Run query and chain under θ; returns their states at the scorer's layer too."""
    blocks, ids = adapters.theta.blocks, torch.tensor([[*problem.query, *problem.chain]])
    adapters.use(None)
    sequence = CachedSequence.empty(1, adapters.theta.device)
    states = blocks.run_ids(ids, torch.ones_like(ids).bool(), sequence, last=LAYER)
    blocks.run(states, LAYER, adapters.theta.num_layers, sequence)
    return sequence, states


@torch.no_grad()
def chosen(training: ScorerTraining, problem: EncodedProblem) -> list[int]:
    """Choose the columns of the best chain tokens."""
    _, states = read(training.adapters, problem)
    start = len(problem.query)
    scores = training.scorer(states)[0, start:]
    return [start + position for position in best(scores, num_kept(RATIO, len(problem.chain)))]


@torch.no_grad()
def slow_loss(training: ScorerTraining, batch: Sequence[EncodedProblem], push: float = 0.0, pushed: int = 0) -> float:
    """Answer and write one problem at a time; `push` is added to the attention logits of one of the first's columns."""
    adapters, marker = training.adapters, training.adapters.theta.encoder.answer_marker
    sums, counts = torch.zeros(2), torch.zeros(2)
    for row, problem in enumerate(batch):
        bias = torch.full((1, len(problem.query) + len(problem.chain)), float("-inf"))
        bias[0, : len(problem.query)] = 0.0
        bias[0, chosen(training, problem)] = 0.0
        if row == 0:
            bias[0, pushed] += push
        texts = ((marker, problem.answer), (problem.query[-1:], problem.chain))
        for task, (start, text) in enumerate(texts):
            sequence, _ = read(adapters, problem)
            sequence.bias_BS = bias
            sums[task] += answer_loss(adapters, sequence, [start], [text]) * len(text)
            counts[task] += len(text)
    answer, chain = (sums / counts).tolist()
    return float(answer + 0.2 * chain)


def test_the_scorers_gradient_is_what_pushing_a_chosen_tokens_attention_does(theta: Theta) -> None:
    training, seen = make_training(shaken(theta, PSI)), []
    batch = training.problems[:3]
    [column, *_] = chosen(training, batch[0])
    training.scorer.register_forward_hook(lambda _scorer, _inputs, scores: seen.append(scores))
    loss = training.loss(batch, RATIO)
    [scores] = seen
    [gradient] = torch.autograd.grad(loss, scores)
    assert float(loss.detach()) == pytest.approx(slow_loss(training, batch), abs=1e-4)
    push = 0.05
    sides = [slow_loss(training, batch, sign * push, column) for sign in (1, -1)]
    assert float(gradient[0, column]) == pytest.approx((sides[0] - sides[1]) / (2 * push), abs=2e-3, rel=5e-2)
    # What was not chosen is not felt.
    felt = gradient[0].nonzero().flatten().tolist()
    assert set(felt) <= set(chosen(training, batch[0]))


# Steps


class Drawing(ScorerTraining):
    """Notes what every step draws, and learns nothing."""

    def loss(
        self,
        batch: Sequence[EncodedProblem],
        ratio: Decimal,
        jitter_BS: Tensor | None = None,
        *,
        whole: Sequence[EncodedProblem] | None = None,
    ) -> Tensor:
        assert jitter_BS is not None
        self.drawn = ratio, jitter_BS
        return next(self.scorer.layers.parameters()).sum() * 0.0


def drawn(theta: Theta, num_problems: int, num_steps: int) -> list[tuple[Decimal, Tensor]]:
    """Draw ratio and jitter for some steps, each of them over all problems."""
    training = Drawing(
        shaken(theta),
        Scorer(theta, "linear", seed=0),
        encoded_problems(theta, num_problems),
        LAYER,
        ScoreConfig(scorer_steps=num_steps, seed=0),
        TrainPsiConfig(batch_size=num_problems),
    )
    return [training.drawn for _ in training.steps()]


def test_every_step_draws_one_of_four_ratios(llama: Theta) -> None:
    ratios = [f"{ratio:f}" for ratio, _ in drawn(llama, 2, 80)]
    assert set(ratios) == {"0.05", "0.1", "0.2", "0.3"}
    assert min(map(ratios.count, set(ratios))) >= 10


def test_jitter_is_gumbels_and_new_for_every_batch(llama: Theta) -> None:
    (_, first), (_, second) = drawn(llama, 40, 2)
    assert float(first.mean()) == pytest.approx(0.5772, abs=0.05)
    assert float(first.var()) == pytest.approx(torch.pi**2 / 6, abs=0.2)
    assert not torch.equal(first, second)


def test_a_gradient_that_is_not_finite_leaves_the_scorer_alone(llama: Theta) -> None:
    adapters = Adapters(llama)
    adapters.add(PSI, rank=4, alpha=8, seed=0)
    training = make_training(adapters)
    head = next(training.scorer.layers.parameters())
    before = head.detach().clone()
    handle = head.register_hook(lambda gradient: gradient * float("nan"))
    steps = training.steps()
    next(steps)
    assert torch.equal(head, before)
    handle.remove()
    next(steps)
    assert not torch.equal(head, before)


def test_a_part_of_a_batch_alone_does_not_move_the_scorer(llama: Theta, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters = Adapters(llama)
    adapters.add(PSI, rank=4, alpha=8, seed=0)
    training = make_training(adapters, micro_batch_size=1)
    head = next(training.scorer.layers.parameters())
    before, losses, part_loss = head.detach().clone(), [], training._part_loss

    def overflowing(*arguments: Any) -> Tensor:
        losses.append(part_loss(*arguments))
        return losses[-1] * (float("inf") if len(losses) == 2 else 1.0)

    monkeypatch.setattr(training, "_part_loss", overflowing)
    next(training.steps())
    assert len(losses) == 2
    assert head.grad is not None
    assert torch.equal(head, before)


@pytest.mark.usefixtures("muon_in_float32")
@pytest.mark.parametrize("size", [1, 2])
def test_a_step_of_the_scorer_in_parts_is_the_whole_step(llama: Theta, size: int) -> None:
    def trained(micro_batch_size: int | None) -> tuple[list[float], list[Tensor]]:
        adapters = shaken(deepcopy(llama), PSI)
        training = make_training(adapters, micro_batch_size=micro_batch_size)
        losses = list(islice(training.steps(), 3))
        return losses, [*training.scorer.layers.parameters(), *adapters.parameters(PSI).values()]

    (whole, weights), (parts, others) = trained(None), trained(size)
    assert parts == pytest.approx(whole, rel=1e-4)
    for one, other in zip(weights, others, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_training_moves_the_scorer(llama: Theta, kind: str) -> None:
    training = make_training(shaken(llama), kind)
    before = [parameter.detach().clone() for parameter in training.scorer.layers.parameters()]
    losses = list(training.steps())
    assert len(losses) == 8
    after = list(training.scorer.layers.parameters())
    assert all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    states = torch.randn(7, 32, generator=torch.Generator().manual_seed(0))
    assert chain_scores(training.scorer, states).shape == (7,)


def test_problems_without_room_for_a_second_chain_are_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
    adapters = shaken(as_theta(GPT2Config(vocab_size=len(tokenizer), **sizes), tokenizer), PSI)
    training = make_training(adapters)
    short, full, long = (EncodedProblem("", [5] * 14, [6] * count, [7, 8]) for count in (3, 25, 35))
    training.problems = [long, short, full]
    training.decoder = training.decoder.model_copy(update={"batch_size": 1})
    seen, loss = list[EncodedProblem](), training.loss
    training.loss = lambda batch, *given, **named: (seen.extend(batch), loss(batch, *given, **named))[1]  # type: ignore[method-assign]
    assert len(list(training.steps())) == 8
    assert {len(each.chain) for each in seen} == {3, 25}
    training.problems = [long]
    with pytest.raises(UsageError, match="no training problem"):
        next(training.steps())
