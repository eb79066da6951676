"""`ccot problems` shows sample problems, which `ccot ask` can read."""

import io
import json
import sys
from pathlib import Path

import pytest

from cli.running import Output, ccot, output


def test_the_problems_can_be_read(capsys: Output) -> None:
    out, err = output(capsys, "problems", "--steps", "2", "2", "--limit", "2")
    blocks = [block.splitlines() for block in out.split("\n\n")]
    assert err == ""
    assert len(blocks) == 2
    for question, first, second, answer in blocks:
        assert question.endswith("?")
        assert first.startswith("  ")
        assert second.startswith("  ")
        assert answer.removeprefix("answer: ").isdigit()


def test_ask_answers_them(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = output(capsys, "problems", "--limit", "20", "--format", "json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 20
    assert {tuple(row) for row in rows} == {("id", "question", "chain", "answer", "steps")}
    assert all(row["steps"] == len(row["chain"].splitlines()) for row in rows)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out.encode())))
    replies = [json.loads(line) for line in output(capsys, "ask", "--input", "-")[0].splitlines()]
    assert [reply["id"] for reply in replies] == [row["id"] for row in rows]
    # About two in five are right; the answers belong to their questions.
    assert sum(reply["answer"] == row["answer"] for reply, row in zip(replies, rows, strict=True)) > 3


def test_a_workspace_shows_its_own(trained: Path, capsys: Output) -> None:
    out, _ = output(capsys, "problems", "--split", "validation", "--format", "json", "--limit", "99")
    stored = (trained / "precompute" / "problems.jsonl").read_text().splitlines()
    held_out = [row["id"] for row in map(json.loads, stored) if row["is_validation"]]
    assert [json.loads(line)["id"] for line in out.splitlines()] == held_out
    _, err = output(capsys, "problems", "--steps", "9", "2", code=2)
    assert "--steps" in err
    assert "steps are a range" in err


def test_it_loads_no_torch() -> None:
    with ccot("problems", code="import atexit; atexit.register(lambda: print(*sys.modules))") as process:
        out, _ = process.communicate()
    assert process.returncode == 0
    assert "ccot_cli.stages.problems" in out.split()
    assert not {"torch", "transformers", "datasets"} & set(out.split())


def test_another_data_set_is_shown_whatever_the_workspace_has(capsys: Output, trained: Path) -> None:
    options = ["problems", "--split", "unseen", "--limit", "3", "--format", "json"]
    ours, _ = output(capsys, *options, "-w", str(trained))
    assert [json.loads(line)["id"] for line in ours.splitlines()] == ["unseen-0-0", "unseen-0-1", "unseen-0-2"]
    assert ours == output(capsys, *options)[0]


def test_another_data_set_shows_no_problems_of_the_sources_of_the_workspace(capsys: Output, here: Path) -> None:
    for name in ("ours", "theirs"):
        rows = [{"question": f"{name} {number}?", "answer": "1 + 1 = 2\n#### 2"} for number in range(30)]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = Path("ccot.yaml").read_text()
    sources = "data: {source: ours.jsonl, validation_source: ours.jsonl, test_source: ours.jsonl, "
    Path("ccot.yaml").write_text(settings.replace("data: {", sources))
    for split in ("train", "validation"):
        out, _ = output(capsys, "problems", "--data", "theirs.jsonl", "--split", split)
        assert "theirs" in out
        assert "ours" not in out
    _, err = output(capsys, "problems", "--data", "theirs.jsonl", "--split", "test", code=2)
    assert "test" in err
