"""A decoder is trained for a finished method, which is left as it was."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from ccot_cli.config import DataConfig
from ccot_cli.data.problems import LoadedProblems
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.decoding.explanation import results_line, told_to_write
from ccot_cli.models.training.contexts import TokensContext
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import export, import_, train_decoder
from ccot_cli.stages.ask import Asker
from ccot_cli.stages.problems import read_problems
from ccot_cli.workspace.workspace import Workspace
from stages.runs import RATIO, MakeRun, Run, Stopping, Told, tensors_of

QUESTION = "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?"


@pytest.fixture
def trained(make_run: MakeRun) -> Run:
    return trained_run(make_run, "run")


def trained_run(make_run: MakeRun, name: str, **changes: object) -> Run:
    run = make_run(name, **changes)
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    return run


def train(run: Run, progress: Progress | None = None, **changes: object) -> train_decoder.TrainDecoderResult:
    settings = override(run.settings, changes)
    return train_decoder.run(run.workspace, settings, RATIO, overrides=tuple(changes), progress=progress or Progress())


def test_a_decoder_needs_nothing_but_the_trained_method(trained: Run, tmp_path: Path) -> None:
    whole = train(trained)
    assert whole.num_problems == 20
    assert whole.num_validation == 6
    assert {*whole.explanations} == {"right", "wrong", "exchange"}
    counted = [whole.explanations[kind]["num_problems"] for kind in ("right", "wrong")]
    assert sum(counted) == whole.num_validation
    assert train(trained).was_ready
    # An archive carries it, and an imported method can be given one where it has none.
    with_decoder, without = tmp_path / "with.zip", tmp_path / "without.zip"
    assert export.run(trained.workspace, with_decoder).methods == ["train-psi/r0.10", "train-decoder/r0.10"]
    folder = trained.workspace.folder("train-decoder", "r0.10")
    folder.rename(tmp_path / "decoder")
    export.run(trained.workspace, without)
    model = str(trained.settings.model.name)
    import_.run(str(with_decoder), tmp_path / "imported", model=model)
    import_.run(str(without), tmp_path / "bare", model=model)
    imported, bare = Workspace.open(tmp_path / "imported"), Workspace.open(tmp_path / "bare")
    again = train_decoder.run(bare, override(bare.settings, {"train_psi.epochs": 1}), RATIO, progress=Progress())
    assert not again.was_ready
    one, other = (tensors_of(each.folder("train-decoder", "r0.10")) for each in (imported, bare))
    assert one.keys() == other.keys()
    asker = Asker(imported, imported.settings, RATIO, explains=True)
    assert asker.ask(QUESTION).explanation is not None


def test_an_interrupted_training_ends_in_the_same_bytes(make_run: MakeRun) -> None:
    changes = {"train_psi.checkpoint_steps": 1, "train_psi.epochs": 3}
    whole, halted = trained_run(make_run, "whole", **changes), trained_run(make_run, "halted", **changes)
    train(whole)
    with pytest.raises(KeyboardInterrupt):
        train(halted, Stopping("decoder", 4))
    rest = Told()
    train(halted, rest)
    assert [left for label, left in rest.left.items() if label.startswith("decoder")] == [11]
    one, other = (run.workspace.require("train-decoder", "r0.10") for run in (whole, halted))
    assert one.manifest.files == other.manifest.files


def test_the_method_keeps_its_bytes_and_its_answers(trained: Run) -> None:
    psi = trained.workspace.folder("train-psi", "r0.10")
    before = Asker(trained.workspace, trained.settings, RATIO).ask(QUESTION)
    manifest = trained.workspace.require("train-psi", "r0.10").manifest
    train(trained)
    trained.workspace.require("train-psi", "r0.10").check()
    assert trained.workspace.require("train-psi", "r0.10").manifest == manifest
    explained = Asker(trained.workspace, trained.settings, RATIO, explains=True).ask(QUESTION)
    assert psi.exists()
    assert (explained.answer, explained.text) == (before.answer, before.text)
    assert before.explanation is None
    assert "explanation" not in before.printed()
    assert explained.printed()["explanation"] == explained.explanation


def test_what_is_missing_is_named(make_run: MakeRun, trained: Run) -> None:
    with pytest.raises(MissingError) as no_psi:
        train(make_run("empty"))
    assert "train-psi" in no_psi.value.message
    with pytest.raises(MissingError) as no_decoder:
        Asker(trained.workspace, trained.settings, RATIO, explains=True)
    assert "ccot train-decoder --ratio 0.1" in no_decoder.value.fix
    with pytest.raises(UsageError) as no_tokens:
        Asker(trained.workspace, trained.settings, None, "cot", explains=True)
    assert "--explain" in no_tokens.value.message


def test_a_decoder_of_an_earlier_psi_explains_nothing(trained: Run) -> None:
    train(trained)
    changed = override(trained.settings, {"train_psi.seed": 5})
    Run(trained.workspace, changed).train_psi()
    assert trained.workspace.state("train-decoder", "r0.10", trained.settings).name == "stale"
    with pytest.raises(MissingError, match="stale"):
        Asker(trained.workspace, trained.settings, RATIO, explains=True)


def test_problems_are_those_of_precompute_but_for_what_is_given(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DataConfig] = []

    def watched(config: DataConfig) -> LoadedProblems:
        asked.append(config)
        raise InterruptedError

    monkeypatch.setattr(train_decoder, "load_training", watched)
    recorded = trained.workspace.require("precompute").manifest.config["data"]
    for changes in ({}, {"data.limit": 30}):
        with pytest.raises(InterruptedError):
            train(trained, **changes)
    assert [each.limit for each in asked] == [recorded["limit"], 30]
    assert asked[1].seed == recorded["seed"]


def test_other_problems_or_other_caps_make_another_decoder(trained: Run, tmp_path: Path) -> None:
    rows = [{"question": f"How many are {n} and 3?", "answer": f"{n} + 3 = {n + 3}\n#### {n + 3}"} for n in range(30)]
    for name, kept in (("one.jsonl", rows), ("two.jsonl", rows[10:])):
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    first = {"data.source": str(tmp_path / "one.jsonl"), "data.subset": None, "data.steps": None}
    assert not train(trained, **first).was_ready
    assert train(trained, **first).was_ready
    assert not train(trained, **first | {"data.source": str(tmp_path / "two.jsonl")}).was_ready
    assert not train(trained, **first | {"decoding.max_answer_tokens": 3}).was_ready


def test_a_source_that_has_moved_is_found_by_its_new_name(make_run: MakeRun, tmp_path: Path) -> None:
    rows = [{"question": f"How many are {n} and 3?", "answer": f"{n} + 3 = {n + 3}\n#### {n + 3}"} for n in range(60)]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "own.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = {"data.source": str(tmp_path / "old" / "own.jsonl"), "data.test_source": "embedded", "data.subset": None}
    run = trained_run(make_run, "run", **source, **{"data.steps": None})
    (tmp_path / "old").rename(tmp_path / "new")
    moved = Run(run.workspace, override(run.settings, {"data.source": str(tmp_path / "new" / "own.jsonl")}))
    assert train(moved).num_problems == 20
    assert Asker(moved.workspace, moved.settings, None, "few-shot").ask(QUESTION).method == "few-shot"


def test_a_problem_that_is_too_long_for_the_model_is_left_out(make_run: MakeRun, tmp_path: Path) -> None:
    rows = [{"question": f"How many are {n} and 3?", "answer": f"{n} + 3 = {n + 3}\n#### {n + 3}"} for n in range(60)]
    rows[7]["question"] = "How many are they? " * 400
    (tmp_path / "own.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = {"data.source": str(tmp_path / "own.jsonl"), "data.subset": None, "data.steps": None}
    told = Told()
    run = make_run("run", **source)
    run.precompute(told)
    assert any("longer than the model's" in said for said in told.said)
    run.score()
    run.train_phi()
    run.train_psi()
    assert train(run).num_problems == 19


def lessons_of(
    trained: Run, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> tuple[list[PsiExample], TokensContext]:
    """Return what the decoder would learn from: examples and context."""
    given = list[tuple[Sequence[PsiExample], TokensContext]]()

    def watched(
        adapters: Adapters, examples: Sequence[PsiExample], context: TokensContext, *_: object, **__: object
    ) -> NoReturn:
        given.append((examples, context))
        raise InterruptedError

    monkeypatch.setattr(train_decoder, "PsiTraining", watched)
    with pytest.raises(InterruptedError):
        train(trained, progress)
    [(examples, context)] = given
    return [*examples], context


def test_each_problem_teaches_to_read_its_results_and_then_to_write_its_lines(
    trained: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, context = lessons_of(trained, monkeypatch, Progress())
    encoder, told = context.adapters.theta.encoder, [each.told for each in context.kept]
    assert len(examples) == len(told) == 2 * 20
    for number in range(0, len(examples), 2):
        to_read, to_write = examples[number : number + 2]
        assert to_read.query == to_write.query == context.queries[number]
        results = encoder.decode(to_read.answer).strip()
        assert results == results_line(encoder.decode(to_write.answer)) != ""
        assert told[number + 1] == told_to_write(encoder, told[number], results, to_read.query)
        assert context.kept[number].states is context.kept[number + 1].states


@pytest.mark.parametrize("num_right", [12, 5])
def test_it_learns_from_problems_that_are_answered_right_if_they_fill_a_batch(
    trained: Run, monkeypatch: pytest.MonkeyPatch, num_right: int
) -> None:
    stored = [each.problem for each in read_problems(trained.workspace.require("precompute"))]
    right = {problem.question for problem in stored[:num_right]}
    monkeypatch.setattr(train_decoder, "is_right", lambda problem, reply: problem.question in right)
    told = Told()
    examples, context = lessons_of(trained, monkeypatch, told)
    encoder = context.adapters.theta.encoder
    questions = {encoder.decode(each.query).strip() for each in examples}
    assert (questions == right) == (num_right == 12)
    assert len(questions) == (12 if num_right == 12 else 20)
    assert any(said.startswith(f"{num_right} of 20 problems are answered right") for said in told.said)
