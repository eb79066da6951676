"""Reading answers out of text, and grading them."""

import json
import re
import time

import pytest
from conftest import GSM8K
from hypothesis import given, settings
from hypothesis import strategies as st

from ccot_cli.data.answers import has_whole_answer, is_correct, read_answer, read_last_number
from ccot_cli.data.problems import split_solution

OFFICIAL = re.compile(r"#### (\-?[0-9\.\,]+)")
"""The pattern of GSM8K's own reader, which then removes the commas."""


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not there")
def test_against_gsm8ks_official_reader_on_every_reference_solution() -> None:
    with GSM8K.open(encoding="utf-8") as lines:
        solutions = [json.loads(line)["answer"] for line in lines]
    assert len(solutions) == 7473
    for solution in solutions:
        match = OFFICIAL.search(solution)
        assert match is not None
        official, reference = match[1].replace(",", ""), split_solution(solution)[1]
        assert (read_answer(solution) or "").replace(",", "") == official
        assert is_correct(official, reference)
        assert is_correct(f"{reference} dollars", official)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("6 * 7 = 42\n#### 42", "42"),
        ("#### 1,200", "1,200"),
        ("#### -3.5", "-3.5"),
        ("####42", "42"),
        ("#### 42 pens\nand more", "42 pens"),
        ("#### 42\n", "42"),
        ("#### $18", "$18"),
        ("#### 1/2", "1/2"),
        ("#### blue whale ", "blue whale"),
        ("#### 1\n#### 2", "2"),
        ("#### 1\n####", None),
        ("#### \n5", None),
        ("#### ,", ","),
        ("the answer is 42", None),
        ("", None),
    ],
)
def test_the_answer_comes_after_the_last_marker(text: str, answer: str | None) -> None:
    assert read_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7, so she has 7.", "7"),
        ("It costs $1,234.50!", "1234.50"),
        ("that is -12", "-12"),
        ("that is -$12", "-12"),
        ("that is \u22125", "\u22125"),
        ("7-4", "4"),
        ("7\u22124", "4"),
        ("a half is .5", ".5"),
        ("first 1, 2,", "2"),
        ("42 pens", "42"),
        ("none", None),
        ("$ - . ,", None),
        ("", None),
    ],
)
def test_the_last_number_is_read_if_there_is_no_marker(text: str, number: str | None) -> None:
    assert read_last_number(text) == number


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("42", "42"),
        ("$1,200.00", "1200"),
        ("42.", "42"),
        ("3.50", "3.5"),
        (" -5 ", "-5"),
        ("-$5", "-5"),
        ("+5", "5"),
        (".5", "0.5"),
        ("\u22125", "-5"),
        ("007", "7"),
        ("-0", "0"),
        ("Blue  Whale\n", "blue whale"),
        ("1/2", "1/2"),
    ],
)
def test_answers_that_mean_the_same_are_correct(prediction: str, reference: str) -> None:
    assert is_correct(prediction, reference)
    assert is_correct(reference, prediction)


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("41", "42"),
        ("-42", "42"),
        ("4.2", "42"),
        ("43 42", "42"),
        ("10 am", "10 pm"),
        ("2 1/2", "2 1/3"),
        ("0.30000000000000004", "0.3"),
        ("12345678901234567890123456789012345678901", "12345678901234567890123456789012345678902"),
        ("1e1", "10"),
        ("1e1", "1"),
        ("1e-1", "1"),
        ("5x2", "5"),
        ("18:30", "18"),
        ("٤٢", "42"),
        ("nan", "0"),
        ("-", "0"),
        (".", "0"),
        ("", "0"),
        ("1/2", "0.5"),
        ("blue", "blue whale"),
    ],
)
def test_other_answers_are_wrong(prediction: str, reference: str) -> None:
    assert not is_correct(prediction, reference)
    assert not is_correct(reference, prediction)


@pytest.mark.parametrize(
    "prediction",
    [
        *("42 pens", "42. It is", "$42.00 in all", " 42\n43", "42 43", "$ 42 dollars", "+42 dollars", "+$42%"),
        *("42%", "42cm", "42\u20ac", "42\u00b0C", "42;", "42!", "42?", "42)"),
    ],
)
def test_words_after_a_number_do_not_count_if_a_number_is_wanted(prediction: str) -> None:
    assert is_correct(prediction, "42")
    assert not is_correct("42", prediction)
    assert not is_correct(prediction, "43")
    assert is_correct(prediction, prediction)


@pytest.mark.parametrize(
    "hostile",
    [
        "1e999999999",
        "10^(10^10)",
        "9**9**9**9",
        "Infinity",
        "9" * 10**7,
        "0" * 10**7 + "1x",
        "1," * 10**6,
        "-" * 10**6,
        "$" * 10**6,
        "." * 10**6,
        "####" * 10**6,
        "#### " + " " * 10**6,
        " \n" * 10**6,
        "(" * 10**6,
        "\x00\ud800",
    ],
    ids=range(15),
)
def test_hostile_answers_are_wrong_within_seconds(hostile: str) -> None:
    started = time.process_time()
    assert not is_correct(hostile, "10")
    assert not is_correct(read_answer(f"#### {hostile}") or "", "10")
    read_last_number(hostile)
    assert time.process_time() - started < 2


@settings(deadline=None)
@given(st.text())
def test_every_text_is_read_and_is_the_same_as_itself(text: str) -> None:
    answer = read_answer(text)
    assert answer is None or (answer == answer.strip() != "")
    read_last_number(text)
    assert is_correct(text, text)


@given(st.integers(), st.integers())
def test_whole_numbers_are_equal_only_to_themselves(left: int, right: int) -> None:
    assert is_correct(f"{left:,}", str(right)) == (left == right)
    assert is_correct(f"${left:,}.00", str(left))
    assert read_answer(f"#### {left:,}") == f"{left:,}"
    assert read_last_number(f"it is {left:,}.") == str(left)


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("3 + 4 = 7\n#### 7\n", True),
        ("#### 7", False),
        ("#### \n", False),
        ("7\n", False),
        ("#### 7\n\nQ: #### 8", True),
    ],
)
def test_an_answer_is_whole_once_its_line_has_ended(text: str, is_whole: bool) -> None:
    assert has_whole_answer(text) == is_whole
