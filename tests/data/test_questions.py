"""A question is read for its numbers and for what it asks."""

import pytest

from ccot_cli.data.questions import Question


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("How many pens does Mia have?", 0),
        ("Mia has 12 pens and twice as many books.", 2),
        ("A dozen eggs cost seven dollars.", 2),
        ("He sold half of 9 pies.", 2),
        ("One of 200 is 1/4.", 3),
    ],
)
def test_digits_number_words_and_shares_are_numbers(text: str, count: int) -> None:
    assert Question.read(text).num_numbers == count


@pytest.mark.parametrize(
    ("text", "beyond"),
    [
        ("12 plus 999 and 1/2 of 80 / 4, 8-3=5, 164/4, 2/3", []),
        ("It is -5 degrees.", ["-5"]),
        ("2.5 kilos, 1,200 grams at 9:30", ["2.5", "1,200", "9:30"]),
        ("20% or 5 percent of 1000", ["20%", "5 percent", "1000"]),
        ("She ate 3/8 of it.", ["3/8"]),
        (
            "Fifty of ninety-nine, a hundred, 2 million and twenty-one",
            ["Fifty", "ninety", "hundred", "million", "twenty-one"],
        ),
        ("5k people, 1 200 cars, 12 1/2 and ¼", ["5k", "1 200", "12 1/2", "¼"]),
        ("She owes -$5, then \u22125 and $.50.", ["-$5", "\u22125", ".50"]),
        ("Two fifths of 30, a tenth of 20", ["Two fifths", "a tenth of"]),
        ("x - 3 = 9, 10 \u2212 5, twenty, fifty-fifty, three fourths, fifth graders", []),
    ],
)
def test_numbers_that_no_problem_has_are_found(text: str, beyond: list[str]) -> None:
    assert Question.read(text).beyond == beyond


@pytest.mark.parametrize(
    "text",
    [
        "How many pens are left?",
        "What is the total cost?",
        "Find the number of pens.",
        "12 * 3 =",
        "? - 4 = 9",
        "Seven plus two",
        "Mia has 3 pens. What is Mr. Hill's number?",
        "Mia has 3 pens. What is Mrs. Hill's number?",
    ],
)
def test_these_ask_for_an_amount(text: str) -> None:
    assert Question.read(text).asks_amount


@pytest.mark.parametrize(
    "text",
    [
        "Who won 3 medals?",
        "What is her name?",
        "How do I open 2 cans?",
        "It costs 3 dollars.",
        "Play 2 songs.",
        "What is the best phone under 300 dollars?",
    ],
)
def test_these_ask_for_no_amount(text: str) -> None:
    assert not Question.read(text).asks_amount


@pytest.mark.parametrize(
    ("text", "unspoken"),
    [
        ("Mia has 3 red pens. How many pens does Mia have?", []),
        ("He fills 2 shelves. How many more books fit on a shelf of 9?", [["books", "fit"]]),
        ("She has 3 cherries. How many cherry pies is that?", []),
        ("How many wives did Henry 8 have, and how many sons?", [["wives"], ["sons"]]),
        ("How many are left of 9?", []),
        ("Leo is 9. How old is Mia?", [["old"]]),
        ("Leo is 9 years old. How old is Mia?", []),
        ("How far is it to exit 12?", [["far"]]),
        ("How far is it after 12 miles?", []),
    ],
)
def test_what_is_asked_for_and_not_spoken_of_is_found(text: str, unspoken: list[list[str]]) -> None:
    assert list(Question.read(text).unspoken()) == unspoken


def test_one_question_is_a_sentence_that_begins_by_asking() -> None:
    assert Question.read(" How many legs do 9 of Mr. Hill's cats have? ").is_one_question
    assert not Question.read("If 2 cats eat 4 mice, how many mice does each eat?").is_one_question
    assert not Question.read("How many pens are there? Mia has 3.").is_one_question


def test_a_condition_is_found_anywhere() -> None:
    assert Question.read("How many pens are left if 3 break?").has_condition
    assert not Question.read("How many pens are in 3 gift boxes?").has_condition


def test_typographic_apostrophes_are_read_as_straight_ones() -> None:
    assert Question.read("Mia\u2019s 3 pens").tokens == ["Mia", "'s", "3", "pens"]
