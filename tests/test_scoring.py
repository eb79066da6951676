"""Scores of chain tokens: what they announce, and what a trained scorer makes of them."""

import math
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from decimal import Decimal

import pytest
import torch
from conftest import MakeTheta, encoded_problems, shaken

from ccot_cli.config import ModelConfig
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.theta import Theta, load_theta
from ccot_cli.models.selection import scorer
from ccot_cli.models.selection.predictive import PRIOR_COUNT, announcements, surprisals
from ccot_cli.models.selection.scorer import Scorer, chain_scores
from ccot_cli.models.training.psi import answer_loss
from ccot_cli.models.training.scorer import CHAIN_WEIGHT, ScorerTraining
from ccot_cli.tensors.select import best, num_kept

LAYER = 2
RATIO = Decimal("0.2")


def test_surprisals_are_those_of_the_models_own_logits(theta: Theta) -> None:
    problems = encoded_problems(theta, 3)
    found = dict(surprisals(theta, problems, batch_tokens=300))
    for number, problem in enumerate(problems):
        ids = [*problem.query, *problem.chain, *theta.encoder.answer_marker]
        logits = theta.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        start, length = len(problem.query), len(problem.chain)
        expected = [-logits[start + place, ids[start + place + 1]].item() for place in range(length)]
        assert found[number] == pytest.approx(expected, abs=1e-4)


def test_the_equals_sign_announces_most_and_numbers_little() -> None:
    theta = load_theta(ModelConfig())
    scores = announcements(theta, encoded_problems(theta, 60), batch_tokens=8192)

    def score(text: str) -> float:
        return float(scores[theta.encoder.tokenizer(text, add_special_tokens=False).input_ids[-1]])

    assert scores.argmax() == theta.encoder.tokenizer(" =", add_special_tokens=False).input_ids[-1]
    assert score(" =") > 2 * score(".")
    assert score(" =") > score(" has") > score(" left")


def test_announcements_weigh_a_guess_that_has_not_seen_the_occurrence_itself(llama: Theta) -> None:
    problems = encoded_problems(llama, 4)
    chains = [[*problem.chain, llama.encoder.answer_marker[0]] for problem in problems]
    pairs = [(chain, place) for chain in chains for place in range(len(chain) - 1)]
    known = dict(surprisals(llama, problems, batch_tokens=8192))
    vocabulary, told = llama.model.config.vocab_size, defaultdict[int, list[float]](list)
    followed = [chain[place + 1] for chain, place in pairs]
    for at, (chain, place) in enumerate(pairs):
        token, following = chain[place], chain[place + 1]
        others = [c[p + 1] for number, (c, p) in enumerate(pairs) if number != at and c[p] == token]
        common = (followed.count(following) + 1) / (len(followed) + vocabulary)
        bigram = (others.count(following) + 2 * common) / (len(others) + 2)
        seen = chain[: place + 1]
        guess = 0.5 * bigram + 0.5 * seen.count(following) / len(seen)
        told[token].append(-math.log(guess) - known[chains.index(chain)][place])
    mean = sum(map(sum, told.values())) / len(pairs)
    found = announcements(llama, problems, batch_tokens=8192)
    for token, each in told.items():
        expected = (sum(each) + PRIOR_COUNT * mean) / (len(each) + PRIOR_COUNT)
        assert float(found[token]) == pytest.approx(expected, abs=1e-3)
    assert float(found[vocabulary - 1]) == pytest.approx(mean, abs=1e-3)


def test_jitter_is_gumbels_and_new_for_every_batch(llama: Theta) -> None:
    problems, generator = encoded_problems(llama, 40), torch.Generator().manual_seed(0)
    first, second = (scorer._jitter(problems, generator) for _ in range(2))
    assert float(first.mean()) == pytest.approx(0.5772, abs=0.05)
    assert float(first.var()) == pytest.approx(torch.pi**2 / 6, abs=0.2)
    assert not torch.equal(first, second)


@torch.no_grad()
def test_stored_states_are_scored_in_the_norm_s_own_precision(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    theta.model.bfloat16()
    states = torch.randn(5, theta.model.config.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert chain_scores(Scorer(theta, "linear", seed=0), states).isfinite().all()


def test_a_gradient_that_is_not_finite_leaves_the_scorer_alone(llama: Theta) -> None:
    adapters = Adapters(llama)
    adapters.add(PSI, rank=4, alpha=8, seed=0)
    training = make_training(llama, adapters)
    head = next(training.scorer.layers.parameters())
    before = head.detach().clone()
    handle = head.register_hook(lambda gradient: gradient * float("nan"))
    steps = training.steps()
    next(steps)
    assert torch.equal(head, before)
    handle.remove()
    next(steps)
    assert not torch.equal(head, before)


def make_training(theta: Theta, adapters: Adapters, kind: str = "linear") -> ScorerTraining:
    return ScorerTraining(
        adapters,
        Scorer(theta, kind, seed=0),  # type: ignore[arg-type]
        encoded_problems(theta, 6),
        layer=LAYER,
        num_steps=8,
        batch_size=3,
        learning_rate=1e-2,
        optimiser="muon",
        seed=0,
    )


@pytest.mark.parametrize("size", [1, 2])
def test_a_step_of_the_scorer_in_parts_is_the_whole_step(llama: Theta, size: int) -> None:
    def trained(micro_batch_size: int | None) -> tuple[list[float], list[torch.Tensor]]:
        theta = deepcopy(llama)
        adapters = shaken(theta, PSI)
        training = make_training(adapters)
        training.micro_batch_size = micro_batch_size
        losses = [loss for loss, _ in zip(training.steps(), range(3), strict=False)]
        return losses, [*training.scorer.layers.parameters(), *adapters.parameters(PSI).values()]

    (whole, weights), (parts, others) = trained(None), trained(size)
    assert parts == pytest.approx(whole, rel=1e-4)
    for one, other in zip(weights, others, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


def slow_loss(training: ScorerTraining, batch: Sequence[EncodedProblem], push: float = 0.0, pushed: int = 0) -> float:
    """One problem at a time, with `push` added to the attention logits of one of the first problem's columns."""
    theta, total = training.theta, []
    for row, problem in enumerate(batch):
        gold, states = training._gold([problem])
        scores = training.scorer(states)[0]
        start, length = len(problem.query), len(problem.chain)
        kept = [start + position for position in best(scores[start:], num_kept(RATIO, length))]
        bias = torch.full((1, start + length), float("-inf"))
        bias[0, :start] = 0.0
        bias[0, kept] = 0.0
        if row == 0:
            bias[0, pushed] += push
        answer, chain = gold.copy(), gold.copy()
        answer.bias_BS = chain.bias_BS = bias
        total.append(
            (
                answer_loss(theta, training.adapters, answer, [theta.encoder.answer_marker], [problem.answer]),
                answer_loss(theta, training.adapters, chain, [problem.query[-1:]], [problem.chain]),
                len(problem.answer),
                length,
            )
        )
    answers = sum(float(loss) * count for loss, _, count, _ in total) / sum(count for *_, count, _ in total)
    chains = sum(float(loss) * count for _, loss, _, count in total) / sum(count for *_, count in total)
    return answers + CHAIN_WEIGHT * chains


def test_the_scorer_learns_from_states_at_its_layer(theta: Theta) -> None:
    training = make_training(theta, shaken(theta, PSI))
    [problem, *_] = training.problems
    _, states = training._gold([problem])
    whole = theta.model(input_ids=torch.tensor([[*problem.query, *problem.chain]]), output_hidden_states=True)
    torch.testing.assert_close(states, whole.hidden_states[LAYER])


@torch.no_grad()
def chosen_column(training: ScorerTraining, problem: EncodedProblem) -> int:
    _, states = training._gold([problem])
    start = len(problem.query)
    return start + best(training.scorer(states)[0, start:], num_kept(RATIO, len(problem.chain)))[0]


def test_the_scorers_gradient_is_what_pushing_a_chosen_tokens_attention_does(theta: Theta) -> None:
    adapters = shaken(theta, PSI)
    training = make_training(adapters)
    batch = training.problems[:3]
    column = chosen_column(training, batch[0])
    gold, states = training._gold(batch)
    scores = training.scorer(states).detach().requires_grad_()
    training.scorer.forward = lambda states_BMD: scores  # type: ignore[method-assign]
    training._gold = lambda batch: (gold.copy(), states)  # type: ignore[method-assign]
    loss = training.loss(batch, RATIO)
    [gradient] = torch.autograd.grad(loss, scores)
    fresh = make_training(adapters)
    with torch.no_grad():
        assert float(loss) == pytest.approx(slow_loss(fresh, batch), abs=1e-4)
        push = 0.05
        sides = [slow_loss(fresh, batch, sign * push, column) for sign in (1, -1)]
    assert float(gradient[0, column]) == pytest.approx((sides[0] - sides[1]) / (2 * push), abs=2e-3, rel=5e-2)
    # What was not chosen is not felt.
    felt = gradient[0].nonzero().flatten().tolist()
    assert len(felt) <= num_kept(RATIO, len(batch[0].chain))


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_training_moves_the_scorer(llama: Theta, kind: str) -> None:
    adapters = shaken(llama)
    training = make_training(llama, adapters, kind)
    before = [parameter.detach().clone() for parameter in training.scorer.layers.parameters()]
    losses = list(training.steps())
    assert len(losses) == 8
    after = list(training.scorer.layers.parameters())
    assert all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    states = torch.randn(7, 32, generator=torch.Generator().manual_seed(0))
    assert chain_scores(training.scorer, states).shape == (7,)
