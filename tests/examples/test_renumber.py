"""Training problems told again with other numbers."""

import json
import random
import re
from pathlib import Path
from types import ModuleType

import pytest

from ccot_cli.data.arithmetic import equations_in
from examples.scripts import script


@pytest.fixture(scope="module")
def renumber() -> ModuleType:
    return script("renumber.py")


QUESTION = "There were 42 seeds. 36 went into the big garden, and 2 into each of the small ones. How many gardens?"
CHAIN = "42 - 36 = 6\n6 / 2 = 3"


def test_a_problem_is_told_again_with_a_chain_that_is_right(renumber: ModuleType) -> None:
    tellings = {renumber.retell(QUESTION, CHAIN, random.Random(seed)) for seed in range(40)} - {None}
    assert len(tellings) > 20
    for question, chain, answer in tellings:
        assert re.sub(r"\d+", "#", question) == re.sub(r"\d+", "#", QUESTION)
        first, second = equations_in(chain)
        given = list(map(int, re.findall(r"\d+", question)))
        assert [first.first, first.second, second.second] == given
        assert second.first == first.result == given[0] - given[1] > 0
        assert second.result == first.result / given[2] == int(answer)
        # As many digits as before.
        assert list(map(len, map(str, given))) == [2, 2, 1]


@pytest.mark.parametrize(
    ("question", "chain"),
    [
        ("He has 6 boxes of 6 pens.", "6 * 6 = 36"),  # which 6 is which?
        ("He has 0.5 of 6 pens.", "0.5 * 6 = 3"),
        ("He has 4 pens and 9 books, and 2 more.", "4 + 5 = 9"),  # 9 is a result and a number of the question
        ("He has some pens.", "2 + 2 = 4"),
        ("He has 3 pens.", "He has 3 pens."),
        ("Half of the 8 pens were sold for 2 dollars each.", "8 / 2 = 4"),  # which is half, which the price?
        ("20% of the 30 pens are in 5 boxes.", "30 / 5 = 6"),
    ],
)
def test_what_cannot_be_told_again_is_left(renumber: ModuleType, question: str, chain: str) -> None:
    assert renumber.retell(question, chain, random.Random(0)) is None


def test_constants_and_ones_stay(renumber: ModuleType) -> None:
    question, chain, answer = renumber.retell("1 man has 5 dozen eggs.", "5 * 12 = 60", random.Random(1))
    number = int(question.split()[3])
    assert question == f"1 man has {number} dozen eggs."
    assert number != 5
    assert (chain, answer) == (f"{number} * 12 = {number * 12}", str(number * 12))


def test_a_percentage_stays_with_what_it_is_divided_by(renumber: ModuleType) -> None:
    rng = random.Random(0)
    for share, divisor in (("20%", 5), ("25 %", 4), ("50 percent", 2), ("10 per cent", 10)):
        told = "Of {number} pens " + share + " are red."
        question, chain, answer = renumber.retell(told.format(number=40), f"40 / {divisor} = {40 // divisor}", rng)
        number = int(question.split()[1])
        assert (question, number != 40) == (told.format(number=number), True)
        assert (chain, answer) == (f"{number} / {divisor} = {number // divisor}", str(number // divisor))


def test_validation_problems_are_not_told_again(renumber: ModuleType, tmp_path: Path) -> None:
    rows = [
        {
            "question": f"Kid {name} has {a} pens and buys {a + 1}.",
            "answer": f"{a} + {a + 1} = {2 * a + 1}\n#### {2 * a + 1}",
        }
        for a, name in enumerate("abcdefghijklmnopqrstuvwxyz", 20)
    ]
    source, train, validation = (tmp_path / name for name in ("all.jsonl", "more.jsonl", "validation.jsonl"))
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    renumber.main(source, train, validation, tellings=3, limit=200)
    told, held_out = ([json.loads(line) for line in path.read_text().splitlines()] for path in (train, validation))
    assert len(held_out) == 2
    assert all(row in rows for row in held_out)
    assert len(told) > 60
    kids = {row["question"].split()[1] for row in told}
    assert kids == set("abcdefghijklmnopqrstuvwxyz") - {row["question"].split()[1] for row in held_out}
    assert [row for row in rows if row not in held_out] == sorted(
        (row for row in told if row in rows), key=lambda row: row["question"]
    )
