"""Two kept evaluations are compared problem by problem."""

import json
from pathlib import Path

import pytest

from ccot_cli.errors import CorruptError, MissingError, UsageError
from ccot_cli.stages.compare import compare
from ccot_cli.stages.statistics import mcnemar
from ccot_cli.workspace.workspace import Workspace

Marks = dict[str, str]
"""By method, `+` or `-` for each of the questions 0, 1, 2, ..."""


def write(folder: Path, marks: Marks, *, first: int = 0, question: str = "q") -> str:
    folder.mkdir(parents=True)
    rows = [
        {"method": name, "ratio": 0.1, "question": f"{question}{first + number}", "is_correct": mark == "+"}
        for name, each in marks.items()
        for number, mark in enumerate(each)
    ]
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "predictions.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "manifest.json").touch()
    return str(folder)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "run", "embedded")


def test_methods_are_compared_on_the_problems_that_both_asked(workspace: Workspace, tmp_path: Path) -> None:
    write(workspace.root / "eval" / "a", {"ccot": "++++--", "direct": "+-----"})
    other = write(tmp_path / "b", {"ccot": "+--+-+++", "pause": "++"}, first=1)
    [found] = compare(workspace, ("a", other))
    assert (found.method, found.ratio, found.n) == ("ccot", 0.1, 5)
    assert (found.accuracy, found.other_accuracy) == (3 / 5, 2 / 5)
    assert (found.wins, found.losses) == (2, 1)
    assert found.p == mcnemar(2, 1)
    assert found.low < 1 / 5 < found.high


def test_two_single_methods_are_compared_whatever_they_are(workspace: Workspace) -> None:
    write(workspace.root / "eval" / "a", {"ccot": "++"})
    write(workspace.root / "eval" / "b", {"direct": "+-"})
    [found] = compare(workspace, ("a", "b"))
    assert (found.method, found.wins, found.losses) == ("ccot", 1, 0)


def test_a_question_may_hold_whatever_else_ends_a_line(workspace: Workspace) -> None:
    write(workspace.root / "eval" / "a", {"ccot": "++"}, question="Mia\u2028has\u2029\x85pens\x1c")
    [found] = compare(workspace, ("a", "a"))
    assert found.n == 2


@pytest.mark.parametrize("run", ["..", ".", "", "a/", "eval/a", "unfinished"])
def test_a_name_that_is_no_evaluation_s_is_refused(workspace: Workspace, run: str) -> None:
    write(workspace.root / "eval" / "a", {"ccot": "+"})
    write(workspace.root / "eval" / "unfinished", {"ccot": "+"})
    (workspace.root / "eval" / "unfinished" / "manifest.json").unlink()
    with pytest.raises(MissingError, match="there is no evaluation") as refused:
        compare(workspace, (run, "a"))
    assert refused.value.fix == "one of a"


def test_what_cannot_be_compared_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"ccot": "+", "direct": "+"})
    none = write(tmp_path / "none", {"pause": "+"})
    later = write(tmp_path / "later", {"ccot": "+"}, first=5)
    with pytest.raises(UsageError, match=r"no method in common: ccot at r = 0\.1, direct at r = 0\.1 and pause"):
        compare(workspace, (one, none))
    with pytest.raises(UsageError, match="no problem in common"):
        compare(workspace, (one, later))
    with pytest.raises(MissingError, match="there is no evaluation x"):
        compare(workspace, (one, "x"))
    with pytest.raises(MissingError, match="there is no evaluation x"):
        compare(None, ("x", one))
    (tmp_path / "one" / "predictions.jsonl").write_text("{}")
    with pytest.raises(CorruptError, match="cannot be read"):
        compare(workspace, (one, one))
