"""A question is read for its sentences, its words and its numbers."""

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
        ("Two hundred and four of fifty-one are zero.", 2),
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
            "Fifty of ninety-nine, a hundred, hundreds, 2 million and twenty-one thousand",
            ["hundreds", "million", "thousand"],
        ),
        ("FORTY-TWO pens, TWENTY-ONE cups, at three-thirty", ["FORTY", "TWENTY-ONE", "thirty"]),
        ("5k people, 1 200 cars, 12 1/2 and ¼", ["5k", "1 200", "12 1/2", "¼"]),
        ("She owes -$5, then \u22125 and $.50.", ["-$5", "\u22125", ".50"]),
        ("Two fifths of 30, a tenth of 20", ["Two fifths", "a tenth of"]),
        ("x - 3 = 9, 10 \u2212 5, twenty, fifty-fifty, three fourths, fifth graders", []),
    ],
)
def test_numbers_that_no_problem_has_are_found(text: str, beyond: list[str]) -> None:
    assert Question.read(text).beyond == beyond


def test_typographic_apostrophes_are_read_as_straight_ones() -> None:
    assert Question.read("Mia\u2019s 3 pens").tokens == ["Mia", "'s", "3", "pens"]


def test_a_title_does_not_end_a_sentence() -> None:
    text = "Mia has 3 pens. What is Mr. Hill's number? And Mrs. Gray's!"
    assert Question.read(text).sentences == ["Mia has 3 pens.", "What is Mr. Hill's number?", "And Mrs. Gray's!"]
