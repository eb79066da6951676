"""Forms become sentences: alternatives, tenses, people, objects, numbers, and words of the lexicon."""

import random

import pytest

from ccot_cli.data.grammar import PRONOUNS, Telling, lexicon, tidy


def telling(seed: int = 0, **numbers: int) -> Telling:
    return Telling(random.Random(seed), numbers)


def test_alternatives_may_nest_and_be_empty() -> None:
    texts = {telling(seed).write("[buys|finds [two|three]|] pens") for seed in range(60)}
    assert texts == {"Buys pens", "Finds two pens", "Finds three pens", "Pens"}


def test_brackets_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="brackets that do not match"):
        telling().write("[now|later pens")


def test_the_tense_is_the_same_throughout() -> None:
    each = telling()
    form = "{A} <has/had> pens and <buys/bought> cards."
    assert "has pens and buys" in each.write(form)
    each.is_past = True
    assert "had pens and bought" in each.write(form)


def test_a_slot_means_the_same_wherever_it_stands() -> None:
    each = telling()
    first, second = (each.write("{A} {xs} {place} {container} {color}") for _ in range(2))
    assert first == second


def test_other_slots_mean_something_else() -> None:
    for seed in range(50):
        words = telling(seed).write("{A}|{B}|{C}|{xs}|{ys}|{zs}|{color}|{color2}|{color3}".replace("|", ";")).split(";")
        assert len(set(words)) == len(words)


def test_no_two_objects_are_of_one_kind() -> None:
    for seed in range(200):
        nouns = telling(seed).fill("{xs:sport};{ys:sport};{zs:sport}").split(";")
        assert len({noun.split()[-1] for noun in nouns}) == 3


def test_pronouns_agree_with_their_person() -> None:
    for seed in range(20):
        each = telling(seed)
        each.write("{A} {B}")
        words = PRONOUNS[each.people["B"][0]]
        assert each.fill("{B.he} {B.his} {B.him}") == " ".join(words[key] for key in ("he", "his", "him"))
        assert each.fill("{He}") == PRONOUNS[each.people["A"][0]]["he"].capitalize()


def test_the_category_holds_if_an_earlier_mention_has_none() -> None:
    food = {plural for _, plural in lexicon().objects["food"]}
    for seed in range(20):
        text = telling(seed).fill("{xs} and {xs:food}")
        assert text.split(" and ")[0] in food


def test_singular_and_plural_belong_together() -> None:
    each = telling()
    assert (each.fill("{x}"), each.fill("{xs}")) == each.things["x"]
    assert (each.fill("{container}"), each.fill("{containers}")) == each.things["container"]


def test_small_numbers_may_be_words_but_never_prices() -> None:
    each = telling(a=12, b=30)
    each.in_words = True
    assert each.fill("{a} pens, {b} cards, ${a}") == "twelve pens, 30 cards, $12"


def test_an_unknown_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="no slot 'shoe'"):
        telling().write("{A} has a {shoe}.")


@pytest.mark.parametrize(
    ("rough", "tidied"),
    [
        ("he has  a apple .", "He has an apple."),
        ("mrs. Lee has a pen. she buys a old one", "Mrs. Lee has a pen. She buys an old one"),
        ("How many does Mr. lee need ?", "How many does Mr. lee need?"),
        ("a unit and a uncle", "A unit and an uncle"),
    ],
)
def test_spaces_articles_and_capitals_are_mended(rough: str, tidied: str) -> None:
    assert tidy(rough) == tidied


def test_every_word_of_the_lexicon_stands_once_in_its_list() -> None:
    words = lexicon()
    for nouns in [*words.objects.values(), *words.pairs.values()]:
        assert len({plural for _, plural in nouns}) == len(nouns)
    assert not set(words.names["women"]) & set(words.names["men"])


@pytest.mark.parametrize("kind", ["irrelevant", "background"])
def test_every_aside_can_be_written(kind: str) -> None:
    for form in getattr(lexicon(), kind):
        text = Telling.draw(random.Random(0), {}).aside().write(form)
        assert not set("{}[]<>|") & set(text)
        assert text.endswith((".", "!"))
