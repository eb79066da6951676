"""`ccot eval --harness` measures with lm-evaluation-harness what `ccot eval` measures, problem by problem."""

import json
import sys
from pathlib import Path

import datasets
import pytest

from ccot_cli.config import Settings
from ccot_cli.models.methods.method import Method, Reply, Seconds
from ccot_cli.names import USUAL_RATIO
from ccot_cli.progress import Progress
from cli.running import Output, output

QUESTION = "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?"


def write_task(answer: object, **settings: object) -> None:
    """Write a task of the harness with one problem to mine.yaml."""
    Path("rows.jsonl").write_text(json.dumps({"question": "2 + 2 =", "answer": answer}) + "\n")
    task = {
        "task": "mine",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}, "cache_dir": "cache"},
        "test_split": "test",
        "doc_to_text": "question",
        "doc_to_target": "answer",
        **settings,
    }
    Path("mine.yaml").write_text(json.dumps(task))


class TestWithTheHarness:
    """Needs lm_eval, which is no locked package."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("lm_eval")

    @pytest.mark.slow
    def test_it_agrees_with_our_evaluation_on_every_problem(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ccot_cli.stages import evaluate, harness

        settings = Settings(eval={"limit": 50})
        chosen = {"names": ["direct", "ccot"], "ratios": [USUAL_RATIO], "progress": Progress()}
        found = harness.run(None, settings, harness.OWN_TASK, **chosen)
        assert [(row.method, row.ratio, row.n) for row in found.rows] == [("direct", 0, 50), ("ccot", 0.1, 50)]
        methods = evaluate.find_methods(None, settings)
        problems = evaluate.problems_to_ask(methods, settings, 50, Progress())
        for row, loadable in zip(found.rows, methods.choose(chosen["names"], chosen["ratios"]), strict=True):
            ours = evaluate.measure(loadable.load(), problems, settings.eval.batch_size, Progress())
            assert row.scores == {"exact_match,none": [float(right) for right in ours.are_right]}
            assert row.metrics == {"exact_match,none": pytest.approx(ours.row.accuracy, abs=1e-12)}
            assert 0 < ours.row.accuracy < 1

    def test_a_command_measures_a_workspace_and_shows_it(self, trained: Path, capsys: Output) -> None:
        arguments = ("eval", "--harness", "ccot_gsm8k", "--limit", "3", "--method", "cot")
        out, err = output(capsys, *arguments)
        assert [line.split()[:6] for line in out.splitlines()[1:]] == [
            ["method", "r", "task", "problems", "metric", "filter"],
            ["cot", "1", "ccot_gsm8k", "3", "exact_match", "none"],
        ]
        assert "cot r = 1: 3 problems in" in err
        assert not (trained / "eval").exists()

    @pytest.mark.parametrize("text", ["{task: mine, dataset_path: json, output_type: [}", None])
    def test_a_task_that_cannot_be_loaded_is_a_wrong_argument(
        self, trained: Path, capsys: Output, text: str | None
    ) -> None:
        if text is not None:
            Path("mine.yaml").write_text(text)
        out, err = output(capsys, "eval", "--harness", "mine.yaml", "--method", "cot", code=2)
        assert out == ""
        assert "cannot load task mine.yaml: " in err
        assert "--harness ccot_gsm8k" in err

    def test_data_out_of_reach_are_no_wrong_argument(
        self, trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(**_: object) -> None:
            raise ConnectionError("no network")

        monkeypatch.setattr(datasets, "load_dataset", fail)
        _, err = output(capsys, "eval", "--harness", "ccot_gsm8k", "--method", "cot", code=5)
        assert "the data of task " in err
        assert "no network" in err

    def test_the_ceiling_reads_chains_that_only_our_task_has(
        self, trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ccot_cli.stages import harness

        asked: list[str] = []

        def reply(method: Method, questions: list[str]) -> tuple[list[Reply], Seconds]:
            asked.append(method.name)
            return [Reply("4", "", 0, 1, False, 1.0) for _ in questions], Seconds(0, 0, 0)

        output(capsys, "train-baseline", "gold", "--ratio", "0.1")
        write_task("4", output_type="generate_until", metric_list=[{"metric": "exact_match"}])
        monkeypatch.setattr(harness, "reply_in_parts", reply)
        output(capsys, "eval", "--harness", "mine.yaml")
        assert {"ccot", "cot"} <= {*asked}
        assert "gold" not in asked

    def test_probabilities_are_refused(self, trained: Path, capsys: Output) -> None:
        write_task(1, output_type="multiple_choice", doc_to_choice=["3", "4"])
        _, err = output(capsys, "eval", "--harness", "mine.yaml", "--method", "cot", code=2)
        assert "how probable given texts are" in err

    @pytest.mark.slow
    def test_gsm8ks_own_task_reads_our_answers(
        self, trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ccot_cli.stages import harness

        def load(*_: object, **__: object) -> datasets.DatasetDict:
            rows = datasets.Dataset.from_list([{"question": QUESTION, "answer": "12 + 7 = 19\n#### 19"}])
            return datasets.DatasetDict({"train": rows, "test": rows})

        def reply(_method: object, questions: list[str]) -> tuple[list[Reply], Seconds]:
            assert questions == [f"Question: {QUESTION}\nAnswer:"]
            return [Reply("19", "So 19.", 0, 1, False, 1.0)], Seconds(0, 0, 0)

        monkeypatch.setattr(datasets, "load_dataset", load)
        monkeypatch.setattr(harness, "reply_in_parts", reply)
        out, _ = output(capsys, "eval", "--harness", "gsm8k", "--method", "cot", "--format", "json")
        [row] = json.loads(out)["rows"]
        assert row["metrics"] == {"exact_match,strict-match": 1, "exact_match,flexible-extract": 1}
        _, err = output(capsys, "eval", "--harness", "gsm8kk", "--method", "cot", code=2)
        assert "gsm8kk" in err

    @pytest.mark.parametrize(
        ("said", "is_right"), [("19", 1), ("$19.00 dollars", 1), ("9", 0), ("", 0), ("19 #### 3", 1), ("-19", 0)]
    )
    def test_answers_are_graded_by_our_rule(self, said: str, is_right: float) -> None:
        from ccot_cli.stages.harness import ANSWER_START, grade

        problem = {"question": QUESTION, "answer": "12 + 7 = 19\n#### 19"}
        assert grade(problem, [f"It is 3.{ANSWER_START}{said}"]) == {"exact_match": is_right}


def test_without_the_harness_it_says_how_to_install_it(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ccot_cli.stages.harness", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    _, err = output(capsys, "eval", "--harness", "ccot_gsm8k", code=2)
    assert err == "error: the harness needs lm_eval\nfix:   pip install 'ccot-cli[harness]'\n"


def test_the_harness_runs_in_one_process(trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    _, err = output(capsys, "eval", "--harness", "ccot_gsm8k", code=2)
    assert "the harness runs in one process" in err
