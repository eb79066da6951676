"""Numbers in words."""

import re

import pytest

from ccot_cli.data.numerals import NUMERAL, read_numeral, write_numeral


@pytest.mark.parametrize("conjunction", [False, True])
def test_every_number_is_read_as_it_was_written(conjunction: bool) -> None:
    for number in range(1000):
        assert read_numeral(write_numeral(number, conjunction=conjunction)) == number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "zero"),
        (12, "twelve"),
        (40, "forty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (714, "seven hundred fourteen"),
    ],
)
def test_numbers_are_written_as_in_books(number: int, text: str) -> None:
    assert write_numeral(number) == text


def test_and_may_follow_the_hundreds() -> None:
    assert write_numeral(321, conjunction=True) == "three hundred and twenty-one"
    assert write_numeral(300, conjunction=True) == "three hundred"


@pytest.mark.parametrize("number", [-1, 1000])
def test_other_numbers_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"{number} is not from 0 to 999"):
        write_numeral(number)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("seven of twenty-five, then thirty one", [7, 25, 31]),
        ("a hundred and two hundred and four", [100, 204]),
        ("one hundred and sold ten", [100, 10]),
        ("three-hundred-fifty", [350]),
        ("someone often weighs a stone", []),
        ("sixteen sixty six", [16, 66]),
        ("twenty ten", [20, 10]),
    ],
)
def test_numbers_are_found_as_whole_words(text: str, numbers: list[int]) -> None:
    assert [read_numeral(found) for found in re.findall(NUMERAL, text)] == numbers


@pytest.mark.parametrize("text", ["", "ten ten", "hundreds", "Seven", "twenty-ten", "1"])
def test_a_text_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no number in words"):
        read_numeral(text)
