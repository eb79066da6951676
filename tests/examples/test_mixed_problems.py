"""The problems that a pretrained model learns from."""

import json
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from ccot_cli.data.arithmetic import equations_in
from ccot_cli.data.problems import split_solution
from examples.scripts import script

PEOPLE = {"question": "Ana has 40 pens. She sells 15 and buys 6.", "answer": "<<40-15=25>>25.\n<<25+6=31>>31.\n#### 31"}
TOLD = PEOPLE["question"], "Taking 15 from 40 leaves 40 - 15 = 25.\nAdding 25 and 6 gives 25 + 6 = 31.\n#### 31"


@pytest.fixture(scope="module")
def mixed() -> ModuleType:
    return script("mixed_problems.py")


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.jsonl"
    path.write_text(json.dumps(PEOPLE))
    return path


def test_problems_have_the_generator_s_lines_and_all_chains_end_in_the_answer(
    mixed: ModuleType, people: Path, tmp_path: Path
) -> None:
    write_step = script("training_texts.py").write_step
    mixed.main(tmp_path / "problems.jsonl", [people], number=300, people_share=0.2, sums_share=0.1, seed=7)
    rows = [*map(json.loads, (tmp_path / "problems.jsonl").read_text().splitlines())]
    assert len({row["question"] for row in rows}) == len(rows) == 300
    for row in rows:
        chain, answer = split_solution(row["answer"])
        equations = equations_in(chain)
        assert len(equations) == len(chain.splitlines())
        if row["question"].count(";") < mixed.NUM_SUMS - 1:
            assert len(equations) <= mixed.MOST_STEPS
            written = [write_step(each.first, each.sign, each.second, each.result) for each in equations]
            assert chain.splitlines() == written
        assert str(equations[-1].result) == answer
    told_by_people = [row for row in rows if row["question"].lower().startswith("ana has")]
    practised = [row for row in rows if row["question"].count(";") == mixed.NUM_SUMS - 1]
    assert 30 < len(told_by_people) < 90
    assert 15 < len(practised) < 50


def test_sums_are_worked_out_in_the_order_in_which_they_are_asked(mixed: ModuleType) -> None:
    told = mixed.mix([TOLD], 0.2, 0.1, seed=7)
    question, solution = next(each for each in told if each[0].count(";") == mixed.NUM_SUMS - 1)
    chain, _ = split_solution(solution)
    assert [line.split(" = ")[0] for line in chain.splitlines()] == question.split("; ")


def test_fewer_problems_are_the_beginning_of_more(mixed: ModuleType) -> None:
    more = [*islice(mixed.mix([TOLD], 0.2, 0.1, seed=7), 40)]
    assert [*islice(mixed.mix([TOLD], 0.2, 0.1, seed=7), 20)] == more[:20]
    assert [*islice(mixed.mix([TOLD], 0.2, 0.1, seed=8), 20)] != more[:20]
