"""What follows from a question's numbers."""

from fractions import Fraction

import pytest

from ccot_cli.data.arithmetic import (
    Equation,
    check,
    equations_in,
    false_step,
    numbers_in,
    read_number,
    recompute,
    results_in,
    write_number,
)

TWICE = "Mia has 12 pens. Mia buys 7 more pens. Ben has twice as many pens as Mia. How many pens does Ben have?"


def results(*numbers: int | None) -> list[Fraction | None]:
    return [None if number is None else Fraction(number) for number in numbers]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (TWICE, ["12", "7", "2"]),
        ("Twenty-five pens at $1,234.50 each, and a dozen at 5%.", ["25", "1234.5", "12", "5", "100"]),
        ("It is -5 degrees; 7-4 is three.", ["-5", "7", "4", "3"]),
        ("Someone often has no stone.", []),
        ("A hundred of two hundred and six, and zero.", ["100", "206", "0"]),
        ("9" * 31 + " pens and 3", ["3"]),
        ("A fourth of 20, or two fourths?", ["4", "20", "2", "4"]),
        ("$.50 and .5 and 2.5, but the end.5 more", [".5", ".5", "2.5", "5"]),
        ("-$5, \u22125, -.5 and \u2212$1,200; 7\u22124", ["-5", "-5", "-.5", "-1200", "7", "4"]),
    ],
)
def test_a_question_tells_numbers_in_digits_and_in_words(question: str, expected: list[str]) -> None:
    assert numbers_in(question) == [Fraction(each) for each in expected]


def test_a_text_is_a_number_only_as_a_whole() -> None:
    assert (read_number(" 19"), read_number("3.5\n"), read_number("1,200")) == (19, Fraction(7, 2), 1200)
    assert (read_number(".5"), read_number("-$5"), read_number("\u22125")) == (Fraction(1, 2), -5, -5)
    assert [read_number(text) for text in (" pens", "19.", "=19", "", "two", "1 2", "1" * 31)] == [None] * 7


def test_a_result_that_follows_is_known_to_those_after_it() -> None:
    found = check(TWICE, results(19, 38), "38")
    assert found.equations == ["12 + 7 = 19", "2 * 19 = 38"]
    assert found.is_answer_verified
    # 38 alone is two operations away.
    assert check(TWICE, results(38), "38").equations == [""]


@pytest.mark.parametrize(
    ("question", "result", "equation"),
    [
        ("12 and 7", 5, "12 - 7 = 5"),
        ("12 and 7", 84, "12 * 7 = 84"),
        ("7 and 84", 12, "84 / 7 = 12"),
        ("12 and 7", 20, ""),
        ("12 and 7", 12, ""),
        ("12 and 1", 12, ""),
        ("12 and 0", 12, ""),
        ("12 and 0", 0, ""),
        ("12 and 7", 24, ""),
        ("12 and 12", 24, "12 + 12 = 24"),
        ("12 and 12", 0, "12 - 12 = 0"),
        ("0 and 0", 5, ""),
        ("8 and 4", 4, "8 - 4 = 4"),
    ],
)
def test_one_operation_on_two_numbers_that_changes_something_verifies(
    question: str, result: int, equation: str
) -> None:
    assert check(question, results(result), "").equations == [equation]


def test_the_answer_must_be_the_last_result_that_follows() -> None:
    assert check(TWICE, results(19, 38, None, 99), "38 pens").is_answer_verified
    assert not check(TWICE, results(19, 38), "19").is_answer_verified
    assert not check(TWICE, results(99), "99").is_answer_verified
    assert not check(TWICE, [], "38").is_answer_verified
    assert check("7 shared by two", [Fraction(7, 2)], "3.50").is_answer_verified


def test_a_fourth_is_a_known_number() -> None:
    found = check("What is a fourth of 20?", results(5), "5")
    assert found.equations == ["20 / 4 = 5"]
    assert found.is_answer_verified


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("12345.67", "12345.67"),
        ("1234567.5", "1234567.5"),
        ("-1/1024", "-0.0009765625"),
        ("200/3", "66.666667"),
        ("-30000001/3000000", "-10"),
        ("1" + "0" * 80, "1" + "0" * 80),
    ],
)
def test_a_number_is_written_exactly_if_a_decimal_can_be(number: str, text: str) -> None:
    assert write_number(Fraction(number)) == text


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("5*.1=.5, then 3*.25 = $.75", [".5", ".75"]),
        ("5-10=-$5 and 5-10=\u22125", ["-5", "-5"]),
        ("x = 3 * 4 = 12", ["12"]),
        ("x = 1,234.5 x $2 = 3 + (4) = 7", ["7"]),
        ("x = 34*2, y = 12/.5, z = 8 \u00d7 2", []),
        ("2 + 3 = 5. - 4 are left", ["5"]),
        ("2 + 3 = 5\n- 4 are left", ["5"]),
    ],
)
def test_a_result_is_a_number_after_an_equals_sign_that_no_operator_follows(chain: str, expected: list[str]) -> None:
    assert results_in(chain) == [Fraction(each) for each in expected]


CHAIN = "Adding 12 and 7 gives 12 + 7 = 19.\nThat is <<19*2=38>>38, and 38 - 8 = 30."


def test_the_steps_of_a_chain_are_its_equations() -> None:
    assert equations_in(CHAIN) == [
        Equation(Fraction(12), "+", Fraction(7), Fraction(19)),
        Equation(Fraction(19), "*", Fraction(2), Fraction(38)),
        Equation(Fraction(38), "-", Fraction(8), Fraction(30)),
    ]
    assert equations_in("9" * 31 + " + 1 = 2") == []


def test_a_step_may_be_about_money() -> None:
    assert equations_in("$5*3=$15") == [Equation(Fraction(5), "*", Fraction(3), Fraction(15))]


def test_a_false_equation_is_no_step() -> None:
    assert equations_in("10+20+30=60 and 80/100 * 10 = 8 and 5 / 0 = 5") == []


@pytest.mark.parametrize(
    ("chain", "step"),
    [
        ("Adding 2 and 3 gives 2 + 3 = 5.\nTaking 66 from 47 leaves 47 - 66 = 81.\n#### 81", "47 - 66 = 81"),
        ("10 - 3 = 7\n12 - 3 = 8", "12 - 3 = 8"),
        ("47 - 66 = -19, 48/2 = <<48/2=24>>24 and $1,200 * 2 = $2400", ""),
        ("It costs 192*100=$1920.", "192*100=$1920"),
        ("5 / 0 = 0", "5 / 0 = 0"),
        # Rounded, or cut off, but no further.
        ("10 / 3 = 3.33, 11 / 4 = 2 remainder 3, 1.333 * 3 = 4", ""),
        ("11 / 4 = 1", "11 / 4 = 1"),
        ("10 / 3 = 3.32", "10 / 3 = 3.32"),
        # Parts of something longer.
        ("20 + 30 + 10 = 60, $30 + $20 + $20 = $70, 2 x 3 + 4 = 10 and (1+2)-2=1", ""),
        ("8 - 3 = 5 * 1, 1/2 * 50 = 25, 50 * 20% = 10, 2 1/2 = 5/2, 5 / 5 = 5A, 8/3 = 24/y, 6:00+48=6:48", ""),
        ("", ""),
    ],
)
def test_a_false_step_is_one_whose_operation_gives_another_number(chain: str, step: str) -> None:
    assert false_step(chain) == step


def test_another_result_of_one_step_changes_those_that_read_it() -> None:
    steps = equations_in(CHAIN)
    assert [recompute(steps, step, Fraction(20)) for step in range(3)] == [32, 12, 20]
    assert [recompute(steps, step, steps[step].result) for step in range(3)] == [30] * 3
    assert recompute(equations_in("3 + 4 = 7 and 14 / 7 = 2"), 0, Fraction(0)) is None
    # A step that does not read the changed result is as it was.
    assert recompute(equations_in("3 + 4 = 7 and 2 + 3 = 5 and 7 * 5 = 35"), 0, Fraction(8)) == 40
