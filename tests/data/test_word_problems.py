"""The embedded word problems: reproducible, disjoint, and arithmetically right."""

import hashlib
import re
from collections import Counter
from itertools import islice
from operator import add, floordiv, mul, sub
from typing import Any

import pytest

from ccot_cli.data.problems import split_solution
from ccot_cli.data.word_problems import (
    CLOSING,
    FAMILIES,
    PEOPLE,
    SPLITS,
    WIDE,
    Limits,
    Split,
    WordProblem,
    generate,
)

ANNOTATED = re.compile(r"(\d+) (.) (\d+) = <<(\d+)(.)(\d+)=(\d+)>>(\d+)")
COMPUTE = {"+": add, "-": sub, "*": mul, "/": floordiv}


def take(count: int, split: Split = "train", **options: Any) -> list[WordProblem]:
    return list(islice(generate(split, **options), count))


@pytest.fixture(scope="module", params=[Limits(), WIDE], ids=["default", "wide"])
def problems(request: pytest.FixtureRequest) -> list[WordProblem]:
    return take(2500, limits=request.param)


def test_same_seed_tells_the_same_problems() -> None:
    assert take(200, seed=3) == take(200, seed=3)


def test_a_problem_is_written_as_gsm8k_writes_it() -> None:
    first = take(1)[0]
    assert first.question == (
        "Emma has 51 candles. Emma loses 13 of the candles. Mia has half as many candles as Emma."
        " How many candles does Mia have?"
    )
    assert first.solution == (
        "After losing 13, Emma still has 51 - 13 = <<51-13=38>>38 candles.\n"
        "Half as many is 38 / 2 = <<38/2=19>>19, so Mia has 19.\n"
        "#### 19"
    )


def test_default_limits_keep_one_part_of_a_sum_and_the_groups_small() -> None:
    smaller, groups = sums_and_groups(take(1000))
    assert (max(smaller), max(groups)) == (Limits().change, Limits().group)


def test_wide_limits_allow_larger_sums_and_groups() -> None:
    smaller, groups = sums_and_groups(take(1000, limits=WIDE))
    assert max(smaller) > Limits().change
    assert max(groups) == WIDE.group > Limits().group


def sums_and_groups(problems: list[WordProblem]) -> tuple[list[int], list[int]]:
    """The smaller part of every addition, and the size of every group that is filled."""
    sums = [found for problem in problems for found in ANNOTATED.findall(problem.solution)]
    smaller = [min(int(left), int(right)) for left, sign, right, *_ in sums if sign == "+"]
    groups = [int(size) for problem in problems for size in re.findall(r"fills \w+ of (\d+)", problem.question)]
    return smaller, groups


def test_other_seeds_tell_other_problems() -> None:
    questions = [problem.question for seed in range(4) for problem in take(200, seed=seed)]
    assert len(set(questions)) > 0.99 * len(questions)


@pytest.mark.parametrize("split", SPLITS)
def test_first_problems_do_not_depend_on_how_many_are_taken(split: Split) -> None:
    assert take(60, split)[:20] == take(20, split)


def test_a_split_repeats_no_question() -> None:
    # Stories of one step are few enough to meet again.
    assert len({problem.question for problem in take(6000, min_steps=1, max_steps=1)}) == 6000


@pytest.mark.parametrize(
    ("num_train", "num_others", "steps"),
    [
        # Stories of one step are few enough to meet in two splits.
        (3000, 300, {"min_steps": 1, "max_steps": 1}),
        pytest.param(40_000, 4000, {}, marks=pytest.mark.slow),
    ],
)
def test_splits_share_no_question_and_no_families_with_the_same_numbers(
    num_train: int, num_others: int, steps: dict[str, int]
) -> None:
    splits = [take(num_train, **steps), take(num_others, "validation", **steps), take(num_others, "test", **steps)]
    for signature in (lambda problem: problem.question, lambda problem: (problem.families, problem.numbers)):
        train, validation, test = ({signature(problem) for problem in split} for split in splits)
        assert not train & validation
        assert not train & test
        assert not validation & test


def test_equal_questions_have_equal_solutions_and_signatures() -> None:
    # Otherwise a question could be in two splits.
    solutions: dict[str, WordProblem] = {}
    for seed in range(300):
        for problem in take(30, seed=seed, min_steps=1, max_steps=1):
            assert solutions.setdefault(problem.question, problem) == problem
    assert len(solutions) < 300 * 30


def test_every_annotation_is_right_and_repeats_the_text_around_it(problems: list[WordProblem]) -> None:
    for problem in problems:
        found = ANNOTATED.findall(problem.solution)
        assert len(found) == problem.solution.count("<<") == problem.solution.count(">>")
        for left, sign, right, *annotation, result, shown in found:
            assert [left, sign, right] == annotation
            assert COMPUTE[sign](int(left), int(right)) == int(result) == int(shown)
            assert sign != "/" or int(left) % int(right) == 0


def test_every_line_ends_in_the_result_that_the_next_line_starts_from(problems: list[WordProblem]) -> None:
    for problem in problems:
        carried = problem.numbers[0]
        for line in problem.solution.splitlines()[:-1]:
            sums = ANNOTATED.findall(line)
            assert any(str(carried) in (left, right) for left, _, right, *_ in sums)
            carried = int(sums[-1][-1])


def test_last_result_is_the_answer(problems: list[WordProblem]) -> None:
    for problem in problems:
        chain, _, answer = problem.solution.rpartition("\n#### ")
        assert ANNOTATED.findall(chain)[-1][-1] == answer == str(problem.numbers[-1])


def test_each_step_is_one_line_of_the_chain_and_one_family(problems: list[WordProblem]) -> None:
    for problem in problems:
        chain, _ = split_solution(problem.solution)
        assert len(chain.splitlines()) == len(problem.families) == problem.num_steps


def test_every_family_occurs_if_nothing_limits_it() -> None:
    assert {family for problem in take(2500, limits=WIDE) for family in problem.families} == {*FAMILIES, *CLOSING}


def test_twelve_families_occur_by_default() -> None:
    assert len({family for problem in take(1000) for family in problem.families}) >= 12


def test_two_to_eight_steps_are_equally_frequent(problems: list[WordProblem]) -> None:
    counts = Counter(problem.num_steps for problem in problems)
    assert sorted(counts) == [2, 3, 4, 5, 6, 7, 8]
    assert min(counts.values()) > 0.8 * max(counts.values())


def test_every_number_is_between_0_and_100(problems: list[WordProblem]) -> None:
    written = {int(number) for problem in problems for number in re.findall(r"\d+", problem.question)}
    numbers = {number for problem in problems for number in problem.numbers}
    assert min(written | numbers) >= 0
    assert max(written | numbers) <= 100


def test_longer_stories_can_be_told_than_the_default_ones() -> None:
    counts = Counter(problem.num_steps for problem in take(100, "validation", min_steps=9, max_steps=10))
    assert sorted(counts) == [9, 10]


def test_the_longest_story_has_a_name_for_everybody() -> None:
    most = len(PEOPLE) - 1
    assert {problem.num_steps for problem in take(50, min_steps=most, max_steps=most)} == {most}


def test_a_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no split 'dev'; there are train, validation, test"):
        next(generate("dev"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3), (-1, -1), (2, len(PEOPLE))])
def test_an_impossible_range_of_steps_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=rf"impossible range of steps {low}\.\.{high}"):
        next(generate("train", min_steps=low, max_steps=high))


def test_the_stream_that_the_embedded_model_was_trained_on_stays_as_it_is() -> None:
    digest = hashlib.sha256()
    for problem in take(500):
        digest.update((problem.question + problem.solution).encode())
    assert digest.hexdigest() == "b7c17bd32ff1afae3676079332ab938187107fb5a9f3ea0f71969be83bfa22a6"
