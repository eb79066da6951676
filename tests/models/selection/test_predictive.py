"""What chain tokens announce."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice

import pytest
import torch
from conftest import as_theta, encoded_problems, tiny_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ccot_cli.config import ModelConfig
from ccot_cli.data.problems import Problem, split_solution
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.word_problems import generate
from ccot_cli.models.base.theta import Theta, load_theta
from ccot_cli.models.selection import predictive
from ccot_cli.models.selection.gold import gold_states
from ccot_cli.models.selection.predictive import PRIOR_COUNT, NumberedStates, announcements, last_states, surprisals
from ccot_cli.models.selection.selector import predictive_selector
from ccot_cli.tensors.select import best_of_each, num_kept


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


def generated(theta: Theta, count: int) -> list[EncodedProblem]:
    made = islice(generate("validation", seed=1, steps=(1, 3)), count)
    return theta.encoder.problems([Problem("", each.question, *split_solution(each.solution)) for each in made])


def test_the_equals_sign_announces_most_and_numbers_little() -> None:
    theta = load_theta(ModelConfig())
    problems = generated(theta, 60)
    scores = announcements(theta, problems, last_states(theta, problems, batch_tokens=8192))

    def score(text: str) -> float:
        return float(scores[theta.encoder.tokenizer(text, add_special_tokens=False).input_ids[-1]])

    assert scores.argmax() == theta.encoder.tokenizer(" =", add_special_tokens=False).input_ids[-1]
    assert score(" =") > 2 * score(".")
    assert score(" =") > score(" and") > score("\n")


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


def digit_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Learn a tokenizer that makes a token of every digit, and of the space before a number, as SmolLM2's does."""
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer, learner.decoder = splitter, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<s>", "</s>", "<pad>"]
    learner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=900, special_tokens=specials, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=learner, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def only_results_are_known(
    theta: Theta, problems: Sequence[EncodedProblem], states: NumberedStates
) -> Iterator[tuple[int, list[float]]]:
    """Stand in for a θ that is surprised at the first token of every word, but not after an equals sign."""
    for number, problem in enumerate(problems):
        words, text = theta.encoder.words(problem.chain), ""
        found = []
        for position, token in enumerate(problem.chain):
            text += theta.encoder.tokenizer.decode([token])
            is_next_new = words[position] not in words[position + 1 :]
            found.append(6.0 if is_next_new and not text.rstrip(" ").endswith("=") else 0.0)
        yield number, found


def test_results_are_announced_by_the_token_before_them_however_numbers_are_split(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictive, "surprisals", only_results_are_known)
    made = list(islice(generate("train", steps=(1, 4)), 40))
    texts = [text for problem in made for text in (problem.question, problem.solution)]
    for each, before_result in ((tokenizer, " ="), (digit_tokenizer(texts), " ")):
        theta = as_theta(tiny_config("llama", len(each)), each)
        chains = [split_solution(problem.solution) for problem in made]
        problems = theta.encoder.problems([Problem("", "How many?", *chain) for chain in chains])
        selector = predictive_selector(theta, problems, Decimal("0.1"), announcements(theta, problems, []))
        for problem in problems:
            lines, kept = theta.encoder.lines(problem.chain), selector.positions(problem)
            equals = {lines[p]: p for p, token in enumerate(problem.chain) if each.decode(token).strip() == "="}
            for equals_sign in [*equals.values()][: len(kept)]:
                position = equals_sign + (before_result == " ")
                assert each.decode(problem.chain[position]) == before_result
                assert each.decode(problem.chain[position + 1]).strip()[0].isdigit()
                assert position in kept


def test_where_every_word_is_a_token_the_choice_is_that_of_tokens() -> None:
    theta = load_theta(ModelConfig())
    problems = generated(theta, 40)
    scores_V = torch.randn(theta.model.config.vocab_size, generator=torch.Generator().manual_seed(1))
    for ratio in (Decimal("0.05"), Decimal("0.1"), Decimal("0.3")):
        selector = predictive_selector(theta, problems, ratio, scores_V)
        for problem in problems:
            assert theta.encoder.words(problem.chain) == [*range(len(problem.chain))]
            lines, count = theta.encoder.lines(problem.chain), num_kept(ratio, len(problem.chain))
            expected = best_of_each(scores_V[problem.chain], lines, count, rounds=selector.rounds)
            assert selector.positions(problem) == expected
