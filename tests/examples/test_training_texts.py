"""What θ learns from: people's problems with the generator's chains, and what is changed in them."""

import json
import random
import re
from pathlib import Path
from types import ModuleType

import pytest

from ccot_cli.data.arithmetic import equations_in
from examples.scripts import EXAMPLES, script


@pytest.fixture(scope="module")
def texts() -> ModuleType:
    return script("training_texts.py")


def problem(question: str, *steps: str, answer: str) -> dict[str, str]:
    return {"question": question, "answer": "\n".join([*steps, f"#### {answer}"])}


PENS = problem("Ana has 40 pens.  She sells 15 and buys 6.", "Left <<40-15=25>>25.", "Now <<25+6=31>>31.", answer="31")
DECIMAL = problem("Ana pays 0.5 dollars for 6 pens.", "She pays <<0.5*6=3>>3.", answer="3")
UNWRITTEN = problem("Ana has 7 pens and 8 more.", "Now 15.", answer="15")
LARGE = problem("Ana has 900 pens and 800 more.", "Now <<900+800=1700>>1700.", answer="1700")


def test_people_s_problems_of_whole_numbers_get_the_generator_s_chain(texts: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (PENS, DECIMAL, UNWRITTEN, LARGE)))
    [(question, solution)] = texts.read_people(path)
    assert question == "Ana has 40 pens. She sells 15 and buys 6."
    assert solution.split("\n") == [texts.write_step(40, "-", 15, 25), texts.write_step(25, "+", 6, 31), "#### 31"]


def test_a_problem_with_other_numbers_has_a_chain_that_is_right(texts: ModuleType) -> None:
    told = ("Ana has 40 pens. She sells 15 and buys 6.", "40 - 15 = 25.\n25 + 6 = 31.\n#### 31")
    seen = {texts.renumbered(random.Random(seed), told) for seed in range(30)}
    assert len(seen) > 15
    for question, solution in seen - {told}:
        had, sold, bought = map(int, re.findall(r"\d+", question))
        first, second = equations_in(solution)
        assert (first.first, first.second, first.result) == (had, sold, had - sold)
        assert (second.first, second.second, second.result) == (had - sold, bought, had - sold + bought)
        assert solution.endswith(f"#### {had - sold + bought}")


def test_a_problem_whose_numbers_cannot_be_replaced_stays(texts: ModuleType) -> None:
    told = ("Ana has 6 bags of 6 pens.", "6 times 6 makes 6 * 6 = 36.\n#### 36")
    assert texts.renumbered(random.Random(0), told) == told


def test_no_number_becomes_too_large_for_the_model(texts: ModuleType) -> None:
    told = ("A box has 40 rows of 20 pens.", "40 times 20 makes 40 * 20 = 800.\n#### 800")
    for seed in range(50):
        _, solution = texts.renumbered(random.Random(seed), told)
        assert all(int(number) <= 999 for number in re.findall(r"\d+", solution))


def test_some_problems_get_words_that_do_not_exist_in_question_and_chain(texts: ModuleType) -> None:
    told = ("Apples cost 4 dollars. Tom buys 3 apples.", "4 * 3 = 12 dollars for apples.\n#### 12")
    stems = texts.replaceable_stems()
    assert "apple" in stems
    new = [texts.with_new_words(random.Random(seed), stems, told) for seed in range(200)]
    changed = [each for each in new if each != told]
    assert 5 < len(changed) < 60
    for question, solution in changed:
        assert re.findall(r"\d+", question + solution) == ["4", "3", "4", "3", "12", "12"]
        assert ("pple" in question) == ("pple" in solution)


def test_some_questions_are_written_as_people_type_them(texts: ModuleType) -> None:
    told = ("Ana's box has 4 pens, 3 dolls, and a hat. How many toys?", "Adding 4 and 3 gives 4 + 3 = 7.\n#### 7")
    typed = [texts.as_typed(random.Random(seed), told) for seed in range(400)]
    changed = [each for each in typed if each != told]
    assert 20 < len(changed) < 100
    for question, solution in changed:
        assert re.sub(r"[^a-z0-9 ]", "", question.lower()) == re.sub(r"[^a-z0-9 ]", "", told[0].lower())
        assert solution == told[1]
    for lacks in (",", "'", "?", "A"):
        assert {lacks in question for question, _ in changed} == {True, False}


def test_some_questions_have_their_small_numbers_in_words(texts: ModuleType) -> None:
    told = (
        "9 cats, 42 dogs. 20 eels cost $7 at 3:15, or 25% less in rooms 5-7?",
        "Adding 9 and 42 gives 9 + 42 = 51.",
    )
    changed = [each for seed in range(400) if (each := texts.with_numerals(random.Random(seed), told)) != told]
    assert 20 < len(changed) < 80
    assert set(changed) == {("Nine cats, 42 dogs. Twenty eels cost $7 at 3:15, or 25% less in rooms 5-7?", told[1])}


def test_sums_to_practise_on_are_right_and_some_leave_nothing(texts: ModuleType) -> None:
    equations = [each for seed in range(100) for each in equations_in(texts.sums(random.Random(seed)))]
    assert len(equations) == 100 * texts.NUM_SUMS
    assert {each.sign for each in equations} == set("+-*/")
    assert all(0 <= each.result <= 999 for each in equations)
    nothing = [each for each in equations if not each.result]
    assert 5 < len(nothing) < 40
    assert all(each.sign == "-" and each.first == each.second for each in nothing)


def test_the_problems_in_writers_words_can_all_be_read_and_are_no_test_questions(texts: ModuleType) -> None:
    path = EXAMPLES / "written_problems.jsonl"
    rows = [*map(json.loads, path.read_text(encoding="utf-8").splitlines())]
    told = [*texts.read_people(path), *texts.read_people(path, held_out=True)]
    assert len(rows) == len(told) > 3000
    for _, solution in told:
        equations = equations_in(solution)
        assert len(equations) == solution.count("\n")
        assert solution.endswith(f"#### {equations[-1].result}")
    tested = [
        json.loads(line)["question"]
        for name in ("everyday.jsonl", "typed.jsonl")
        for line in (EXAMPLES / "research" / name).read_text(encoding="utf-8").splitlines()
    ]
    worded = [
        {re.sub(r"[\d\W]", "", each.lower()) for each in asked} for asked in ([row["question"] for row in rows], tested)
    ]
    assert len(worded[0]) == len(rows)
    assert not worded[0] & worded[1]
