"""The embedded word problems: every form can be told, the arithmetic is right, and splits share nothing."""

import os
import random
import re
import subprocess
import sys
from itertools import islice
from operator import add, floordiv, mul, sub
from typing import Any

import pytest

from ccot_cli.data.families import (
    LARGEST,
    LARGEST_FACTOR,
    Family,
    Step,
    WordProblem,
    families,
    is_held_out,
    tell,
)
from ccot_cli.data.grammar import SMALL_NUMBERS
from ccot_cli.data.problems import split_solution
from ccot_cli.data.stories import MOST_STEPS, stories, tell_story
from ccot_cli.data.word_problems import SPLITS, Split, generate

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)\.$", re.MULTILINE)
COMPUTE = {"+": add, "-": sub, "*": mul, "/": floordiv}
MARKUP = re.compile(r"[{}\[\]<>|~\0]")


def take(count: int, split: Split = "train", **options: Any) -> list[WordProblem]:
    return list(islice(generate(split, **options), count))


@pytest.fixture(scope="module")
def problems() -> list[WordProblem]:
    return take(3000)


@pytest.fixture(scope="module")
def splits() -> dict[Split, list[WordProblem]]:
    return {split: take(400, split) for split in SPLITS}


def test_every_form_of_a_family_can_be_told() -> None:
    rng = random.Random(0)
    for family in families():
        for form in (family.forms + family.unseen) * 4:
            problem = tell(rng, family, form)
            chain, answer = split_solution(problem.solution)
            assert not MARKUP.search(problem.question + chain), problem
            assert chain.count("\n") + 1 == len(family.steps), problem
            assert problem.question[0] == problem.question[0].upper() or problem.question.islower(), problem
            assert int(answer) == problem.numbers[-1], problem


def test_every_form_names_all_given_numbers() -> None:
    for family in families():
        for form in family.forms + family.unseen:
            missing = [letter for letter in family.given if f"{{{letter}}}" not in form]
            assert not missing, form


def test_every_equation_is_right_and_the_last_one_gives_the_answer(problems: list[WordProblem]) -> None:
    for problem in problems:
        found = EQUATION.findall(problem.solution)
        chain, answer = split_solution(problem.solution)
        assert len(found) == chain.count("\n") + 1
        for left, sign, right, last in found:
            assert COMPUTE[sign](int(left), int(right)) == int(last)
            assert sign != "/" or int(left) % int(right) == 0
        assert found[-1][-1] == answer


def test_numbers_stay_where_a_small_model_can_compute(problems: list[WordProblem]) -> None:
    for problem in problems:
        assert all(1 <= number <= LARGEST for number in problem.numbers)
        for left, sign, right, *_, last in EQUATION.findall(problem.solution):
            if sign == "*":
                assert min(int(left), int(right)) <= LARGEST_FACTOR
            if sign == "/":
                assert min(int(right), int(last)) <= LARGEST_FACTOR


def test_the_numbers_of_a_story_stand_in_its_question() -> None:
    rng = random.Random(0)
    for _ in range(300):
        problem = tell_story(rng, rng.randint(1, 4), is_unseen=False)
        first = problem.numbers[0]
        word = SMALL_NUMBERS[first] if first < len(SMALL_NUMBERS) else "none"
        assert re.search(rf"\b({first}|{word})\b", problem.question, re.IGNORECASE), problem


def test_same_seed_tells_the_same_problems_in_any_process() -> None:
    script = (
        "from itertools import islice; from ccot_cli.data.word_problems import generate;"
        "print([each.question for each in islice(generate('train', seed=3), 100)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_other_seeds_tell_other_problems() -> None:
    assert not {each.question for each in take(200, seed=1)} & {each.question for each in take(200, seed=2)}


@pytest.mark.parametrize("split", SPLITS)
def test_first_problems_do_not_depend_on_how_many_are_taken(split: Split) -> None:
    assert take(50, split) == take(100, split)[:50]


def test_no_two_splits_share_a_question(splits: dict[Split, list[WordProblem]]) -> None:
    questions = [problem.question for problems in splits.values() for problem in problems]
    assert len(set(questions)) == len(questions)


def test_training_shares_no_numbers_of_a_family_with_other_splits(
    splits: dict[Split, list[WordProblem]],
) -> None:
    signatures = {split: {(each.family, each.numbers) for each in problems} for split, problems in splits.items()}
    for split in ("validation", "test", "unseen"):
        assert not signatures["train"] & signatures[split]
    assert not signatures["validation"] & (signatures["test"] | signatures["unseen"])


def test_only_unseen_has_forms_that_are_held_out(splits: dict[Split, list[WordProblem]]) -> None:
    told = {split: [each for each in problems if each.form in FORMS] for split, problems in splits.items()}
    assert all(is_held_out(each.form) for each in told.pop("unseen"))
    assert not any(is_held_out(each.form) for problems in told.values() for each in problems)


FORMS = {form for family in families() for form in family.forms + family.unseen}


def test_a_tenth_of_the_forms_is_held_out() -> None:
    assert 0.05 < sum(map(is_held_out, FORMS)) / len(FORMS) < 0.15


@pytest.mark.parametrize("steps", [(1, 1), (2, 3), (MOST_STEPS, MOST_STEPS)])
def test_the_range_of_steps_is_kept(steps: tuple[int, int]) -> None:
    for problem in take(100, steps=steps):
        assert steps[0] <= len(EQUATION.findall(problem.solution)) <= steps[1]


def test_every_event_of_the_stories_is_told() -> None:
    rng = random.Random(0)
    told = {name for _ in range(1500) for name in tell_story(rng, 5, is_unseen=False).family[7:].split(", ")}
    assert told == {event.name for event in stories().events}


def test_a_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no split 'dev'"):
        next(generate("dev"))  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [(0, 3), (3, 2), (1, MOST_STEPS + 1)])
def test_an_impossible_range_of_steps_is_refused(steps: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="impossible range of steps"):
        next(generate("train", steps=steps))


def test_a_result_that_is_not_whole_or_too_hard_is_none() -> None:
    def result(text: str, **numbers: int) -> int | None:
        return Step.parse(text).compute(numbers)

    assert result("p = a / b", a=7, b=2) is None
    assert result("p = a - b", a=2, b=2) is None
    assert result("p = a * b", a=13, b=13) is None
    assert result("p = a + b", a=999, b=1) is None
    assert result("p = a * 12", a=5) == 60


def test_a_family_that_does_not_fit_together_is_refused_by_name() -> None:
    good = {"steps": ["p = a + b"], "forms": "{a} and {b}?"}
    assert Family.parse("sum", "sums", good).given == ["a", "b"]
    with pytest.raises(ValueError, match="no step: 'p = a'"):
        Family.parse("sum", "sums", good | {"steps": ["p = a"]})
