"""The measurement of when the model does not know: its changes, and its figures."""

import random
from types import ModuleType, SimpleNamespace

import pytest

from examples.scripts import script

QUESTION = "Mia has 12 pens. Mia buys 7 more pens. Ben has twice as many pens as Mia. How many pens does Ben have?"


@pytest.fixture(scope="module")
def domain() -> ModuleType:
    return script("research/domain.py")


def test_a_change_replaces_one_number_or_one_word(domain: ModuleType) -> None:
    for seed in range(20):
        for change in (domain.large_number, domain.other_start, domain.other_word):
            words = change(QUESTION, random.Random(seed)).split()
            assert sum(one != other for one, other in zip(QUESTION.split(), words, strict=True)) == 1
    assert {domain.large_number(QUESTION, random.Random(seed)).count("5000") for seed in range(20)} == {1}
    starts = {int(domain.other_start(QUESTION, random.Random(seed)).split()[2]) for seed in range(400)}
    assert starts == set(range(3, 61)) - {12}


def test_sentences_are_swapped_where_another_person_takes_over(domain: ModuleType) -> None:
    assert domain.swapped(QUESTION, random.Random(1)) == (
        "Mia has 12 pens. Ben has twice as many pens as Mia. Mia buys 7 more pens. How many pens does Ben have?"
    )
    assert domain.swapped(QUESTION.replace("Ben", "Mia"), random.Random(1)) == ""


def test_figures_count_what_is_outside_and_what_is_right(domain: ModuleType) -> None:
    def ask_all(questions: list[str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(answer="38", in_domain="eats" not in question) for question in questions]

    items = [domain.Item(QUESTION, "38"), domain.Item(QUESTION, "39"), domain.Item("Mia eats.", "40")]
    row = domain.measure(SimpleNamespace(ask_all=ask_all), "some", items)
    assert row == {
        "questions": "some",
        "n": 3,
        "outside": 1,
        "share": 1 / 3,
        "inside_match": 0.5,
        "outside_match": 0.0,
    }
    row = domain.measure(SimpleNamespace(ask_all=ask_all), "some", [domain.Item(QUESTION)])
    assert (row["outside"], row["inside_match"], row["outside_match"]) == (0, None, None)
