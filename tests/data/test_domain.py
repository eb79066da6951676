"""A record of training questions tells what of another question lies outside it."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from conftest import GSM8K, SHARED
from examples.scripts import script

from ccot_cli.data.domain import MOST_QUOTED, Domain
from ccot_cli.data.word_problems import Split, generate
from ccot_cli.stages.ask import DOMAIN_FILE

MWP = SHARED / "data" / "mwp" / "train.jsonl"
LEARNED = (
    "Mia has 12 pens. She buys 7 more pens. How many pens does she have now?",
    "Ben sells 3 books and 4 games for 9 dollars each. How much money does he get?",
)
OTHERS = ("Who won 3 medals in Paris?", "Play 2 songs of Abba, then stop after 9 minutes.")
KNOWN = "Zoe has 5 books. She buys 4 more books. How many books does she have now?"


@pytest.fixture(scope="module")
def small() -> Domain:
    """Two questions and two other texts, often enough for their words to count."""
    return Domain.learn(LEARNED * 100, OTHERS * 100)


@pytest.fixture(scope="module")
def shipped() -> Domain:
    return Domain.load(DOMAIN_FILE)


def share_outside(domain: Domain, questions: list[str]) -> float:
    return sum(bool(domain.outside(question)) for question in questions) / len(questions)


@pytest.mark.parametrize("question", [*LEARNED, KNOWN, f"  {KNOWN}\n", KNOWN.replace(". ", ".\n")])
def test_training_questions_and_those_in_the_same_words_are_inside(small: Domain, question: str) -> None:
    assert small.outside(question) == ""


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("Mia has pens. How many pens does she have now?", "there is no number in it"),
        (KNOWN.replace("4", "2.5"), "numbers of a kind that it has hardly read: 2.5"),
        (KNOWN.replace("4", "9" * 99), f"numbers of a kind that it has hardly read: {'9' * (MOST_QUOTED - 1)}…"),
        ("Who won 4 books?", "it is not worded like a word problem: 'Who won 4 books?'"),
        (
            "Mia has 12 pens. Play 2 songs of Queen, then stop after 5 minutes.",
            "it is not worded like a word problem: 'songs of Queen, then'",
        ),
        ("She buys 1 2 3 4 5. How much money does she get?", "5 numbers, where training had at most 3"),
        (
            KNOWN.replace("She", "She buys more books and books. " * 3 + "She"),
            "40 words and signs, where training had at most 19",
        ),
    ],
)
def test_what_is_outside_gets_a_reason_that_quotes_it(small: Domain, question: str, reason: str) -> None:
    assert small.outside(question) == reason


@pytest.mark.parametrize("question", ["", " ", "5", "???", "\ud800", "{}", "7 7 7", "=", "how many", "how many 1 1"])
def test_odd_texts_are_outside(shipped: Domain, question: str) -> None:
    assert shipped.outside(question)


def test_a_record_is_saved_and_loaded_and_does_not_depend_on_the_order(
    small: Domain, shipped: Domain, tmp_path: Path
) -> None:
    shipped.save(tmp_path / "shipped.json")
    assert (tmp_path / "shipped.json").read_bytes() == DOMAIN_FILE.read_bytes()
    strict = replace(small, least_confidence=0.5)
    strict.save(tmp_path / "one.json")
    assert Domain.load(tmp_path / "one.json") == strict
    Domain.learn(reversed(LEARNED * 100), reversed(OTHERS * 100), least_confidence=0.5).save(tmp_path / "other.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "other.json").read_bytes()


def test_the_shipped_record_is_small(shipped: Domain) -> None:
    assert DOMAIN_FILE.stat().st_size < 350_000
    assert shipped.wording.weights["how many"] > 0 > shipped.wording.weights["who"]


@pytest.mark.parametrize(("split", "most"), [("validation", 0.02), ("test", 0.01), ("unseen", 0.035)])
def test_few_questions_of_the_generator_are_called_outside(shipped: Domain, split: Split, most: float) -> None:
    assert share_outside(shipped, [each.question for each in islice(generate(split, seed=2), 1000)]) <= most


@pytest.mark.parametrize(
    ("section", "least"),
    [
        ("no number", 1.0),
        ("one number", 0.93),
        ("several numbers", 0.96),
        ("how many, but no problem", 0.75),
        ("problems beyond the numbers", 1.0),
        ("report: one number", 0.95),
        ("report: several numbers", 0.95),
        ("report: how many, but no problem", 0.6),
    ],
)
def test_nearly_all_texts_that_are_no_problems_are_called_outside(shipped: Domain, section: str, least: float) -> None:
    texts = [item.question for item in dict(script("research/domain.py").read_texts())[section]]
    assert share_outside(shipped, texts) >= least


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("What is the capital of France?", "there is no number in it"),
        ("Who won 3 gold medals in Paris?", "it is not worded like a word problem: 'Who won 3 gold medals'"),
        ("How many wives did Henry 8 have?", "it is not worded like a word problem: 'wives did Henry 8 have'"),
    ],
)
def test_general_knowledge_is_outside_the_shipped_record(shipped: Domain, question: str, reason: str) -> None:
    assert shipped.outside(question) == reason


@pytest.mark.parametrize(("path", "most"), [(MWP, 0.05), (GSM8K, 0.2)], ids=["mwp", "gsm8k"])
def test_most_problems_of_people_that_are_in_reach_are_called_inside(shipped: Domain, path: Path, most: float) -> None:
    if not path.exists():
        pytest.skip("not at hand")
    people = script("research/people.py")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    questions = [
        row["question"]
        for row in rows
        if people.is_in_reach(row["question"], row["answer"]) and people.is_for_test(row["question"])
    ]
    assert len(questions) > 700
    assert share_outside(shipped, questions) <= most


@pytest.mark.slow
def test_the_shipped_record_is_what_its_script_makes(shipped: Domain) -> None:
    assert script("train_embedded.py").make_domain() == shipped
