"""Figures of an evaluation, from replies that are known, and what a workspace's methods come to."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ccot_cli.config import Settings
from ccot_cli.data.problems import Problem, load_test
from ccot_cli.errors import BusyError, CorruptError, UsageError
from ccot_cli.models.base.history import History
from ccot_cli.models.methods.method import Reply, Seconds
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import evaluate
from ccot_cli.stages.ask import Asker
from ccot_cli.stages.evaluate import Pair
from ccot_cli.stages.methods import LoadableMethod, find_methods
from ccot_cli.stages.statistics import mcnemar, wilson
from ccot_cli.stages.validation import validate_method
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.workspace import Workspace
from stages.runs import RATIO, MakeRun, Told


def problem(number: int, answer: str, num_steps: int) -> Problem:
    return Problem(str(number), f"question {number}", "\n".join(["a step"] * num_steps), answer)


PROBLEMS = [problem(0, "3", 2), problem(1, "14", 2), problem(2, "15", 3), problem(3, "92", 3), problem(4, "65", 4)]
SAID = ["3", "15", "15.0", "", "65"]
"""Right, wrong, right, nothing, right."""


@dataclass
class Scripted:
    """Gives scripted answers; each batch takes the next of its times."""

    said: dict[str, str]
    times: list[Seconds]
    name: str = "ccot"
    ratio: Decimal = Decimal("0.1")
    training: dict[str, History | None] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)

    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        self.asked.append(list(questions))
        replies = [
            Reply(self.said[each], self.said[each], number_of(each), 2, self.said[each] == "", confidence=1.0)
            for each in questions
        ]
        return replies, self.times[len(self.asked) - 1]


def number_of(question: str) -> int:
    """The number of `question 3`."""
    return int(question[-1]) if question[-1].isdigit() else 0


def scripted() -> Scripted:
    said = {each.question: answer for each, answer in zip(PROBLEMS, SAID, strict=True)}
    # The first batch is asked twice: the first time is a warm-up, which is not counted.
    return Scripted(said, [Seconds(9, 9, 9), Seconds(1, 2, 3), Seconds(0.5, 0.25, 0.25), Seconds(0.2, 0.4, 0.6)])


def test_a_row_says_what_was_answered_and_how_long_it_took() -> None:
    method = scripted()
    row, replies, marks = evaluate.measure(method, PROBLEMS, 2, Progress())
    assert method.asked == [["question 0", "question 1"]] * 2 + [["question 2", "question 3"], ["question 4"]]
    assert marks == [True, False, True, False, True]
    assert [reply.answer for reply in replies] == SAID
    assert (row.method, row.ratio, row.n) == ("ccot", 0.1, 5)
    assert (row.accuracy, row.low, row.high) == (0.6, wilson(3, 5).low, wilson(3, 5).high)
    assert row.by_steps == {"2": wilson(1, 2), "3": wilson(1, 2), "4": wilson(1, 1)}
    # Each question of a batch took its share: 3, 3, 0.5, 0.5 and 1.2 seconds.
    assert row.seconds_mean == pytest.approx(8.2 / 5)
    assert row.seconds_median == pytest.approx(1.2)
    assert row.seconds_p95 == 3
    assert row.prefill_seconds_mean == pytest.approx(1.7 / 5)
    assert row.contemplation_seconds_mean == pytest.approx(2.65 / 5)
    assert row.answer_seconds_mean == pytest.approx(3.85 / 5)
    # All are certain, and three of five are right.
    assert (row.calibration_error, row.fallback) == (pytest.approx(0.4), None)
    assert (row.contemplation_tokens_mean, row.answer_tokens_mean, row.truncated_share) == (2.0, 2.0, 0.2)


def test_the_slowest_of_twenty_is_not_their_95th_percentile() -> None:
    problems = [problem(number, "1", 1) for number in range(20)]
    said = {each.question: "1" for each in problems}
    method = Scripted(said, [Seconds(0, 0, 0), *(Seconds(0, 0, number) for number in range(20))])
    assert evaluate.measure(method, problems, 1, Progress()).row.seconds_p95 == 18


def test_validation_counts_what_is_right() -> None:
    method = scripted()
    found = validate_method(method, PROBLEMS, 2, Progress())
    assert (found.accuracy, found.mean_tokens) == (0.6, 2.0)
    assert (found.scores, found.are_right) == ([1.0] * 5, [True, False, True, False, True])


def test_methods_are_compared_with_answering_at_once_and_with_ccot_of_their_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {
        ("direct", 0.0): [True, False, False, False],
        ("ccot", 0.05): [True, True, False, False],
        ("ccot", 0.1): [False, True, True, True],
        ("pause", 0.1): [False, False, False, True],
        ("cot", 1.0): [True, True, True, True],
    }

    @dataclass
    class Shelf:
        """Methods that are right on the problems listed for them."""

        theta = SimpleNamespace(name="tiny", device_name="cpu", longest_query=None)
        data = Settings().data
        unusable: Mapping[str, object]

        def choose(self, names: Sequence[str], ratios: Sequence[Decimal]) -> list[LoadableMethod]:
            return [LoadableMethod(Decimal(str(ratio)), name, partial(self.load, name, ratio)) for name, ratio in known]

        def load(self, name: str, ratio: float) -> Scripted:
            tests = sorted(load_test(self.data, limit=4, seed=0), key=lambda problem: len(problem.question))
            said = {
                each.question: each.answer if mark else "?"
                for each, mark in zip(tests, known[name, ratio], strict=True)
            }
            return Scripted(said, [Seconds(1, 1, 1)] * 3, name, Decimal(str(ratio)))

    monkeypatch.setattr(evaluate, "find_methods", lambda *_, **__: Shelf({}))
    found = evaluate.run(None, override(Settings(), {"eval.limit": 4}), progress=Progress()).pairs
    # (wins, losses) of the first over the second.
    expected = {
        ("ccot", 0.05, "direct"): (1, 0),
        ("ccot", 0.1, "direct"): (3, 1),
        ("pause", 0.1, "direct"): (1, 1),
        ("cot", 1.0, "direct"): (3, 0),
        ("direct", 0.0, "ccot 0.05"): (0, 1),
        ("cot", 1.0, "ccot 0.05"): (2, 0),
        ("direct", 0.0, "ccot 0.1"): (1, 3),
        ("pause", 0.1, "ccot 0.1"): (0, 2),
        ("cot", 1.0, "ccot 0.1"): (1, 0),
    }
    assert {key(pair): (pair.wins, pair.losses) for pair in found} == expected
    assert len(found) == len(expected)
    assert all(pair.p == mcnemar(pair.wins, pair.losses) for pair in found)
    # Of four that one side alone has right, three or more on one side: 2 * (1 + 4) / 16.
    assert mcnemar(3, 1) == mcnemar(1, 3) == 0.625


def key(pair: Pair) -> tuple[str, float, str]:
    return pair.method, pair.ratio, pair.than if pair.than == "direct" else f"{pair.than} {pair.than_ratio:g}"


def test_controls_that_would_leave_a_question_alone_are_refused_at_once() -> None:
    settings = override(Settings(), {"eval.limit": 5, "eval.batch_size": 4})
    with pytest.raises(UsageError, match="leave one alone"):
        evaluate.run(None, settings, has_controls=True, progress=Progress())


def test_whoever_asks_problems_of_training_is_told_so(make_run: MakeRun, tmp_path: Path) -> None:
    rows = [{"question": f"{number} and 1?", "answer": f"{number} + 1\n#### {number + 1}"} for number in range(9)]
    source = tmp_path / "own.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run, told = make_run(**{"data.source": str(source), "data.test_source": str(source)}), Told()
    methods = find_methods(None, override(run.settings, {"eval.limit": 2}))
    assert len(evaluate.problems_to_ask(methods, run.settings, 2, told)) == 2
    assert [line for line in told.said if line.startswith("warning: the test problems are those of training")]


@pytest.mark.parametrize("asked", [{"has_controls": True}, {"min_confidence": 0.5}])
def test_what_is_measured_of_ccot_alone_is_refused_without_it(asked: dict[str, Any]) -> None:
    settings = override(Settings(), {"eval.limit": 5, "eval.batch_size": 4})
    with pytest.raises(UsageError, match="is for ccot, which is not evaluated here"):
        evaluate.run(None, settings, names=["direct", "cot"], progress=Progress(), **asked)


def test_controls_and_baselines_have_rows_of_their_own(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    trained, again = run.train_baseline("pause"), run.train_baseline("pause")
    assert (trained.was_ready, again.was_ready) == (False, True)
    result = evaluate.run(run.workspace, run.settings, ratios=[RATIO], has_controls=True, progress=Progress())
    names = ["ccot", "ccot, zeroed", "ccot, shuffled", "ccot, noise", "ccot, untrained", "pause"]
    assert [row.method for row in result.rows] == names
    assert len({row.contemplation_tokens_mean for row in result.rows[:5]}) == 1
    assert result.rows[-1].contemplation_tokens_mean == trained.mean_tokens >= 2


def test_an_evaluation_that_falls_back_on_the_trained_chain_was_made_from_it(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    run.train_baseline("cot")
    options: dict[str, Any]
    for options in ({}, {"min_confidence": 0.5}):
        evaluate.run(run.workspace, run.settings, names=["ccot"], progress=Progress(), **options)
    inputs = [run.workspace.require("eval", key).manifest.inputs.keys() for key in run.workspace.finished("eval")]
    assert inputs == [{"train-psi/r0.10"}, {"train-psi/r0.10", "train-baseline/cot"}]


def test_evaluation_asks_for_the_lock_first_and_leaves_nothing_when_stopped(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")

    def measured(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "measure", measured)
    other = Workspace.open(run.workspace.root)
    with other.building(ArtifactSpec("score", "r0.50", {}, {})), pytest.raises(BusyError):
        evaluate.run(other, run.settings, progress=Progress())
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(other, run.settings, progress=Progress())
    assert not list((run.workspace.root / "eval").glob("*"))


def test_what_killed_evaluations_have_left_goes_and_nothing_else(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    own = run.workspace.root / "eval" / "notes" / "of-mine.txt"
    own.parent.mkdir(parents=True)
    own.touch()
    today = datetime.now(UTC).date().isoformat()
    for key in (f"{today}-1", "2026-01-31-1"):
        with suppress(KeyboardInterrupt), run.workspace.building(ArtifactSpec("eval", key, {}, {})):
            raise KeyboardInterrupt
    evaluate.run(run.workspace, run.settings, names=("direct",), progress=Progress())
    assert run.workspace.finished("eval") == [f"{today}-1"]
    assert own.exists()
    assert sorted(path.name for path in own.parent.parent.iterdir()) == [f"{today}-1", "notes"]


def test_test_questions_that_are_too_long_are_left_out(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(family="gpt2", **{"data.test_source": str(tmp_path / "test.jsonl")})
    run.precompute()
    run.train_baseline("direct")

    def write(*counts: int) -> None:
        questions = [f"{number} pens? " * count for number, count in enumerate(counts)]
        lines = [json.dumps({"question": question, "answer": "3 + 4 = 7\n#### 7"}) for question in questions]
        (tmp_path / "test.jsonl").write_text("\n".join(lines))

    write(3, 900, 2)
    told = Told()
    result = evaluate.run(run.workspace, run.settings, names=("direct",), progress=told)
    assert [row.n for row in result.rows] == [2]
    assert "1 questions are too long for the model: left out" in told.said
    write(900)
    with pytest.raises(UsageError, match="no question is short enough"):
        evaluate.run(run.workspace, run.settings, names=("direct",), progress=told)


def test_solutions_that_are_too_long_are_left_out_if_they_are_read(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(family="gpt2", **{"data.test_source": str(tmp_path / "test.jsonl")})
    chains = ["3 + 4 = 7", "3 + 4 = 7\n" * 300]
    rows = [{"question": f"{number} pens?", "answer": f"{chain}\n#### 7"} for number, chain in enumerate(chains)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    methods = find_methods(None, run.settings, may_have_none=True)
    for needs_chains, expected in ((False, 2), (True, 1)):
        problems = evaluate.problems_to_ask(methods, run.settings, None, Progress(), needs_chains=needs_chains)
        assert len(problems) == expected
    (tmp_path / "test.jsonl").write_text(json.dumps(rows[1]))
    with pytest.raises(UsageError, match="no question is short enough"):
        evaluate.problems_to_ask(methods, run.settings, None, Progress(), needs_chains=True)


def test_what_reads_chains_is_asked_no_problem_whose_solution_is_too_long(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(family="gpt2", **{"data.test_source": str(tmp_path / "test.jsonl")})
    run.precompute()
    run.score()
    run.train_baseline("gold")
    solutions = ["3 + 4 = 7\n" * count + "#### 7" for count in (1, 200, 2)]
    rows = [{"question": f"{number} pens?", "answer": solution} for number, solution in enumerate(solutions)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for names, count in ((("gold",), 2), (("cot",), 3)):
        result = evaluate.run(run.workspace, run.settings, names=names, saves=False, progress=Progress())
        assert [row.n for row in result.rows] == [count]


def test_an_evaluation_is_stale_once_other_test_problems_are_asked_for(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    evaluate.run(run.workspace, run.settings, names=("direct",), progress=Progress())
    [key] = run.workspace.finished("eval")
    assert run.workspace.state("eval", key, run.settings).name == "ready"
    for changes in ({"data.test_split": "unseen"}, {"data.test_source": "other.jsonl"}, {"eval.limit": 3}):
        assert run.workspace.state("eval", key, override(run.settings, changes)).name == "stale"


def test_a_method_that_is_damaged_is_missed_aloud(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    run.train_baseline("direct")
    run.train_baseline("pause")
    for name in ("train-psi/r0.10/end.safetensors", "train-baseline/pause-r0.10/pause.safetensors"):
        (run.workspace.root / name).unlink()
    told = Told()
    result = evaluate.run(run.workspace, run.settings, progress=told)
    assert [row.method for row in result.rows] == ["direct", "cot"]
    assert [line for line in told.said if "train-psi/r0.10" in line and "is missing or has another size" in line]
    assert [line for line in told.said if "pause-r0.10" in line and "ccot train-baseline pause --ratio 0.1" in line]
    # Asked for, each says what is wrong with it.
    with pytest.raises(CorruptError, match=r"train-psi/r0\.10"):
        evaluate.run(run.workspace, run.settings, ratios=[RATIO], progress=Progress())
    with pytest.raises(CorruptError, match=r"pause-r0\.10"):
        evaluate.run(run.workspace, run.settings, names=["pause"], progress=Progress())
    with pytest.raises(CorruptError, match=r"train-psi/r0\.10"):
        Asker(run.workspace, run.settings, RATIO)


def test_questions_whose_prompts_are_too_long_are_left_out(make_run: MakeRun, tmp_path: Path) -> None:
    changes = {"data.test_source": str(tmp_path / "test.jsonl"), "data.source": str(tmp_path / "train.jsonl")}
    run = make_run(family="gpt2", **changes, **{"eval.shots": 1})

    def write(name: str, *counts: int) -> None:
        questions = [f"{number} pens? " * count for number, count in enumerate(counts)]
        lines = [json.dumps({"question": question, "answer": "3 + 4 = 7\n#### 7"}) for question in questions]
        (tmp_path / name).write_text("\n".join(lines))

    write("train.jsonl", *[84] * 8)
    write("test.jsonl", 3, 82, 2)
    evaluated = partial(evaluate.run, run.workspace, run.settings, saves=False)
    told = Told()
    result = evaluated(names=("cot", "zero-shot", "few-shot"), progress=told)
    assert [(row.method, row.n) for row in result.rows] == [("cot", 2), ("zero-shot", 2), ("few-shot", 2)]
    assert "1 questions are too long for the model: left out" in told.said
    assert [row.n for row in evaluated(names=("cot",), progress=told).rows] == [3]
    write("train.jsonl", *[180] * 8)
    with pytest.raises(UsageError, match="no question is short enough") as caught:
        evaluated(names=("cot", "few-shot"), progress=told)
    assert "eval.shots" in caught.value.fix
