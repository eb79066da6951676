"""What chain tokens announce."""

import math
from collections import defaultdict

import pytest
import torch
from conftest import encoded_problems

from ccot_cli.config import ModelConfig
from ccot_cli.models.base.theta import Theta, load_theta
from ccot_cli.models.selection.gold import gold_states
from ccot_cli.models.selection.predictive import PRIOR_COUNT, announcements, last_states, surprisals


def test_surprisals_are_those_of_the_models_own_logits(theta: Theta) -> None:
    problems, indices = encoded_problems(theta, 3), [theta.num_layers]
    exact = gold_states(theta, problems, indices=indices, batch_tokens=300, dtype=torch.float32)
    found = dict(surprisals(theta, problems, ((number, states_JID[1:, 0]) for number, states_JID in exact)))
    stored = dict(surprisals(theta, problems, last_states(theta, problems, batch_tokens=300)))
    for number, problem in enumerate(problems):
        ids = [*problem.query, *problem.chain, *theta.encoder.answer_marker]
        logits = theta.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        start, length = len(problem.query), len(problem.chain)
        expected = [-logits[start + place, ids[start + place + 1]].item() for place in range(length)]
        assert found[number] == pytest.approx(expected, abs=1e-4)
        assert stored[number] == pytest.approx(expected, abs=0.1, rel=0.02)


def test_the_equals_sign_announces_most_and_numbers_little() -> None:
    theta = load_theta(ModelConfig())
    problems = encoded_problems(theta, 60)
    scores = announcements(theta, problems, last_states(theta, problems, batch_tokens=8192))

    def score(text: str) -> float:
        return float(scores[theta.encoder.tokenizer(text, add_special_tokens=False).input_ids[-1]])

    assert scores.argmax() == theta.encoder.tokenizer(" =", add_special_tokens=False).input_ids[-1]
    assert score(" =") > 2 * score(".")
    assert score(" =") > score(" has") > score(" left")


def test_announcements_weigh_a_guess_that_has_not_seen_the_occurrence_itself(llama: Theta) -> None:
    problems = encoded_problems(llama, 4)
    chains = [[*problem.chain, llama.encoder.answer_marker[0]] for problem in problems]
    pairs = [(chain, place) for chain in chains for place in range(len(chain) - 1)]
    known = dict(surprisals(llama, problems, last_states(llama, problems, batch_tokens=8192)))
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
    found = announcements(llama, problems, last_states(llama, problems, batch_tokens=8192))
    for token, each in told.items():
        expected = (sum(each) + PRIOR_COUNT * mean) / (len(each) + PRIOR_COUNT)
        assert float(found[token]) == pytest.approx(expected, abs=1e-3)
    assert float(found[vocabulary - 1]) == pytest.approx(mean, abs=1e-3)
