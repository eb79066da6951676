"""Where problems come from: the embedded generator, files, and the hub."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from conftest import GSM8K

from ccot_cli.config import DataConfig
from ccot_cli.data import rows, word_problems
from ccot_cli.data.answers import is_correct, read_answer
from ccot_cli.data.problems import Problem, load_test, load_training, read_chain, split_solution
from ccot_cli.errors import CcotError, ResourceError, UsageError

Rows = list[dict[str, Any]]


def make_rows(count: int) -> Rows:
    return [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(count)]


def write_jsonl(path: Path, rows: Iterable[Any]) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def write_csv(path: Path, rows: Rows) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def write_parquet(path: Path, rows: Rows) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def refusal(action: Callable[[], object], kind: type[CcotError] = UsageError) -> CcotError:
    with pytest.raises(kind) as caught:
        action()
    assert "\n" not in caught.value.message + caught.value.fix
    assert caught.value.fix
    return caught.value


def by_id(problems: Iterable[Problem]) -> dict[str, Problem]:
    return {problem.id: problem for problem in problems}


# One solution


def test_annotations_are_stripped() -> None:
    assert read_chain("48/2 = <<48/2=24>>24 clips, <<a>>b") == "48/2 = 24 clips, b"
    assert read_chain("2 < 3 << 4") == "2 < 3 << 4"


def test_a_chain_of_equations_has_the_annotations_alone() -> None:
    text = "He ate 48/2 = <<48/2=24>>24 and 2*3=<<2*3=6>>6.\nSo <<24+6=30>>30."
    assert read_chain(text, "equations") == "48/2=24\n2*3=6\n24+6=30"
    assert read_chain("Let x be 2 + 1 = 3.", "equations") == "Let x be 2 + 1 = 3."


@pytest.mark.parametrize(
    "columns",
    [
        {"test_question_column": "asked", "test_solution_column": "solution"},
        {"test_question_column": "asked", "test_chain_column": "steps", "test_answer_column": "final"},
    ],
)
def test_test_problems_may_have_columns_of_their_own(tmp_path: Path, columns: dict[str, str]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"q": "a?", "chain": "1 + 1 = 2", "a": "2"}] * 3)
    row = {"asked": "b?", "solution": "2 + 2 = 4\n#### 4", "steps": "2 + 2 = 4", "final": "4"}
    test = write_jsonl(tmp_path / "b.jsonl", [row])
    training = {"question_column": "q", "chain_column": "chain", "answer_column": "a"}
    config = DataConfig(source=source, test_source=test, **training, **columns)
    assert load_test(config, limit=None, seed=0) == [Problem("1", "b?", "2 + 2 = 4", "4")]
    with pytest.raises(UsageError, match="has no column 'q'") as caught:
        load_test(DataConfig(source=source, test_source=test, **training), limit=None, seed=0)
    assert "data.test_…" in caught.value.fix


@pytest.mark.parametrize("answer", ["38", 39, 38.5, "$1,038", "-3", "#### 38 pens", "  \n#### 38"])
def test_a_test_problem_may_be_an_answer_without_a_chain(tmp_path: Path, answer: object) -> None:
    rows = [{"question": "a?", "answer": answer}, {"question": "b?", "answer": "1 + 1 = 2\n#### 2"}]
    config = DataConfig(source=write_jsonl(tmp_path / "a.jsonl", rows), test_source=str(tmp_path / "a.jsonl"))
    alone, solved = load_test(config, limit=None, seed=0)
    assert (alone.chain, alone.num_steps) == ("", 0)
    assert is_correct(str(answer).rpartition("####")[2], alone.answer)
    assert (solved.chain, solved.num_steps) == ("1 + 1 = 2", 1)
    with pytest.raises(UsageError, match=r"1 of the 2 rows of .* hold no problem"):
        load_test(config, limit=None, seed=0, needs_chains=True)
    with pytest.raises(UsageError, match="hold no problem"):
        load_training(config)


@pytest.mark.parametrize("answer", ["It is 38.", "38 = 38", "", "####", "1e5"])
def test_other_texts_without_a_marker_are_no_answers(tmp_path: Path, answer: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"question": "a?", "answer": answer}])
    with pytest.raises(UsageError, match="hold no problem"):
        load_test(DataConfig(source=source, test_source=source), limit=None, seed=0)


def test_a_column_of_answers_needs_no_column_of_chains(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"question": "a?", "answer": "1 + 1 = 2\n#### 2"}] * 3)
    rows = [{"question": "b?", "final": "6 pens"}, {"question": "c?", "final": 7, "steps": None}]
    config = DataConfig(source=source, test_source=write_jsonl(tmp_path / "b.jsonl", rows), test_answer_column="final")
    expected = [Problem("1", "b?", "", "6 pens"), Problem("2", "c?", "", "7")]
    assert load_test(config, limit=None, seed=0) == expected
    assert load_test(config.model_copy(update={"test_chain_column": "steps"}), limit=None, seed=0) == expected
    with pytest.raises(UsageError, match=r"row 1: it has no chain; name the chains' column in data\.test_chain_column"):
        load_test(config, limit=None, seed=0, needs_chains=True)
    with pytest.raises(UsageError, match="column 'steps' is missing or empty"):
        load_test(config.model_copy(update={"test_chain_column": "steps"}), limit=None, seed=0, needs_chains=True)


@pytest.mark.parametrize("columns", [{}, {"chain_column": "chain", "answer_column": "result"}])
def test_files_may_be_read_as_equations(tmp_path: Path, columns: dict[str, str]) -> None:
    rows = [{"question": f"q{n}", "answer": f"It is {n}+1=<<{n}+1={n + 1}>>{n + 1}.\n#### {n + 1}"} for n in range(20)]
    for row in rows:
        row["chain"], row["result"] = row["answer"].split("\n#### ")
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    config = DataConfig(source=source, test_source=source, chain="equations", **columns)
    expected = [f"{n}+1={n + 1}" for n in range(20)]
    assert [problem.chain for problem in load_test(config, limit=None, seed=0)] == expected
    assert {problem.chain for problem in load_training(config).train} < set(expected)
    assert {problem.num_steps for problem in load_training(config).train} == {1}


def test_a_solution_is_split_at_its_last_marker() -> None:
    assert split_solution("1 + 1 = <<1+1=2>>2\n#### no\n#### 2 ") == ("1 + 1 = 2\n#### no", "2")


def test_an_answer_ends_with_its_line_as_one_that_a_model_wrote() -> None:
    solution = "1 + 1 = 2\n#### 2 \n\nSo Mia has 2 pens."
    assert split_solution(solution) == ("1 + 1 = 2", "2")
    assert is_correct(read_answer(solution), split_solution(solution)[1])


@pytest.mark.parametrize(
    ("solution", "reason"),
    [
        ("1 + 1 = 2", "it has no '####' line"),
        ("#### 2", "there is nothing before '####'"),
        ("<<1+1=2>>\n#### 2", "there is nothing before '####'"),
        ("1 + 1 = 2\n####", "there is nothing after '####'"),
    ],
)
def test_a_solution_without_chain_or_answer_is_refused(solution: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        split_solution(solution)


def test_steps_are_the_lines_of_the_chain_that_hold_text() -> None:
    assert Problem("1", "q", "a\n\n b\n  \nc", "1").num_steps == 3


# Embedded


def test_embedded_problems_are_numbered_by_split_and_seed() -> None:
    config = DataConfig(limit=3, validation_limit=2, seed=5)
    loaded = load_training(config)
    assert [problem.id for problem in loaded.train] == ["train-5-0", "train-5-1", "train-5-2"]
    assert [problem.id for problem in loaded.validation] == ["validation-5-0", "validation-5-1"]
    assert [problem.id for problem in load_test(config, limit=2, seed=9)] == ["test-9-0", "test-9-1"]
    assert loaded.notes == []
    assert all("<<" not in problem.chain for problem in loaded.train)


def test_embedded_problems_without_a_limit_are_4000_and_1000() -> None:
    config = DataConfig(limit=None, validation_limit=1)
    assert len(load_training(config).train) == 4000
    assert len(load_test(config, limit=None, seed=0)) == 1000


# Files


def test_embedded_problems_have_a_second_test_split() -> None:
    config = DataConfig(limit=5, validation_limit=5)
    loaded = load_training(config)
    test = load_test(config, limit=5, seed=0)
    unseen = load_test(config.model_copy(update={"test_split": "unseen"}), limit=5, seed=0)
    assert [len(each) for each in (loaded.train, loaded.validation, test, unseen)] == [5] * 4
    assert (test[0].id, unseen[0].id) == ("test-0-0", "unseen-0-0")
    assert len({problem.question for problem in [*loaded.train, *loaded.validation, *test, *unseen]}) == 20
    with pytest.raises(UsageError, match="no split 'unsen'"):
        load_test(config.model_copy(update={"test_split": "unsen"}), limit=5, seed=0)


def test_embedded_problems_may_have_small_numbers_alone() -> None:
    problems = load_test(DataConfig(largest=20), limit=50, seed=0)
    assert max(int(number) for each in problems for number in re.findall(r"\d+", each.chain)) <= 20


def test_embedded_problems_may_be_those_of_one_file_of_forms() -> None:
    stories = load_test(DataConfig(subset="stories"), limit=5, seed=0)
    assert {len(problem.chain.split("\n")) for problem in load_test(DataConfig(subset="sums"), limit=99, seed=0)} == {
        1,
        2,
    }
    assert (
        load_test(DataConfig(subset="stories"), limit=5, seed=0) == stories != load_test(DataConfig(), limit=5, seed=0)
    )


def test_a_search_for_problems_that_hardly_exist_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_problems, "MOST_MISSES", 30)
    with pytest.raises(UsageError, match=r"there are only \d+ problems of this kind to be found"):
        load_test(DataConfig(largest=20, subset="stories"), limit=50, seed=0, steps=(10, 10))


@pytest.mark.parametrize(
    ("config", "steps", "reason"),
    [
        (DataConfig(), (1, 12), "impossible range of steps 1..12; there are problems of 1 to 10"),
        (DataConfig(subset="sums"), (4, 9), "no problem of 'sums' has 4 to 9 steps"),
        (DataConfig(subset="poems"), None, "no subset 'poems'; there are casual, "),
    ],
)
def test_embedded_problems_that_there_are_not_are_refused(
    config: DataConfig, steps: tuple[int, int] | None, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        load_test(config, limit=5, seed=0, steps=steps)


def test_test_problems_may_be_longer_than_any_that_training_saw() -> None:
    problems = load_test(DataConfig(), limit=12, seed=0, steps=(9, 10))
    assert {problem.num_steps for problem in problems} == {9, 10}


def test_a_files_test_problems_are_chosen_by_their_steps(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": "\n".join(["a step"] * n) + "\n#### 1"} for n in (1, 2, 3, 4)]
    config = DataConfig(test_source=write_jsonl(tmp_path / "a.jsonl", rows))
    assert [problem.question for problem in load_test(config, limit=None, seed=0, steps=(2, 3))] == ["q2", "q3"]
    with pytest.raises(UsageError, match="no problem of 7 to 9 steps"):
        load_test(config, limit=None, seed=0, steps=(7, 9))


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not there")
def test_gsm8ks_own_file_needs_no_settings() -> None:
    loaded = load_training(DataConfig(source=str(GSM8K), limit=None))
    assert (len(loaded.train), len(loaded.validation), loaded.notes) == (7273, 200, [])
    first = by_id(loaded.train + loaded.validation)["1"]
    assert first.question.startswith("Natalia sold clips to 48 of her friends")
    assert first.chain.startswith("Natalia sold 48/2 = 24 clips in May.\n")
    assert (first.answer, first.num_steps) == ("72", 2)


@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        (".jsonl", write_jsonl),
        (".JSONL", write_jsonl),
        (".json-lines", write_jsonl),
        (".csv", write_csv),
        (".parquet", write_parquet),
    ],
)
def test_every_kind_of_file_gives_the_same_problems(
    tmp_path: Path, suffix: str, write: Callable[[Path, Rows], str]
) -> None:
    rows = make_rows(30)
    rows[4]["question"] = 'Ünicode, "quoted"\r\nand on two lines?'
    loaded = load_training(DataConfig(source=write(tmp_path / f"problems{suffix}", rows)))
    found = by_id(loaded.train + loaded.validation)
    assert list(found) == [problem.id for problem in loaded.train + loaded.validation]
    assert set(found) == {str(number) for number in range(1, 31)}
    assert found["5"] == Problem("5", 'Ünicode, "quoted"\r\nand on two lines?', "4 + 1 = 5", "5")


def test_a_pipe_is_refused_because_it_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "problems.jsonl")
    with pytest.raises(UsageError, match="is a pipe"):
        load_training(DataConfig(source=str(tmp_path / "problems.jsonl")))


def test_chain_and_answer_may_stand_in_columns_of_their_own(tmp_path: Path) -> None:
    rows = [{"q": f" Is it {n}? ", "why": f"It is <<{n}={n}>>{n}.", "final": n + 0.5, "id": f"p{n}"} for n in range(4)]
    config = DataConfig(
        source=write_parquet(tmp_path / "own.parquet", rows),
        question_column="q",
        chain_column="why",
        answer_column="final",
    )
    loaded = load_training(config)
    assert by_id(loaded.train + loaded.validation)["p3"] == Problem("p3", "Is it 3?", "It is 3.", "3.5")


def test_a_chain_of_annotations_alone_must_be_read_as_equations(tmp_path: Path) -> None:
    rows = [{"question": f"Is it {n}?", "why": f"<<{n}+1={n + 1}>> <<{n}*2={2 * n}>>", "answer": n} for n in range(4)]
    path = write_jsonl(tmp_path / "own.jsonl", rows)
    config = DataConfig(source=path, chain_column="why", answer_column="answer")
    with pytest.raises(UsageError, match="has annotations alone"):
        load_training(config)
    [first, *_] = load_training(config.model_copy(update={"chain": "equations"})).train
    assert first.chain == "0+1=1\n0*2=0"


def test_rows_keep_the_ids_they_have(tmp_path: Path) -> None:
    rows: Rows = [{**row, "id": name} for row, name in zip(make_rows(4), ["a", "", None, 17], strict=True)]
    problems = load_test(DataConfig(test_source=write_jsonl(tmp_path / "a.jsonl", rows)), limit=None, seed=0)
    assert [problem.id for problem in problems] == ["a", "2", "3", "17"]


def test_blank_lines_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    first, second = (json.dumps(row) for row in make_rows(2))
    path = tmp_path / "a.jsonl"
    path.write_bytes(f"\ufeff{first}\r\n\r\n{second}".encode())
    problems = load_test(DataConfig(test_source=str(path)), limit=None, seed=0)
    assert [problem.id for problem in problems] == ["1", "3"]


# Holding out


def held_out(tmp_path: Path, rows: Rows, **options: Any) -> set[str]:
    config = DataConfig(source=write_jsonl(tmp_path / "problems.jsonl", rows), **options)
    return {problem.question for problem in load_training(config).validation}


def test_validation_takes_a_tenth_at_most_and_one_at_least(tmp_path: Path) -> None:
    assert len(held_out(tmp_path, make_rows(500), validation_limit=20)) == 20
    assert len(held_out(tmp_path, make_rows(100))) == 10
    assert len(held_out(tmp_path, make_rows(99))) == 9
    assert len(held_out(tmp_path, make_rows(2))) == 1


def test_validation_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    rows = make_rows(100)
    assert held_out(tmp_path, rows) == held_out(tmp_path, rows[::-1])


def test_validation_depends_on_the_seed(tmp_path: Path) -> None:
    rows = make_rows(200)
    assert held_out(tmp_path, rows, seed=0) != held_out(tmp_path, rows, seed=1)


def test_a_new_row_displaces_one_validation_problem_at_most(tmp_path: Path) -> None:
    rows = make_rows(120)
    for count in range(100, 120):
        before = held_out(tmp_path, rows[:count], validation_limit=5)
        after = held_out(tmp_path, [rows[count], *rows[:count]], validation_limit=5)
        assert len(before - after) <= 1
        assert after - before <= {rows[count]["question"]}


def test_training_and_validation_share_no_question_and_lose_none(tmp_path: Path) -> None:
    rows = make_rows(50)
    loaded = load_training(DataConfig(source=write_jsonl(tmp_path / "a.jsonl", rows)))
    train, validation = ([problem.question for problem in split] for split in (loaded.train, loaded.validation))
    assert sorted(train + validation) == sorted(row["question"] for row in rows)
    assert not set(train) & set(validation)


def test_validation_problems_may_have_a_source_of_their_own(tmp_path: Path) -> None:
    rows = make_rows(50)
    source = write_jsonl(tmp_path / "a.jsonl", rows[:40])
    own = write_jsonl(tmp_path / "b.jsonl", rows[35:])
    loaded = load_training(DataConfig(source=source, validation_source=own, validation_limit=12))
    # A question of both files is for validation, and those beyond the limit are used for nothing.
    assert [problem.question for problem in loaded.validation] == [row["question"] for row in rows[35:47]]
    assert [problem.question for problem in loaded.train] == [row["question"] for row in rows[:35]]
    assert loaded.notes == ["rows left out: 5 that are validation problems"]
    ids = [problem.id for problem in (*loaded.train, *loaded.validation)]
    assert len(set(ids)) == len(ids)


def test_embedded_problems_and_files_validate_each_other(tmp_path: Path) -> None:
    rows = make_rows(50)
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    generated = load_training(DataConfig(source="embedded", validation_source=path, limit=9, validation_limit=4))
    assert (len(generated.train), [problem.question for problem in generated.validation]) == (
        9,
        [row["question"] for row in rows[:4]],
    )
    read = load_training(DataConfig(source=path, validation_source="embedded", validation_limit=4))
    assert len(read.train) == 50
    assert read.validation == load_training(DataConfig(limit=1, validation_limit=4)).validation


def test_validation_sources_without_use_are_refused(tmp_path: Path) -> None:
    rows = make_rows(9)
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    same = refusal(lambda: load_training(DataConfig(source=path, validation_source=path)))
    assert same.message == "every training problem is a validation problem too"
    bad = write_jsonl(tmp_path / "b.jsonl", [*rows, {"question": "What?", "answer": "no marker"}])
    assert "row 10" in refusal(lambda: load_training(DataConfig(source=path, validation_source=bad))).message


def test_the_limit_takes_the_first_training_problems_in_file_order(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", make_rows(50))
    whole = load_training(DataConfig(source=source, limit=None))
    limited = load_training(DataConfig(source=source, limit=7))
    assert [int(problem.id) for problem in whole.train] == sorted(int(problem.id) for problem in whole.train)
    assert limited.train == whole.train[:7]
    assert limited.validation == whole.validation
    left_out = len(whole.train) - 7
    assert (whole.notes, limited.notes) == ([], [f"rows left out: {left_out} beyond data.limit, 7 (--limit)"])


def test_the_first_of_equal_questions_counts(tmp_path: Path) -> None:
    rows = make_rows(20)
    repeated = {"question": f" {rows[0]['question']}", "answer": "by heart\n#### 99"}
    loaded = load_training(DataConfig(source=write_jsonl(tmp_path / "a.jsonl", [*rows, repeated, repeated])))
    problems = loaded.train + loaded.validation
    assert len(problems) == 20
    assert by_id(problems)["1"].answer == "1"
    assert [problem.id for problem in loaded.train] == sorted((p.id for p in loaded.train), key=int)
    assert loaded.notes == ["rows left out: 2 that repeat an earlier question"]


# Bad rows


BAD_ROWS = [
    ("not json", "it is not JSON"),
    ("[" * 100_000, "it is not JSON"),
    ("[1]", "it is JSON, but not an object with columns"),
    ({"question": "q"}, "column 'answer' is missing or empty"),
    ({"question": " ", "answer": "a\n#### 1"}, "column 'question' is missing or empty"),
    ({"question": None, "answer": "a\n#### 1"}, "column 'question' is missing or empty"),
    ({"question": ["q"], "answer": "a\n#### 1"}, "column 'question' holds no text but a list"),
    ({"question": True, "answer": "a\n#### 1"}, "column 'question' holds no text but a bool"),
    ({"question": "half a pair \ud800", "answer": "a\n#### 1"}, "column 'question' holds broken characters"),
    ({"question": "q", "answer": "a\n#### 1", "id": [1]}, "column 'id' holds no text but a list"),
    ({"question": "q", "answer": "a"}, "it has no '####' line"),
    ({"question": "q", "answer": "#### 1"}, "there is nothing before '####'"),
]


@pytest.mark.parametrize(("row", "reason"), BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_a_bad_row_among_a_hundred_is_passed_over_and_noted(tmp_path: Path, row: object, reason: str) -> None:
    rows = [*make_rows(99)[:6], row, *make_rows(99)[6:]]
    loaded = load_training(DataConfig(source=write_jsonl(tmp_path / "a.jsonl", rows)))
    assert len(loaded.train) + len(loaded.validation) == 99
    assert loaded.notes == [f"rows left out: 1 without a problem (row 7: {reason})"]


def test_more_bad_rows_than_one_in_a_hundred_are_refused_with_the_first_three(tmp_path: Path) -> None:
    rows: list[Any] = [*make_rows(200), "x", {"question": "q"}, {"question": "q", "answer": "a"}, "y"]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    assert refusal(lambda: load_training(DataConfig(source=source))).message == (
        f"4 of the 204 rows of {source} hold no problem (row 201: it is not JSON;"
        " row 202: column 'answer' is missing or empty; row 203: it has no '####' line; …)"
    )


def test_a_bad_test_row_is_refused_however_many_are_good(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [*make_rows(500), "x"])
    error = refusal(lambda: load_test(DataConfig(test_source=source), limit=10, seed=0))
    assert error.message == f"1 of the 501 rows of {source} hold no problem (row 501: it is not JSON)"


def test_a_broken_byte_spoils_its_row_only(tmp_path: Path) -> None:
    for name, write in (("a.jsonl", write_jsonl), ("a.csv", write_csv)):
        source = Path(write(tmp_path / name, make_rows(100)))
        source.write_bytes(source.read_bytes().replace(b"What is 7 ", b"What is \xff "))
        loaded = load_training(DataConfig(source=str(source)))
        assert loaded.notes == ["rows left out: 1 without a problem (row 8: column 'question' holds broken characters)"]


def test_csv_rows_with_too_many_or_too_few_cells_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("question,answer\nHow, many?,a #### 1\nHow many?\n", encoding="utf-8")
    message = refusal(lambda: load_training(DataConfig(source=str(path)))).message
    assert "row 1: it has more cells than the header; row 2: column 'answer' is missing or empty" in message


# Sources that do not work


def test_the_file_of_a_user_who_is_not_there_is_named() -> None:
    config = DataConfig(source="~nobody-at-all/x.jsonl")
    assert refusal(lambda: load_training(config)).message == "there is no file ~nobody-at-all/x.jsonl"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("none.jsonl", "none.csv", "none.parquet", "none"):
        path = tmp_path / name
        assert (
            refusal(lambda path=path: load_training(DataConfig(source=str(path)))).message == f"there is no file {path}"
        )


def test_a_file_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "problems.txt"
    path.write_text("What is 1 + 1?")
    error = refusal(lambda: load_training(DataConfig(source=str(path))))
    assert error.message == f"{path} is no kind of file that can be read"
    assert ".jsonl" in error.fix


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b'{"question": 1}'])
def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    assert f"{path} cannot be read" in refusal(lambda: load_training(DataConfig(source=str(path)))).message


def test_a_csv_cell_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('question,answer\n"' + "x" * 200_000)
    assert (
        f"{path} cannot be read: field larger" in refusal(lambda: load_training(DataConfig(source=str(path)))).message
    )


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", ""), ("a.jsonl", "\n\n"), ("a.csv", "question,answer\n")])
def test_a_file_without_problems_is_refused(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert refusal(lambda: load_training(DataConfig(source=str(path)))).message == f"{path} holds no problems"


def test_a_single_question_cannot_be_learnt_and_validated(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", make_rows(1) * 3)
    error = refusal(lambda: load_training(DataConfig(source=source)))
    assert error.message == f"{source} holds only one question"


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"question_column": "prompt"}, "prompt"),
        ({"solution_column": "solution"}, "solution"),
        ({"chain_column": "chain", "answer_column": "answer"}, "chain"),
        ({"chain_column": "question", "answer_column": "final"}, "final"),
    ],
)
def test_a_missing_column_is_refused_with_the_columns_that_are_there(
    tmp_path: Path, settings: dict[str, str], wanted: str
) -> None:
    source = write_csv(tmp_path / "a.csv", make_rows(3))
    error = refusal(lambda: load_training(DataConfig(source=source, **settings)))  # type: ignore[arg-type]
    assert error.message == f"{source} has no column {wanted!r}; it has question, answer"


def test_test_problems_of_a_file_must_be_named(tmp_path: Path) -> None:
    config = DataConfig(source=write_jsonl(tmp_path / "a.jsonl", make_rows(9)))
    error = refusal(lambda: load_test(config, limit=1, seed=0))
    assert error.message == "no test problems are named"
    assert error.fix == "set data.test_source, or give --data FILE to `ccot eval`"


def test_test_problems_are_the_first_of_the_test_source(tmp_path: Path) -> None:
    config = DataConfig(source="a.jsonl", test_source=write_jsonl(tmp_path / "test.jsonl", make_rows(9)))
    assert [problem.id for problem in load_test(config, limit=4, seed=3)] == ["1", "2", "3", "4"]
    assert len(load_test(config, limit=None, seed=0)) == 9


def test_embedded_test_problems_serve_any_source() -> None:
    config = DataConfig(source="a.jsonl", test_source="embedded")
    assert [problem.id for problem in load_test(config, limit=1, seed=2)] == ["test-2-0"]
    # The subset is that of the training source, unless this is a file, which has none.
    config = DataConfig(source="openai/gsm8k", subset="main", test_source="embedded")
    assert len(load_test(config, limit=1, seed=2)) == 1
    config = DataConfig(source="a.jsonl", subset="none", test_source="embedded")
    assert "no subset 'none'" in refusal(lambda: load_test(config, limit=1, seed=2)).message


# The hub


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "hub_answers", lambda: True)


@pytest.mark.usefixtures("online")
def test_hub_data_sets_are_asked_for_by_subset_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(*names: str, split: str) -> datasets.Dataset:
        calls.append((*names, split))
        return datasets.Dataset.from_list(make_rows(30))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    config = DataConfig(source="openai/gsm8k", subset="main", split="train[:30]")
    loaded = load_training(config)
    assert len(loaded.train) == 27
    assert [problem.id for problem in load_test(config, limit=2, seed=0)] == ["1", "2"]
    assert calls == [("openai/gsm8k", "main", "train[:30]"), ("openai/gsm8k", "main", "test")]
    load_test(DataConfig(source="embedded", subset="sums", test_source="openai/gsm8k"), limit=2, seed=0)
    assert calls[-1] == ("openai/gsm8k", None, "test")


def test_a_folder_is_loaded_as_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    write_parquet(folder / "train.parquet", make_rows(20))
    write_parquet(folder / "test.parquet", make_rows(5))
    config = DataConfig(source=str(folder))
    assert len(load_training(config).train) == 18
    assert len(load_test(config, limit=None, seed=0)) == 5
    missing_split = config.model_copy(update={"split": "dev"})
    assert "Unknown split" in refusal(lambda: load_training(missing_split)).message


def test_a_hub_that_does_not_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    error = refusal(lambda: load_training(DataConfig(source="some/data")), ResourceError)
    assert error.message.startswith("cannot fetch the data set 'some/data': ")
    assert slept == []


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("reason", [ConnectionError("Couldn't reach it\non the Hub"), OSError(28, "No space left")])
def test_a_hub_out_of_reach_shows_the_offline_way(monkeypatch: pytest.MonkeyPatch, reason: OSError) -> None:
    monkeypatch.setattr(datasets, "load_dataset", raising(reason))
    error = refusal(lambda: load_training(DataConfig(source="openai/gsm8k")), ResourceError)
    assert error.message.startswith("cannot fetch the data set 'openai/gsm8k': ")
    assert "HF_HUB_OFFLINE=1" in error.fix


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize(
    "reason",
    [
        datasets.exceptions.DatasetNotFoundError("Dataset 'x/y' doesn't exist"),
        datasets.exceptions.DatasetGenerationError("An error occurred"),
        ValueError("Config name is missing.\nPlease pick one: ['main', 'socratic']" + " or" * 100),
        RuntimeError("Dataset scripts are no longer supported"),
    ],
)
def test_a_data_set_that_cannot_be_loaded_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, reason: Exception
) -> None:
    monkeypatch.setattr(datasets, "load_dataset", raising(reason))
    error = refusal(lambda: load_training(DataConfig(source="x/y")))
    assert error.message.startswith(f"cannot load the data set 'x/y': {str(reason)[:10]}")
    assert len(error.message) < 250


def raising(error: Exception) -> Callable[..., object]:
    def load_dataset(*_names: str, split: str) -> object:
        raise error

    return load_dataset
