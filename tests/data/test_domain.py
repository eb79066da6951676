"""A record of training questions tells what of another question lies outside it."""

import json
import re
from itertools import islice
from pathlib import Path

import pytest
from conftest import GSM8K, SHARED
from examples.scripts import script

from ccot_cli.data.domain import EDGE, MOST_QUOTED, TOKEN, Domain, Sentence, read_sentences
from ccot_cli.data.word_problems import NOUNS, PEOPLE, WIDE, Split, generate

MWP = SHARED / "data" / "mwp" / "train.jsonl"
SHIPPED = Path(__file__).parents[2] / "src" / "ccot_cli" / "embedded" / "domain.json"
PLURALS = [plural for _, plural in NOUNS]
LEARNED = (
    "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?",
    "Ben has 3 books. Ben buys 9 more books. Ben loses 2 of the books. How many books does Ben have?",
    "Ben has 3 books. Mia has 5 more books than Ben. How many more books does Mia have than Ben?",
)
CLOSING = "How many pens does Mia have?"


@pytest.fixture(scope="module")
def small() -> Domain:
    """Three questions and what they hold."""
    return Domain.learn(LEARNED, people=PEOPLE, objects=PLURALS)


@pytest.fixture(scope="module")
def shipped() -> Domain:
    return Domain.load(SHIPPED)


def questions(count: int, split: Split, **options: object) -> list[str]:
    return [problem.question for problem in islice(generate(split, **options), count)]  # type: ignore[arg-type]


def patterns(question: str) -> list[str]:
    return [sentence.pattern for sentence in read_sentences(question, people=PEOPLE, objects=PLURALS)]


def test_a_pattern_has_slots_for_people_objects_and_numbers() -> None:
    [first, second] = read_sentences("Mia has 12 pens. Ben has 7 more pens than Mia.", people=PEOPLE, objects=PLURALS)
    assert first == Sentence("Mia has 12 pens.", "{other person} has {number} {other objects}.", ["12"])
    assert second == Sentence(
        "Ben has 7 more pens than Mia.",
        "{other person} has {number} more {same objects} than {same person}.",
        ["7"],
    )


def test_the_same_person_is_the_one_whom_the_sentence_before_named_first() -> None:
    assert patterns("Mia has 12 pens. Ben has 7 more pens than Mia. Mia sings. Ben sings. It rains. Ben sings.") == [
        "{other person} has {number} {other objects}.",
        "{other person} has {number} more {same objects} than {same person}.",
        "{other person} sings.",
        "{other person} sings.",
        "It rains.",
        "{other person} sings.",
    ]


def test_somebody_who_comes_later_in_a_sentence_is_known_or_a_stranger() -> None:
    assert patterns("Mia has pens. Mia asks Ben. Mia asks Ben and Zoe.")[1:] == [
        "{same person} asks {stranger}.",
        "{same person} asks {known person} and {stranger}.",
    ]


def test_objects_are_the_same_only_if_the_sentence_before_named_them() -> None:
    assert patterns("Mia has pens. Mia has books. Mia sells the books. Mia sings. Mia has books.")[1:] == [
        "{same person} has {other objects}.",
        "{same person} sells the {same objects}.",
        "{same person} sings.",
        "{same person} has {other objects}.",
    ]


@pytest.mark.parametrize("question", LEARNED)
def test_nothing_of_a_training_question_is_outside(small: Domain, question: str) -> None:
    assert small.outside(question) == ""


def test_other_people_other_objects_and_numbers_from_other_questions_are_inside(small: Domain) -> None:
    assert small.outside("Zoe has 3 shells. Zoe buys 9 more shells. How many shells does Zoe have?") == ""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("buys", "eats and buys", "unknown words: eats, and"),
        ("Mia has 12", "Sarah has twelve", "unknown words: Sarah, twelve"),
        ("Mia has", "mia has", "unknown words: mia"),
        ("Mia buys", "Mia's Ben buys", "unknown words: Mia's"),
        ("buys", "x" * 100, f"unknown words: {'x' * (MOST_QUOTED - 1)}…"),
        ("more pens", "pens more", "unknown sentence: 'Mia buys 7 pens more.'"),
        ("Mia buys", "Ben buys", "unknown sentence: 'Ben buys 7 more pens.'"),
        ("more pens", "more books", "unknown sentence: 'Mia buys 7 more books.'"),
        (". Mia buys", ".  Mia buys", "unknown sentence: ' Mia buys 7 more pens.'"),
        (". Mia buys", ".\nMia buys", r"unknown sentence: 'Mia has 12 pens.\nMia buys 7 more pens.'"),
        ("7", "5000", "numbers never seen there: 5000"),
        ("7", "5,000", "numbers never seen there: 5,000"),
        ("12", "2.5", "numbers never seen there: 2.5"),
        ("7", "07", "numbers never seen there: 07"),
        ("7", "9" * 5000, f"numbers never seen there: {'9' * (MOST_QUOTED - 1)}…"),
        # It is known as a first amount only.
        ("7", "12", "numbers never seen there: 12"),
        ("Mia buys 7 more pens. ", "", f"a sentence in an unknown place: '{CLOSING}'"),
        (
            CLOSING,
            f"Mia loses 2 of the pens. Mia buys 9 more pens. {CLOSING}",
            "a sentence in an unknown place: 'Mia buys 9 more pens.'",
        ),
        (f" {CLOSING}", "", "a sentence in an unknown place: 'Mia buys 7 more pens.'"),
        (CLOSING, f"{CLOSING} {CLOSING}", f"a sentence in an unknown place: '{CLOSING}'"),
    ],
    ids=range(20),
)
def test_a_change_is_outside_and_the_reason_quotes_it(small: Domain, old: str, new: str, reason: str) -> None:
    assert small.outside(LEARNED[0].replace(old, new)) == reason


@pytest.mark.parametrize("question", ["", " ", "5", "???", "{number}", "{same person} has {number} pens.", "\ud800"])
def test_odd_texts_are_outside(small: Domain, question: str) -> None:
    assert small.outside(question)


def test_a_question_that_is_longer_or_shorter_than_those_that_end_alike_is_outside(small: Domain) -> None:
    longer = LEARNED[0].replace("Mia buys 7 more pens.", "Mia buys 7 more pens. " * 2 + "Mia loses 2 of the pens.")
    learned = [longer, longer.replace(" Mia loses", " Mia buys 9 more pens. Mia loses")]
    domain = Domain.learn([*learned, LEARNED[2]], people=PEOPLE, objects=PLURALS)
    assert [domain.outside(question) for question in (*learned, LEARNED[2])] == ["", "", ""]
    again = learned[1].replace(" Mia loses", " Mia buys 9 more pens. Mia loses")
    assert domain.outside(again) == "7 sentences instead of 5 to 6"
    once = longer.replace(" Mia buys 7 more pens.", "", 1)
    assert domain.outside(once) == "4 sentences instead of 5 to 6"


def test_a_record_is_saved_and_loaded_and_does_not_depend_on_the_order(
    small: Domain, shipped: Domain, tmp_path: Path
) -> None:
    shipped.save(tmp_path / "shipped.json")
    assert (tmp_path / "shipped.json").read_bytes() == SHIPPED.read_bytes()
    small.save(tmp_path / "one.json")
    assert Domain.load(tmp_path / "one.json") == small
    Domain.learn(reversed(LEARNED), people=sorted(PEOPLE), objects=PLURALS[::-1]).save(tmp_path / "other.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "other.json").read_bytes()


def test_no_question_can_contain_a_slot(shipped: Domain) -> None:
    slots = {slot for pattern in shipped.patterns for slot in re.findall(r"\{(.*?)\}", pattern)}
    assert len(slots) == 6
    for slot in slots:
        assert any(token[0] not in shipped.words for token in TOKEN.finditer(slot)), slot


def test_the_shipped_record_is_small_and_knows_every_name_and_object(shipped: Domain) -> None:
    assert SHIPPED.stat().st_size < 20_000
    assert shipped.people == set(PEOPLE)
    assert shipped.objects == set(PLURALS)
    assert shipped.words > {"twice", "minutes", "note", "library", "Zoe", "shells"}
    assert shipped.patterns[EDGE].followers == {"{other person} has {number} {other objects}."}
    assert sorted(shipped.lengths.values()) == [(3, 9), (4, 9)] + [(4, 10)] * 3


@pytest.mark.parametrize("split", ["validation", "test"])
def test_few_questions_of_the_generator_are_called_outside(shipped: Domain, split: Split) -> None:
    assert sum(bool(shipped.outside(question)) for question in questions(1000, split, seed=2)) <= 3


@pytest.mark.parametrize("steps", [1, 9, 12])
def test_stories_of_other_lengths_are_outside(shipped: Domain, steps: int) -> None:
    stories = questions(200, "test", min_steps=steps, max_steps=steps)
    assert all("sentences instead of" in shipped.outside(story) for story in stories)


def test_a_number_that_training_did_not_have_there_is_outside(shipped: Domain) -> None:
    problems = islice(generate("test", limits=WIDE), 2000)
    wide = [each.question for each in problems if re.search(r"(buys|finds|picks|loses|uses) [3-9]\d", each.question)]
    assert len(wide) > 100
    assert all(shipped.outside(question) for question in wide)


@pytest.mark.parametrize("path", [MWP, GSM8K], ids=["mwp", "gsm8k"])
def test_no_question_that_people_wrote_is_called_inside(shipped: Domain, path: Path) -> None:
    if not path.exists():
        pytest.skip("not at hand")
    lines = path.read_text(encoding="utf-8").splitlines()
    inside = [line for line in lines if not shipped.outside(json.loads(line)["question"].strip())]
    assert len(lines) > 2000
    assert inside == []


@pytest.mark.slow
def test_the_shipped_record_is_what_the_problems_of_the_shipped_adapters_give(shipped: Domain) -> None:
    assert script("train_embedded.py").make_domain() == shipped
