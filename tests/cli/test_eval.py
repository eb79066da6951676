"""`ccot eval` prints its tables, keeps them, and draws them."""

import json
import re
import zipfile
from pathlib import Path

import pytest
from workspace.making import edit_manifest

from ccot_cli.data.problems import load_test
from ccot_cli.workspace.workspace import Workspace
from cli.running import Output, output


def test_eval_prints_one_json_object(trained: Path, capsys: Output) -> None:
    out, _ = output(capsys, "eval", "--format", "json", "--no-save")
    result = json.loads(out)
    assert [(row["method"], row["ratio"]) for row in result["rows"]] == [("direct", 0.0), ("ccot", 0.1), ("cot", 1.0)]
    assert {"n", "accuracy", "low", "high", "seconds_mean", "contemplation_tokens_mean"} <= result["rows"][0].keys()
    runs = [
        {adapter: [(run["steps"], run["problems"], run["passes"]) for run in runs]}
        for row in result["rows"]
        for adapter, runs in row["training"].items()
    ]
    # 12 problems, two batches: φ has a pass on gold inputs and one on rollouts.
    assert runs == [{"psi": [(2, 12, 1)]}, {"phi": [(4, 12, 2)]}, {"psi": [(2, 12, 1)]}]
    assert result["folder"] is None
    assert not (trained / "eval").exists()


def test_eval_draws_a_table_and_says_where_it_is_kept(trained: Path, capsys: Output) -> None:
    out, _ = output(capsys, "eval", "--ratio", "0", "--ratio", "0.1", "--limit", "3")
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [["direct", "0"], ["ccot", "0.1"]]
    folder = next((trained / "eval").iterdir())
    assert folder.name in out
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "metrics.json", "predictions.jsonl"}


@pytest.mark.parametrize("named", [["--methods", "cot, ccot"], ["--method", "cot", "--method", "ccot"]])
def test_methods_are_named_one_by_one_or_separated_by_commas(trained: Path, capsys: Output, named: list[str]) -> None:
    out, _ = output(capsys, "eval", *named, "--limit", "2", "--format", "json", "--no-save")
    assert {row["method"] for row in json.loads(out)["rows"]} == {"ccot", "cot"}


def test_eval_shows_controls_and_baselines_beside_the_method(trained: Path, capsys: Output) -> None:
    out, err = output(capsys, "train-baseline", "pause", "--ratio", "0.1")
    assert "pause at r = 0.1: " in out
    assert "validation accuracy" in out
    assert "next:  ccot eval" in err
    out, _ = output(capsys, "eval", "--ratio", "0.1", "--controls", "--no-save")
    named = [line.split("  ")[0].strip() for line in out.splitlines() if re.search(r"  0\.1  ", line)]
    names = ["ccot", "ccot, zeroed", "ccot, shuffled", "ccot, noise", "ccot, untrained", "pause"]
    assert named == [*names, *names, "ccot", "ccot", "pause"]  # by method, by steps, and by adapter
    out, _ = output(capsys, "status", "--format", "json")
    assert {"stage": "train-baseline", "key": "pause-r0.10", "state": "ready"}.items() <= next(
        row for row in json.loads(out)["artifacts"] if row["key"] == "pause-r0.10"
    ).items()


def test_eval_of_longer_problems_counts_their_steps(trained: Path, capsys: Output) -> None:
    out, _ = output(capsys, "eval", "--ratio", "0", "--steps", "9", "10", "--format", "json", "--no-save")
    assert json.loads(out)["rows"][0]["by_steps"].keys() <= {"9", "10"}
    _, err = output(capsys, "eval", "--steps", "9", "2", code=2)
    assert "--steps" in err
    assert "steps are a range" in err


def test_methods_are_chosen_by_name_and_shown_in_every_format(trained: Path, capsys: Output) -> None:
    out, _ = output(capsys, "eval", "--limit", "4", "--methods", "direct,few-shot", "--format", "json")
    result = json.loads(out)
    assert [row["method"] for row in result["rows"]] == ["direct", "few-shot"]
    assert [(pair["method"], pair["than"]) for pair in result["pairs"]] == [("few-shot", "direct")]
    assert result["traits"]["few-shot"]["format"] == "discrete"
    out, _ = output(capsys, "eval", "--limit", "4", "--methods", "all", "--format", "latex")
    assert out.count(r"\begin{table}") == out.count(r"\end{table}") == 4
    assert all(f"\n    {name} & " in out for name in ("direct", "ccot", "cot", "zero-shot", "few-shot"))
    out, _ = output(capsys, "eval", "--limit", "4", "--format", "markdown")
    assert "| ccot | 0.1 |" in out
    _, err = output(capsys, "eval", "--methods", "pause", code=3)
    assert "ccot train-baseline pause" in err
    _, err = output(capsys, "eval", "--methods", "paws", code=2)
    assert "no method 'paws'" in err
    assert "ccot, direct, cot, pause" in err


def test_a_picture_is_drawn_where_it_is_asked_for(trained: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib")
    out, err = output(capsys, "eval", "--limit", "4", "--plot", "frontier.svg")
    assert "Exact match against seconds" in out
    assert "drawn into frontier.svg" in err
    assert (trained / "frontier.svg").read_text().startswith("<?xml")
    _, err = output(capsys, "eval", "--plot", "frontier.gif", code=2)
    assert ".png nor .svg" in err


@pytest.mark.parametrize("is_training_file", [True, False])
def test_test_problems_that_were_trained_on_are_pointed_out(
    trained: Path, capsys: Output, is_training_file: bool
) -> None:
    rows = [json.loads(line) for line in (trained / "precompute" / "problems.jsonl").read_text().splitlines()]
    lines = [{"question": row["question"], "answer": f"{row['chain']}\n#### {row['answer']}"} for row in rows]
    Path("own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if is_training_file:
        artifact = Workspace.open(trained).require("precompute")
        config = artifact.manifest.config
        data = config["data"] | {"source": str(Path("own.jsonl").absolute())}
        edit_manifest(artifact, config=config | {"data": data})
    _, err = output(capsys, "eval", "--method", "cot", "--data", "./own.jsonl", "--limit", "2", "--no-save")
    assert ("warning: the test problems are those of training" in err) == is_training_file


def test_questions_with_answers_alone_are_evaluated(trained: Path, capsys: Output) -> None:
    rows = [{"question": f"Mia has {number} pens. How many pens does Mia have?", "answer": number} for number in (3, 4)]
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, _ = output(capsys, "eval", "--method", "ccot", "--data", "own.jsonl")
    assert "Exact match by number of reasoning steps" not in out
    [path] = trained.glob("eval/*/predictions.jsonl")
    assert {json.loads(line)["num_steps"] for line in path.read_text().splitlines()} == {None}
    output(capsys, "export", "methods.zip")
    with zipfile.ZipFile("methods.zip") as archive:
        assert "## 2 problems of `own.jsonl`, seed 0\n" in archive.read("README.md").decode()
    _, err = output(capsys, "inspect", "--data", "own.jsonl", code=2)
    assert "2 of the 2 rows of" in err


def test_a_prediction_has_its_question(trained: Path, capsys: Output) -> None:
    output(capsys, "eval", "--method", "direct", "--limit", "2")
    [path] = trained.glob("eval/*/predictions.jsonl")
    predictions = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(predictions) == 2
    settings = Workspace.open(trained).settings
    asked = {problem.question for problem in load_test(settings.data, limit=2, seed=settings.eval.seed)}
    assert {each["question"] for each in predictions} == asked


def test_kept_evaluations_are_compared(trained: Path, capsys: Output) -> None:
    for limit in ("3", "4"):
        output(capsys, "eval", "--method", "ccot", "--limit", limit)
    first, second = sorted(path.name for path in (trained / "eval").iterdir())
    out, _ = output(capsys, "eval", "--compare", first, second)
    head, row = out.splitlines()[1:]
    assert head.split()[:3] == ["method", "r", "problems"]
    assert row.split()[:3] == ["ccot", "0.1", "3"]
    assert row.split()[-3:] == ["0", "0", "1.000"]
    found = json.loads(output(capsys, "eval", "--compare", first, second, "--format", "json")[0])
    assert found["comparisons"][0]["n"] == 3
    assert len(list((trained / "eval").iterdir())) == 2
    _, err = output(capsys, "eval", "--compare", first, "none", code=3)
    assert f"one of {first}, {second}" in err


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        (["--compare", "a", "b"], ["--plot", "x.svg"]),
        (["--compare", "a", "b"], ["--harness", "ccot_gsm8k"]),
        (["--compare", "a", "b"], ["--method", "ccot"]),
        (["--compare", "a", "b"], ["--ratio", "0.1"]),
        (["--compare", "a", "b"], ["--limit", "3"]),
        (["--compare", "a", "b"], ["--seed", "0"]),
        (["--compare", "a", "b"], ["--no-save"]),
        (["--compare", "a", "b"], ["--device", "cpu"]),
        (["--compare", "a", "b"], ["--threads", "1"]),
        (["--compare", "a", "b"], ["--set", "eval.limit=3"]),
        (["--harness", "ccot_gsm8k"], ["--plot", "x.svg"]),
        (["--harness", "ccot_gsm8k"], ["--controls"]),
        (["--harness", "ccot_gsm8k"], ["--thoughts"]),
        (["--harness", "ccot_gsm8k"], ["--min-confidence", "0"]),
        (["--harness", "gsm8k"], ["--data", "test.jsonl"]),
        (["--harness", "gsm8k"], ["--steps", "1", "2"]),
        (["--harness", "mine.yaml"], ["--seed", "0"]),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    trained: Path, capsys: Output, mode: list[str], options: list[str]
) -> None:
    out, err = output(capsys, "eval", *mode, *options, code=2)
    assert out == ""
    assert err.startswith(f"error: {options[0].replace('--method', '--methods')} has no effect with {mode[0]}")


def test_thoughts_are_measured_for_ccot_alone_and_printed_on_request(trained: Path, capsys: Output) -> None:
    caption = "Verified answers"
    out, _ = output(capsys, "eval", "--ratio", "0", "--ratio", "0.1", "--controls", "--thoughts")
    _, _, row, after = out[out.index(caption) :].splitlines()[:4]
    assert row.split()[:2] == ["ccot", "0.1"]
    assert after == ""
    [path] = trained.glob("eval/*/predictions.jsonl")
    rows = {each["method"]: each for each in json.loads((path.parent / "metrics.json").read_text())["rows"]}
    assert [name for name, each in rows.items() if each["verification"]] == ["ccot"]
    figures = {"verified_right", "verified_wrong", "auroc_confidence", "auroc_number", "auroc_verified"}
    assert rows["ccot"]["verification"].keys() == figures
    predictions = [json.loads(line) for line in path.read_text().splitlines()]
    assert all((each["verified"] in (True, False)) == (each["method"] == "ccot") for each in predictions)
    assert not any("thoughts" in each for each in predictions)
    assert caption not in output(capsys, "eval", "--ratio", "0.1", "--no-save")[0]


def test_a_cascade_has_a_row_of_its_own(trained: Path, capsys: Output) -> None:
    options = ["--ratio", "0.1", "--ratio", "1", "--min-confidence", "1"]
    found = json.loads(output(capsys, "eval", *options, "--format", "json")[0])
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == ["ccot", "ccot, then cot", "cot"]
    _, both, chain = rows.values()
    assert [row["fallback"] for row in rows.values()] == [None, {"min_confidence": 1.0, "share": 1.0}, None]
    assert both["accuracy"] == chain["accuracy"]
    counts = [row["contemplation_tokens_mean"] for row in rows.values()]
    assert counts[1] == counts[0] + counts[2]
    assert both["seconds_mean"] > 0
    assert ("ccot, then cot", "ccot") in {(pair["method"], pair["than"]) for pair in found["pairs"]}
    [path] = trained.glob("eval/*/predictions.jsonl")
    predictions = [json.loads(line) for line in path.read_text().splitlines()]
    assert {each["method"] for each in predictions if each["is_fallback"]} == {"ccot, then cot"}
    head, _, row, _ = output(capsys, "eval", *options, "--no-save")[0].splitlines()[1:5]
    assert head.endswith("to chain")
    assert row.endswith("100.0%")
    assert "to chain" not in output(capsys, "eval", "--ratio", "0.1", "--no-save")[0]
