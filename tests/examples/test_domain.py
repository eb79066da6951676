"""The measurement of when the model does not know: its kinds of questions, and its figures."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ccot_cli.data.answers import is_correct
from examples.scripts import script

QUESTION = "Mia has 12 pens. She buys 7 more. How many pens does Mia have?"


@pytest.fixture(scope="module")
def domain() -> ModuleType:
    return script("research/domain.py")


def test_problems_of_people_are_those_in_reach_with_their_answers(domain: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    rows = [
        {"question": QUESTION, "answer": "12 + 7 = 19\n#### 19"},
        {"question": QUESTION.replace("12", "12.5"), "answer": "12.5 + 7 = 19.5\n#### 19.5"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert list(domain.read_people(path)) == [(QUESTION, "19")]


def test_the_halves_of_people_share_no_problem(domain: ModuleType) -> None:
    items = [domain.Item(f"How many are {number} and 3?") for number in range(100)]
    (even, first), (odd, second) = domain.in_halves("some", items)
    assert (even, odd) == ("some, even hash", "some, odd hash")
    assert sorted(first + second) == sorted(items)
    assert min(len(first), len(second)) > 30


def test_texts_that_are_no_problems_are_many_and_differ(domain: ModuleType) -> None:
    sections = dict(domain.read_texts())
    texts = [item.question for items in sections.values() for item in items]
    assert len(sections) == 9
    assert len(texts) == len(set(texts)) > 350
    assert not any(character.isdigit() for item in sections["no number"] for character in item.question)


def test_kinds_are_the_splits_the_halves_and_the_sections(domain: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps({"question": QUESTION, "answer": "12 + 7 = 19\n#### 19"}))
    kinds = list(domain.all_kinds([path], 3))
    halves = ["some, even hash", "some, odd hash"]
    names = ["validation", "test", "unseen", *halves, "everyday", "typed", "no number"]
    assert [name for name, _ in kinds[:8]] == names
    assert [len(items) for _, items in kinds[5:7]] == [110, 320]
    assert [len(items) for _, items in kinds[:3]] == [3, 3, 3]
    assert all(is_correct(item.answer, item.answer) for _, items in kinds[:7] for item in items)


def test_figures_count_what_is_outside_and_what_is_right(domain: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_all(questions: list[str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(answer="38", in_domain="eats" not in question) for question in questions]

    def figures(items: list[Any]) -> Any:
        return domain.measure(SimpleNamespace(ask_all=ask_all), "some", items)

    items = [domain.Item(QUESTION, "38"), domain.Item(QUESTION, "39"), domain.Item("Mia eats.", "40")]
    assert figures(items) == ["some", 3, 1 / 3, None, None], "two answers are too few for a share"
    monkeypatch.setattr(domain, "LEAST_ANSWERS", 1)
    assert figures(items) == ["some", 3, 1 / 3, 0.5, 0.0]
    assert figures([domain.Item(QUESTION)]) == ["some", 1, 0.0, None, None]


def test_the_figures_are_written_as_a_table_of_the_pages(
    domain: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kinds = [("some", [domain.Item(QUESTION, "19")] * 20)]
    reply = SimpleNamespace(answer="19", in_domain=True)
    monkeypatch.setattr(domain, "all_kinds", lambda human, limit: kinds)
    monkeypatch.setattr(domain, "Asker", lambda *_: SimpleNamespace(ask_all=lambda questions: [reply] * len(questions)))
    monkeypatch.setattr(sys, "argv", ["domain.py", "some.jsonl"])
    domain.main(output=tmp_path)
    data = json.loads((tmp_path / "domain.json").read_text())
    assert data["rows"] == [["some", 20, 0.0, 1.0, None]]
    assert len(data["columns"]) == 5
    assert data["source"]["command"] == ["python domain.py some.jsonl"]
