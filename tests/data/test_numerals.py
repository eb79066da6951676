"""Numbers in words."""

import re

import pytest

from ccot_cli.data.numerals import NUMERAL, read_numeral, with_large_in_digits, write_numeral


@pytest.mark.parametrize("hundred", ["hundred", "hundred and"])
def test_every_number_is_read_as_it_was_written(hundred: str) -> None:
    for number in range(1000):
        assert read_numeral(write_numeral(number).replace("hundred ", f"{hundred} ")) == number


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


@pytest.mark.parametrize("hundred", ["hundred", "hundred and"])
@pytest.mark.parametrize("joint", ["-", " "])
@pytest.mark.parametrize("form", ["{}", "{} pens, ", "He has {}.", "({})"])
def test_every_number_above_twenty_is_written_in_digits(form: str, joint: str, hundred: str) -> None:
    for number in range(1000):
        words = write_numeral(number).replace("hundred ", f"{hundred} ").replace("-", joint)
        for text in (words, words.capitalize()):
            assert with_large_in_digits(form.format(text)) == form.format(number if number > 20 else text)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("A hundred or a hundred and thirty-one", "100 or 131"),
        ("a hundred and 6, two hundred and of", "a hundred and 6, two hundred and of"),
        ("twenty one-dollar bills, forty one-way tickets", "twenty one-dollar bills, 40 one-way tickets"),
        ("a twenty-five-year-old, a thirty-minute walk", "a 25-year-old, a 30-minute walk"),
        ("fifty-fifty, thirtyfold, the fifties, hundreds", "fifty-fifty, thirtyfold, the fifties, hundreds"),
        ("sixteen sixty six", "sixteen 66"),
        ("two thousand, ten thousand and one", "two thousand, ten thousand and one"),
    ],
)
def test_only_whole_numbers_from_21_to_999_are_written_in_digits(text: str, written: str) -> None:
    assert with_large_in_digits(text) == written
