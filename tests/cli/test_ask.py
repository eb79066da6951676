"""`ccot ask` answers one question, a pipe, or a file of questions line by line."""

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ccot_cli.stages.ask import Asker, AskResult
from cli.running import QUESTION, Output, output


def test_ask_prints_one_line_of_answer_and_nothing_else(trained: Path, capsys: Output) -> None:
    out, err = output(capsys, "ask", QUESTION)
    assert len(out.splitlines()) == 1
    assert err == ""


def test_ask_reads_a_pipe(trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = output(capsys, "ask", QUESTION)
    for arguments in (["ask"], ["ask", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(QUESTION.encode())))
        assert output(capsys, *arguments)[0] == expected


def test_ask_in_json_tells_what_it_cost(trained: Path, capsys: Output) -> None:
    out, _ = output(capsys, "ask", QUESTION, "--format", "json")
    fields = json.loads(out)
    assert fields.keys() == {"answer", "method", "ratio", "contemplation_tokens", "seconds", "truncated", "model"}
    assert fields["contemplation_tokens"] >= 1


def test_every_line_of_input_gets_a_line_in_order(trained: Path, capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    lines = [json.dumps({"id": number, "question": QUESTION}) for number in range(40)]
    path.write_text("\n".join([*lines[:3], "no json", json.dumps({"id": "x", "question": " "}), *lines[3:]]) + "\n")
    out, err = output(capsys, "ask", "--input", str(path), code=2)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [line.get("id") for line in answers] == [0, 1, 2, None, "x", *range(3, 40)]
    assert answers[3]["error"] == "not JSON"
    assert "empty" in answers[4]["error"]
    assert len({line["answer"] for line in answers if "answer" in line}) == 1
    assert "2 of 42 lines" in err


def test_lines_that_no_tokenizer_takes_spoil_no_others(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        '{"id": NaN, "question": "x"}',
        "[" * 100_000,
        "",
        '{"id": 3, "question": "\\ud800"}',
        '{"id": 1e999, "question": "x"}',
        '{"id": 5, "query": "x"}',
        '{"id": 4, "question": "x"}',
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    out, _ = output(capsys, "ask", "--input", "-", code=2)
    answers = [json.loads(line) for line in out.splitlines()]
    errors = ["not JSON", "not JSON", "unpaired surrogate", "not JSON", 'no "question"', None]
    assert [line.get("error") for line in answers] == errors
    assert [line.get("id") for line in answers] == [None, None, 3, None, 5, 4]
    assert [line.get("line") for line in answers] == [1, 2, 4, 5, 6, None]


def test_bytes_that_are_no_text_are_no_reason_to_fail(trained: Path, capsys: Output) -> None:
    out, _ = output(capsys, "ask", QUESTION + " \udcff")
    assert len(out.splitlines()) == 1


def test_a_line_that_comes_alone_is_answered_alone(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (json.dumps({"id": number, "question": QUESTION}).encode() for number in (1, 2, 3))
    pieces = iter([one + b"\n", two + b"\n" + three[:5], three[5:] + b"\n\n", b"\n".join([b"x", *[two] * 199]), b""])
    answered: list[list[dict[str, object]]] = []
    """What had been written whenever more was asked for."""

    class Arriving(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            answered.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
            return next(pieces)

    sizes: list[int] = []
    answer = Asker.answer

    def watched(self: Asker, questions: Sequence[str]) -> list[AskResult]:
        sizes.append(len(questions))
        return answer(self, questions)

    monkeypatch.setattr(Asker, "answer", watched)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Arriving()))
    out, _ = output(capsys, "ask", "--input", "-", code=2)
    assert [[line["id"] for line in each] for each in answered[:4]] == [[], [1], [2], [3]]
    # Of many that come together, so many at a time; the last one may go on, and waits.
    assert answered[4][0] == {"line": 5, "error": "not JSON"}
    assert [len(each) for each in answered[4:]] == [199]
    assert len(out.splitlines()) == 1
    assert sizes == [1, 1, 1, 127, 71, 1]


@pytest.mark.parametrize("arguments", [[""], ["   "], [QUESTION, "--input", "x"], ["--input", "nowhere.jsonl"]])
def test_a_question_that_is_none_is_exit_2(trained: Path, capsys: Output, arguments: list[str]) -> None:
    out, err = output(capsys, "ask", *arguments, code=2)
    assert out == ""
    assert "error:" in err
    assert "fix:" in err


def test_a_ratio_that_was_not_trained_is_exit_3_and_lists_those_that_were(trained: Path, capsys: Output) -> None:
    out, err = output(capsys, "ask", QUESTION, "--ratio", "0.37", code=3)
    assert out == ""
    assert "trained: 0, 0.1, 1" in err
