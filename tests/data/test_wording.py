"""Word problems are told from other texts by their words."""

import math

import pytest

from ccot_cli.data.questions import Question
from ccot_cli.data.wording import LEAST_TEXTS, Wording, features

PROBLEMS = [f"Mia has {n} pens. How many pens are left?" for n in range(2, 12)]
OTHERS = [f"Play {n} songs. Who sings?" for n in range(2, 7)]


@pytest.fixture(scope="module")
def wording() -> Wording:
    return Wording.learn(PROBLEMS, OTHERS)


def score(wording: Wording, text: str) -> float:
    return wording.score(features(Question.read(text)))


def test_features_are_words_and_pairs_of_the_text_and_of_its_last_sentence() -> None:
    text = features(Question.read("Ann saw Bo. Two?"))
    assert text == {
        *("ann", "saw", "NAME", ".", "NUM", "?", "END"),
        *("END ann", "ann saw", "saw NAME", "NAME .", ". NUM", "NUM ?", "? END"),
        *(">NUM", ">?", ">END"),
        *(">END NUM", ">NUM ?", ">? END"),
    }


def test_all_numbers_are_one_word_and_a_capital_makes_a_name_within_a_sentence_alone() -> None:
    same = ("In Rome I ate 12 figs.", "in Oslo I ate thirty-one figs.", "In Bern I ate two hundred and four figs.")
    assert len({frozenset(features(Question.read(each))) for each in same}) == 1
    assert features(Question.read("in rome I ate 12 figs.")) != features(Question.read(same[0]))


def test_texts_that_were_learned_are_told_apart_by_their_sign(wording: Wording) -> None:
    assert min(score(wording, each) for each in PROBLEMS) > 0 > max(score(wording, each) for each in OTHERS)


def test_a_text_of_unknown_words_speaks_for_nothing(wording: Wording) -> None:
    known = {feature for text in PROBLEMS + OTHERS for feature in features(Question.read(text))}
    assert wording.score({"zyx", "zyx wvu"}) == 0
    assert set(wording.weights) <= known


def test_the_score_is_the_sum_of_known_weights_over_the_root_of_their_number() -> None:
    wording = Wording({"a": 3.0, "b": 1.0, "c": -8.0})
    assert wording.score(["a", "b", "d"]) == pytest.approx(4 / math.sqrt(2))


def test_neither_the_order_nor_the_share_of_a_kind_matters(wording: Wording) -> None:
    assert Wording.learn(reversed(PROBLEMS), reversed(OTHERS)) == wording
    of_both = ["Two pens."] * 10
    assert score(Wording.learn((PROBLEMS + of_both) * 20, OTHERS + of_both), of_both[0]) == 0


def test_a_feature_of_few_texts_is_not_learned() -> None:
    rare = ["Play wings. Who sings?"] * LEAST_TEXTS
    assert "wings" not in Wording.learn(PROBLEMS + rare[1:], OTHERS).weights
    assert Wording.learn(PROBLEMS + rare, OTHERS).weights["wings"] > 0


def test_weights_are_whole_so_that_no_order_of_features_changes_a_score(wording: Wording) -> None:
    assert all(isinstance(each, int) for each in wording.weights.values())


def test_each_token_adds_its_word_and_the_pair_that_it_ends() -> None:
    wording = Wording({"who": -2.0, "who won": -1.0, "NUM": 0.5, "NUM END": 9.0})
    assert wording.of_tokens(Question.read("Who won 3")) == [-2, -1, 0.5]
