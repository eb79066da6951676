"""Pairs of words give probabilities."""

import pytest

from ccot_cli.data.bigrams import DISCOUNT, EDGE, NAME, NUMBER, RARE, RARE_COST, Bigrams

COMMON = {"has", "pens", "."}
TEXTS = [["Mia", "has", "12", "pens", "."], ["Ben", "has", "seven", "owls", "."]]


def learn(least: int = 1) -> Bigrams:
    return Bigrams.learn(TEXTS, common=COMMON, least=least)


def test_names_numbers_and_rare_words_are_one_word_each() -> None:
    assert learn().pairs == {
        EDGE: {NAME: 2},
        NAME: {"has": 2},
        "has": {NUMBER: 2},
        NUMBER: {"pens": 1, RARE: 1},
        "pens": {".": 1},
        RARE: {".": 1},
        ".": {EDGE: 2},
    }


def test_pairs_that_come_too_seldom_do_not_count() -> None:
    assert learn(least=2).pairs == {EDGE: {NAME: 2}, NAME: {"has": 2}, "has": {NUMBER: 2}, ".": {EDGE: 2}}


@pytest.mark.parametrize("before", [EDGE, NAME, NUMBER, ".", "never seen"])
def test_probabilities_of_known_words_sum_to_one_but_for_what_new_words_get(before: str) -> None:
    bigrams = learn()
    words = ["Mia", "has", "12", "pens", "."]
    rare, end = 2 ** (bigrams.scores(["owls"], before=before)[0] + RARE_COST), 2 ** bigrams.scores([], before=before)[0]
    total = sum(2 ** bigrams.scores([word], before=before)[0] for word in words) + rare + end
    # Each of seven words counts half too much when no pair is known.
    share = (
        DISCOUNT * len(bigrams.pairs[before]) / sum(bigrams.pairs[before].values()) if before in bigrams.pairs else 1
    )
    assert total == pytest.approx(1 + share * 7 * 0.5 / 12)


def test_a_usual_order_is_more_probable_than_an_unusual_one() -> None:
    usual, unusual = (sum(learn().scores(text.split())) for text in ("Zoe has 3 pens .", "pens 3 has Zoe ."))
    assert usual > unusual + 5


def test_scores_have_one_for_each_token_and_one_for_the_end() -> None:
    assert len(learn().scores(TEXTS[0])) == 6
