"""`ccot ask` answers one question, a pipe, or a file of questions line by line."""

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ccot_cli.cli.ask import ASKS
from ccot_cli.cli.console import visible
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods import method
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
    expected = {"answer", "method", "ratio", "contemplation_tokens", "seconds", "truncated"}
    expected |= {"confidence", "calibrated", "model", "in_domain"}
    assert fields.keys() == expected
    assert fields["contemplation_tokens"] >= 1
    assert (fields["in_domain"], fields["calibrated"]) == (None, False)


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


KNOWN = "Tom has 5 apples. He buys 3 more and then eats 2. How many apples does he have left?"
UNKNOWN = "What is the capital of France?"


def test_what_the_shipped_model_has_learned_is_answered_without_a_warning(capsys: Output) -> None:
    assert output(capsys, "ask", KNOWN) == ("6\n", "")
    out, err = output(capsys, "ask", KNOWN, "--format", "json")
    assert json.loads(out)["in_domain"] is True
    assert err == ""


def test_a_warning_says_what_the_shipped_model_has_not_learned(capsys: Output) -> None:
    expected = (
        "warning: the model in the package has not learned questions like this"
        " (there is no number in it); its answer is a guess\n"
    )
    out, err = output(capsys, "ask", UNKNOWN)
    assert out.strip().isdigit()
    assert err == expected
    out, err = output(capsys, "ask", UNKNOWN, "--format", "json")
    assert json.loads(out)["in_domain"] is False
    assert err == expected


def test_many_questions_get_one_warning_that_counts(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join([*[json.dumps({"question": each}) for each in [KNOWN, *[UNKNOWN] * 40, KNOWN]], "x"]))
    expected = "40 of the model's 42 answers are guesses, because it has not learned such questions\n"
    out, err = output(capsys, "ask", "--input", str(path), code=2)
    assert [json.loads(line).get("in_domain") for line in out.splitlines()] == [True, *[False] * 40, True, None]
    assert err.count("warning:") == err.count(expected) == 1
    pipe(monkeypatch, f"{KNOWN}\n{KNOWN}\n")
    assert "warning" not in output(capsys, "ask")[1]


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


OTHER = "Ben has 3 cups. Ben buys 2 more cups. How many cups does Ben have?"


def test_each_line_of_a_pipe_is_a_question(trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [output(capsys, "ask", question)[0] for question in (QUESTION, OTHER)]
    pipe(monkeypatch, f"{QUESTION}\n\n  {OTHER} \r\n")
    assert output(capsys, "ask")[0] == "".join(alone)
    pipe(monkeypatch, f"{QUESTION}\n{OTHER}\n")
    lines = output(capsys, "ask", "-", "--format", "json")[0].splitlines()
    answers = [visible(json.loads(line)["answer"]) for line in lines]
    assert answers == [answer.removesuffix("\n") for answer in alone]
    pipe(monkeypatch, f"{QUESTION.removesuffix('?')}\n{OTHER}\n")
    assert len(output(capsys, "ask")[0].splitlines()) == 2


@pytest.mark.parametrize(
    "line",
    [
        "How many pens are left of 9",
        "12 * 3 =",
        "twelve + 7",
        "9 x 4",
        "Seven plus two",
        "Find the number of pens.",
        "Mia has 3 pens; please count them.",
        "Mia has 3 pens. Work out her total",
        "I would like you to calculate 9 pens of 2 dollars",
    ],
)
def test_a_line_asks_with_or_without_its_mark(line: str) -> None:
    assert ASKS.search(line)


@pytest.mark.parametrize(
    "line",
    ["Mia has 12 pens.", "They give Mia 12 pens.", "Ben can tell 3 owls apart - all of them.", "He and/or she writes."],
)
def test_a_statement_asks_nothing(line: str) -> None:
    assert not ASKS.search(line)


def test_a_question_of_several_lines_is_refused(trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "Mia has 12 pens.\nHow many pens does Mia have?\n")
    out, err = output(capsys, "ask", code=2)
    assert out == ""
    assert "line 1" in err
    assert "--input" in err
    assert 'ccot ask "' in err


def test_a_line_of_a_pipe_that_is_too_long_is_told_by_its_number(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, f"{QUESTION}\n\n{'pens ' * 5000}?\n{QUESTION}\n")
    out, err = output(capsys, "ask", code=2)
    assert [bool(line) for line in out.splitlines()] == [True, False, True]
    assert "line 3: the question has" in err
    assert "1 of 3 lines" in err


def test_input_can_be_answered_in_text(trained: Path, capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(f"{json.dumps({'question': QUESTION})}\nno json\n{json.dumps({'question': QUESTION})}\n")
    answer, _ = output(capsys, "ask", QUESTION)
    out, err = output(capsys, "ask", "--input", str(path), "--format", "text", code=2)
    assert out == f"{answer}\n{answer}"
    assert "line 2: not JSON" in err
    assert "1 of 3 lines" in err
    assert "the output says why" not in err


def test_json_carries_the_chain_of_a_method_that_writes_one(trained: Path, capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question": QUESTION}))
    _, written = output(capsys, "ask", QUESTION, "--ratio", "1")
    for arguments in ([QUESTION, "--ratio", "1", "--format", "json"], ["--input", str(path), "--method", "cot"]):
        chain = json.loads(output(capsys, "ask", *arguments)[0])["chain"]
        assert chain
        assert chain in written


def test_a_terminal_is_told_what_is_loaded(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question": QUESTION}))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out, err = output(capsys, "ask", QUESTION)
    assert len(out.splitlines()) == 1
    assert "loading work …" in err
    _, err = output(capsys, "ask", "--input", str(path))
    assert "0 of 1 question" in err
    monkeypatch.setenv("TERM", "dumb")
    assert output(capsys, "ask", QUESTION)[1] == ""


def test_thoughts_stand_under_the_answer_and_in_json_on_request(trained: Path, capsys: Output) -> None:
    answer, _ = output(capsys, "ask", QUESTION)
    out, err = output(capsys, "ask", QUESTION, "--show-thoughts")
    *lines, verdict = err.splitlines()
    middle = next(number for number, line in enumerate(lines) if "nearest gold state" in line)
    (head, *rows), (_, *nearest) = lines[:middle], lines[middle:]
    assert len(nearest) == len(rows)
    assert out == answer
    assert head.split() == ["at", "index", "L", "=", "4", "at", "index", "l", "=", "2", "END", "norm", "verified"]
    assert verdict in ("the answer is verified", "the answer is not verified")
    assert max(map(len, err.splitlines())) <= 80
    for engine in ("fast", "reference"):
        out, err = output(capsys, "ask", QUESTION, "--show-thoughts", "--format", "json", "--engine", engine)
        fields = json.loads(out)
        assert err == ""
        assert [each["number"] for each in fields["thoughts"]] == [*range(1, fields["contemplation_tokens"] + 1)]
        assert len(rows) == len(fields["thoughts"])
        assert fields["verified"] in (True, False)
        names = {"number", "words", "lower_words", "end", "norm", "nearest", "verified", "equation", "swapped"}
        assert all(each["swapped"] is None for each in fields["thoughts"])
        assert all("[" in each["nearest"]["chain"] for each in fields["thoughts"])
        assert fields["thoughts"][0].keys() == names
        assert [word.keys() for word in fields["thoughts"][0]["words"]] == [{"text", "probability"}] * 5


def test_settings_that_training_has_fixed_are_refused(trained: Path, capsys: Output) -> None:
    for command in (["ask", "Is it 2?"], ["eval"], ["inspect"], ["merge", "merged", "--method", "direct"]):
        for name in ("model.prompt=Q {question}", "data.subset=stories"):
            _, err = output(capsys, *command, "--set", name, code=2)
            assert f"{name.split('=')[0]} has no effect" in err
    output(capsys, "ask", "Is it 2?", "--set", "model.device=cpu", "--set", "decoding.max_answer_tokens=2")


def test_another_model_without_a_workspace_is_that_model_alone(model_folder: Path, capsys: Output) -> None:
    other = ["--set", f"model.name={model_folder}", "--format", "json"]
    out, err = output(capsys, "ask", "What is the capital of France?", "--ratio", "1", *other)
    # Neither the package's domain nor its calibration says anything of it.
    assert json.loads(out)["in_domain"] is None
    assert json.loads(out)["calibrated"] is False
    assert "warning" not in err
    _, err = output(capsys, "ask", "Is it 2?", *other, code=3)
    assert "no generator was trained for ratio 0.1" in err
    assert "fix:   --ratio 1\n" in err


def test_a_swap_says_what_the_answer_would_be(trained: Path, capsys: Output) -> None:
    swap = ("ask", QUESTION, "--show-thoughts", "--swap-with")
    fields = json.loads(output(capsys, *swap, OTHER, "--format", "json")[0])
    answers = [each["swapped"] for each in fields["thoughts"]]
    assert isinstance(answers[0], str)
    out, err = output(capsys, *swap, OTHER)
    assert out == f"{visible(fields['answer'])}\n"
    _, table = err.split("the answer if this one token is the other question's\n")
    rows = table.splitlines()[:-1]
    assert [row.split(maxsplit=1)[1:] for row in rows] == [
        [visible(each)] if each else [] for each in answers if each is not None
    ]
    # With its own tokens it answers the same.
    own = json.loads(output(capsys, *swap, QUESTION, "--format", "json")[0])
    assert [each["swapped"] for each in own["thoughts"]] == [own["answer"]] * len(own["thoughts"])
    assert "--swap-with is for --show-thoughts" in output(capsys, "ask", QUESTION, "--swap-with", OTHER, code=2)[1]
    assert "the question is empty" in output(capsys, *swap, " ", code=2)[1]


def test_thoughts_of_several_questions_are_for_json(
    trained: Path, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(f"{json.dumps({'question': QUESTION})}\n{json.dumps({'question': OTHER})}\n")
    lines = output(capsys, "ask", "--input", str(path), "--show-thoughts")[0].splitlines()
    assert all(json.loads(line)["thoughts"] for line in lines)
    _, err = output(capsys, "ask", "--input", str(path), "--format", "text", "--show-thoughts", code=2)
    assert "--format json" in err
    pipe(monkeypatch, f"{QUESTION}\n{OTHER}\n")
    assert "--format json" in output(capsys, "ask", "--show-thoughts", code=2)[1]


@pytest.mark.parametrize("arguments", [["--ratio", "0"], ["--ratio", "1"], ["--method", "direct"]])
def test_thoughts_of_a_method_that_has_none_are_refused(trained: Path, capsys: Output, arguments: list[str]) -> None:
    out, err = output(capsys, "ask", QUESTION, "--show-thoughts", *arguments, code=2)
    assert out == ""
    assert "generates none" in err
    assert "--method ccot" in err


def lines_of(capsys: Output, path: Path, *options: str) -> dict[object, dict[str, Any]]:
    """Ask the questions of a file; return the fields by id, in the order of the output."""
    out, _ = output(capsys, "ask", "--input", str(path), *options)
    return {fields.pop("id"): fields for fields in map(json.loads, out.splitlines())}


def costless(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what differs between one attempt and two, and round what depends on the batch."""
    rest = {name: value for name, value in fields.items() if name not in ("seconds", "contemplation_tokens")}
    return {**rest, "confidence": round(rest["confidence"], 4)}


def test_the_chain_answers_what_the_method_is_not_sure_of_and_the_order_stays(
    trained: Path, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A random model is sure of nothing; this one is sure of answers by their tokens, and of some more than of others.
    def made_up(theta: Theta, ids: list[int], *_: object) -> float:
        return sum(ids) % 10 / 10

    monkeypatch.setattr(method, "confidence", made_up)
    path = tmp_path / "questions.jsonl"
    questions = [QUESTION.replace("12", f"{number}") + " " * (number % 3) for number in range(40)]
    path.write_text("".join(json.dumps({"id": f"q{n}", "question": each}) + "\n" for n, each in enumerate(questions)))
    alone, chain = lines_of(capsys, path), lines_of(capsys, path, "--method", "cot")
    assert len({fields["confidence"] for fields in alone.values()}) > 2
    for least in ("0", "0.45", "1"):
        found = lines_of(capsys, path, "--min-confidence", least)
        assert list(found) == [f"q{number}" for number in range(40)]
        is_unsure = {key: fields["confidence"] < float(least) for key, fields in alone.items()}
        assert any(is_unsure.values()) == (least != "0")
        assert all(is_unsure.values()) == (least == "1")
        for key, fields in found.items():
            first, second = alone[key], chain[key]
            expected = second if is_unsure[key] else first
            assert costless(fields) == costless(expected)
            both = first["contemplation_tokens"] + second["contemplation_tokens"]
            assert fields["contemplation_tokens"] == (both if is_unsure[key] else first["contemplation_tokens"])
            assert ("chain" in fields, fields["method"]) == ((True, "cot") if is_unsure[key] else (False, "ccot"))


def test_one_question_falls_back_too_and_a_chain_that_is_not_sure_is_a_guess(trained: Path, capsys: Output) -> None:
    answer, silence = output(capsys, "ask", QUESTION)
    written, chain = output(capsys, "ask", QUESTION, "--method", "cot")
    assert output(capsys, "ask", QUESTION, "--min-confidence", "0") == (answer, silence)
    out, err = output(capsys, "ask", QUESTION, "--min-confidence", "1")
    assert out == written
    assert err.endswith(chain)
    warning = err.removesuffix(chain)
    assert warning.startswith("warning: the model is not sure of a number (confidence 0.")
    assert warning.endswith("); its answer is a guess\nccot at r = 0.1 is not sure; the chain:\n")
    path = Path("questions.txt")
    path.write_text(json.dumps({"question": QUESTION}) + "\n" + json.dumps({"question": OTHER}))
    out, err = output(capsys, "ask", "--input", str(path), "--format", "text", "--min-confidence", "1")
    assert out.splitlines()[0] == written.rstrip("\n")
    assert err.endswith("\nwarning: 2 of the model's 2 answers are guesses, because it is not sure\n")


def test_thoughts_are_shown_of_the_answer_that_is_given(trained: Path, capsys: Output) -> None:
    shown = [
        json.loads(output(capsys, "ask", QUESTION, "--show-thoughts", "--format", "json", "--min-confidence", least)[0])
        for least in ("0", "1")
    ]
    assert [("thoughts" in fields, "chain" in fields) for fields in shown] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--min-confidence", "1.01"], "a confidence lies between 0 and 1"),
        (["--min-confidence=-0.1"], "a confidence lies between 0 and 1"),
        (["--min-confidence", "nan"], "a confidence lies between 0 and 1"),
        (["--min-confidence", "high"], "a confidence is a number like 0.5"),
        (["--min-confidence", "0.5", "--method", "cot"], "cot always writes it"),
        (["--min-confidence", "0.5", "--ratio", "1"], "cot always writes it"),
        (["--min-confidence", "0.5", "--method", "zero-shot"], "zero-shot always writes it"),
        (["--min-confidence", "0", "--server", "http://127.0.0.1:9"], "a server knows no --min-confidence"),
    ],
)
def test_a_confidence_that_cannot_be_asked_for_is_exit_2(
    trained: Path, capsys: Output, options: list[str], reason: str
) -> None:
    out, err = output(capsys, "ask", QUESTION, *options, code=2)
    assert out == ""
    assert reason in err


def test_a_warning_of_a_guess_names_the_option_that_may_help(capsys: Output, tmp_path: Path) -> None:
    hint = "; --min-confidence 0.5 would have the chain written\n"
    _, err = output(capsys, "ask", KNOWN, "--ratio", "0")
    assert err.startswith("warning: the model is not sure of a number (confidence 0.")
    assert err.endswith(f"); its answer is a guess{hint}")
    path = tmp_path / "questions.jsonl"
    path.write_text(f"{json.dumps({'question': KNOWN})}\n{json.dumps({'question': UNKNOWN})}\n")
    _, err = output(capsys, "ask", "--input", str(path), "--ratio", "0")
    assert err.endswith(f"because it has not learned such questions or it is not sure{hint}")
    out, err = output(capsys, "ask", KNOWN, "--ratio", "0", "--min-confidence", "0.35", "--format", "json")
    fields = json.loads(out)
    assert (fields["answer"], fields["method"], fields["ratio"], fields["calibrated"]) == ("6", "cot", 1.0, True)
    assert fields["confidence"] > 0.35
    assert err == ""


def test_explain_writes_the_chain_to_stderr_or_into_the_json(trained: Path, capsys: Output) -> None:
    _, err = output(capsys, "ask", QUESTION, "--explain", code=3)
    assert "fix:   ccot train-decoder --ratio 0.1" in err
    plain, _ = output(capsys, "ask", QUESTION)
    out, _ = output(capsys, "train-decoder", "--ratio", "0.1")
    assert "results of the chain that the explanation has" in out
    out, err = output(capsys, "ask", QUESTION, "--explain")
    assert out == plain
    assert err.strip()
    out, _ = output(capsys, "ask", QUESTION, "--explain", "--format", "json")
    fields = json.loads(out)
    assert visible(fields["answer"]) == plain.strip()
    assert (fields["explanation"] or "(the decoder wrote nothing)") == err.strip()
    status = json.loads(output(capsys, "status", "--format", "json")[0])
    assert [each["state"] for each in status["artifacts"] if each["stage"] == "train-decoder"] == ["ready"]
    assert "train-decoder" not in status["next"]


def test_explain_of_several_questions_is_for_json(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{QUESTION}\n{QUESTION}\n".encode())))
    _, err = output(capsys, "ask", "--explain", code=2)
    assert "--explain of several questions" in err


def test_json_lines_are_not_answered_as_if_they_were_questions(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"question": QUESTION})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{line}\n{line}\n".encode())))
    out, err = output(capsys, "ask", code=2)
    assert out == ""
    assert "ccot ask --input -" in err


def test_a_byte_order_mark_is_no_part_of_the_first_question(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def remember(self: Asker, questions: Sequence[str]) -> list[AskResult]:
        asked.extend(questions)
        return answer(self, questions)

    answer = Asker.answer
    monkeypatch.setattr(Asker, "answer", remember)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{QUESTION}\n".encode("utf-8-sig"))))
    output(capsys, "ask")
    assert asked == [QUESTION]
