"""What the examples say and do."""

import importlib.util
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import torch

from ccot_cli.cli.app import run
from ccot_cli.models.methods.loading import Traits
from ccot_cli.models.methods.method import Reply
from ccot_cli.names import MethodName, Schedule, SelectorName
from ccot_cli.stages.ask import AskResult
from ccot_cli.stages.evaluate import EvalResult, Pair, Row
from ccot_cli.stages.statistics import Share
from ccot_cli.workspace.workspace import Workspace

EXAMPLES = Path(__file__).parent.parent / "examples"


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line.removeprefix("$ ")) for line in text.splitlines() if line.startswith("$ ccot")]


def test_the_paper_s_experiment_can_be_read_without_running_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["bash", str(EXAMPLES / "reproduce_paper.sh"), "--dry-run", str(tmp_path / "paper")]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert not (tmp_path / "paper").exists()
    every = commands(said)
    assert [words[1] for words in every] == [
        "init",
        "doctor",
        "precompute",
        "score",
        "train-phi",
        "train-psi",
        "train-baseline",
        "train-baseline",
        "train-baseline",
        "eval",
    ]
    # Every stage has its estimate above it, and every option is one that the command knows.
    assert said.count("# ") == len(every)
    for _, command, *words in every:
        assert run([command, "--help"]) == 0
        known = capsys.readouterr().out
        assert all(word in known for word in words if word.startswith("--"))


def test_the_ablations_ask_for_what_sweep_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A ccot that says what it was asked for and does nothing.
    (tmp_path / "ccot").write_text('#!/bin/sh\necho "$ ccot $*"\n')
    (tmp_path / "ccot").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    asked = ["bash", str(EXAMPLES / "ablations.sh"), str(tmp_path / "run")]
    every = commands(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert [words[1] for words in every] == ["precompute", *["sweep"] * (len(every) - 1)]
    assert Workspace.open(tmp_path / "run").settings.data.steps == (2, 3)
    assert run(["sweep", "--help"]) == 0
    known = capsys.readouterr().out
    for _, _, *words in every[1:]:
        assert [words[at + 1] for at, word in enumerate(words) if word == "--seed"] == ["0", "1", "2"]
        named = {words[at + 1] for at, word in enumerate(words) if word in ("--method", "--selector", "--schedule")}
        assert all(word in known for word in words if word.startswith("--"))
        assert named <= {*get_args(MethodName), *get_args(SelectorName), *get_args(Schedule)}


def test_the_page_of_commands_is_what_their_help_says() -> None:
    page = EXAMPLES.parent / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == script("../docs/cli.py").text(), "make docs"


def test_what_the_documents_point_to_is_there() -> None:
    root = EXAMPLES.parent
    text = "".join(page.read_text(encoding="utf-8") for page in [root / "README.md", *(root / "docs").glob("*.md")])
    tests = "".join(page.read_text(encoding="utf-8") for page in (root / "tests").glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in tests} == set()
    files = set(re.findall(r"`((?:models|tensors|stages|data|cli)/[\w/]+\.py)`", text))
    assert len(files) > 20
    assert {name for name in files if not (root / "src" / "ccot_cli" / name).is_file()} == set()


def test_the_page_of_fields_has_all_that_ask_and_eval_print() -> None:
    page = (EXAMPLES.parent / "docs" / "json.md").read_text(encoding="utf-8")
    asked, evaluated = page.split("## `ccot eval`")
    printed = {field.name for field in fields(AskResult)} - {"text"}
    assert {name for name in printed if f"`{name}`" not in asked} == set()
    printed = {field.name for kind in (EvalResult, Row, Share, Pair, Traits, Reply) for field in fields(kind)}
    assert {name for name in printed if f"`{name}`" not in evaluated and f"`.{name}`" not in evaluated} == set()


# The theorem


@pytest.fixture(scope="module")
def theory() -> ModuleType:
    return script("theory/width_and_depth.py")


def test_the_operation_is_not_associative_and_loses_nothing(theory: ModuleType) -> None:
    for seed in range(20):
        table = theory.latin_square(torch.Generator().manual_seed(seed))
        values = list(range(theory.NUM_VALUES))
        assert all(sorted(row.tolist()) == values for row in (*table, *table.T))
        assert any(table[table[a, b], c] != table[a, table[b, c]] for a in values for b in values for c in values)
        # What the second arguments do to the first, one after another, is any permutation: a chain is no sum.
        steps = reached = {tuple(column) for column in table.T.tolist()}
        while more := {tuple(step[value] for value in each) for each in reached for step in steps} - reached:
            reached = reached | more
        assert len(reached) == math.factorial(theory.NUM_VALUES)


def test_answers_are_votes_over_compositions_from_the_left(theory: ModuleType) -> None:
    task = theory.Task(theory.Cell(4, 3, "none", 0), seed=1)
    inputs = task.draw(50, torch.Generator().manual_seed(2))
    answers, _ = task.answers(inputs)
    for values, answer in zip(inputs.tolist(), answers.tolist(), strict=True):
        results = [int(task.table_VV[task.table_VV[values[a], values[b]], values[c]]) for a, b, c in task.subsets_MK]
        assert answer == max(range(theory.NUM_VALUES), key=lambda value: (results.count(value), -value))


def test_what_is_held_out_is_never_drawn(theory: ModuleType) -> None:
    task = theory.Task(theory.Cell(3, 2, "none", 0), seed=1)
    drawn = {tuple(row) for row in task.draw(20_000, torch.Generator().manual_seed(2)).tolist()}
    held_out = {tuple(row) for row in task.held_out_BN.tolist()}
    assert len(held_out) == theory.HELD_OUT
    assert drawn.isdisjoint(held_out)
    assert len(drawn) > 2000


def test_the_cells_are_those_of_the_theorem(theory: ModuleType) -> None:
    says = {(cell.subsets, cell.depth, cell.kind): cell.is_possible for cell in theory.all_cells()}
    assert says[6, 2, "none"]
    assert not says[9, 2, "none"]
    assert says[9, 2, "parallel"]
    assert not says[1, 3, "parallel"]
    assert says[3, 3, "fed back"]


@pytest.mark.parametrize(("depth", "tokens"), [(2, 1), (3, 6)])
def test_the_asked_indices_are_taught_one_result_each_in_the_order_in_which_they_can_be_made(
    theory: ModuleType, depth: int, tokens: int
) -> None:
    subsets = 3 if depth == 3 else 8
    cell = theory.Cell(subsets, depth, "fed back", tokens, True)
    task = theory.Task(cell, seed=1)
    inputs = task.draw(20, torch.Generator().manual_seed(2))
    _, partial = task.answers(inputs)
    # Seven indices for eight operations of depth 2; the last one's result has no place.
    assert list(cell.asked) == (list(range(7)) if depth == 2 else list(range(6, 12)))
    for values, found in zip(inputs.tolist(), partial.tolist(), strict=True):
        expected = []
        for places in task.subsets_MK.tolist():
            result = values[places[0]]
            for place in places[1:]:
                result = int(task.table_VV[result, values[place]])
                expected.append(result)
        assert found == expected[: len(cell.asked)]
    _, results = theory.TwoLayers(cell)(inputs)
    assert results.shape == (20, len(cell.asked), theory.NUM_VALUES)


@pytest.mark.parametrize("is_taught", [False, True])
def test_only_a_taught_cell_learns_results(
    theory: ModuleType, monkeypatch: pytest.MonkeyPatch, is_taught: bool
) -> None:
    made: list[torch.nn.Module] = []

    class Watched(theory.TwoLayers):  # type: ignore[name-defined, misc]
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            made.append(self)
            self.before = self.result[1].weight.detach().clone()

    monkeypatch.setattr(theory, "TwoLayers", Watched)
    theory.train(theory.Cell(1, 4, "fed back", 3, is_taught), 0, 3)
    assert torch.equal(made[0].before, made[0].result[1].weight) != is_taught


@pytest.mark.parametrize("kind", ["parallel", "fed back"])
def test_a_token_sees_what_came_before_it_and_nothing_later(theory: ModuleType, kind: str) -> None:
    torch.manual_seed(0)
    model = theory.TwoLayers(theory.Cell(1, 4, kind, 3))
    values = torch.tensor([[0, 1, 2, 3, 0, 1]])
    seen: list[torch.Tensor] = []
    model.second.register_forward_hook(lambda module, given, result: seen.append(given[1]))
    model(values)
    with torch.no_grad():
        model.place_TD[theory.NUM_INPUTS + 1] += 1.0
    model(values)
    changed = [not torch.equal(one, other) for one, other in zip(seen[0][0], seen[1][0], strict=True)]
    assert changed == [False] * (theory.NUM_INPUTS + 1) + [True, True]


# COCONUT's own task


@pytest.mark.slow
def test_coconut_s_own_task_is_learned_from_chains_and_leaves_theta_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    check = script("checks/coconut.py")
    sizes = {"NUM_DIGITS": 3, "NUM_TRAIN": 64, "NUM_TEST": 30, "THETA_STEPS": 500}
    for name, size in sizes.items():
        monkeypatch.setattr(check, name, size)
    monkeypatch.setattr(check, "COURSE", check.COURSE.model_copy(update={"epochs": 4}))
    train, tests = check.problems(0)
    assert not {problem.question for problem in train} & {problem.question for problem in tests}
    assert all(sum(map(int, each.question.split())) % check.MODULUS == int(each.answer) for each in (*train, *tests))

    encoder = check.encoder_for(train)
    encoded = [encoder.problem(each) for each in train]
    theta = check.fresh_theta(encoder, 0)
    epochs = check.teach_chains(theta, encoded, 0)
    assert epochs == check.THETA_STEPS * check.COURSE.batch_size // len(train)
    chain = check.ChainMethod(theta, check.Adapters(theta), check.MOST_TOKENS)
    assert check.accuracy(chain, train) > 0.9
    before = {name: each.clone() for name, each in theta.model.named_parameters()}
    for coconut in (check.Coconut(), check.Staged(), check.Unstaged()):
        reasoner, steps = check.train_coconut(theta, encoded, check.COURSE, coconut)
        assert steps == 4
        # All weights learn where they should, those of a copy.
        after = {name.replace(".base_layer", ""): each for name, each in reasoner.adapters.named_parameters()}
        changed = [not torch.equal(weight, after[name]) for name, weight in before.items()]
        assert all(changed) if isinstance(coconut, check.Staged) else not any(changed)
    course = check.RecipeSetup(theta, None, encoded, 0, check.COURSE)
    stages = {}
    for coconut in (check.Staged(), check.StagedFromChains(), check.Unstaged()):
        coconut._most = 2
        stages[type(coconut).__name__] = [coconut.stage(course, epoch) for epoch in range(4)]
    assert stages == {"Staged": [0, 0, 1, 2], "StagedFromChains": [1, 1, 2, 2], "Unstaged": [2, 2, 2, 2]}
    assert check.accuracy(chain, train) > 0.9


# Benchmarks


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES / "benchmarks"))
    return lambda name: script(f"benchmarks/{name}.py")


def test_training_benchmarks_compare_ways_that_end_alike(
    benchmark: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "training.json"
    benchmark("training").main("2x64", repeats=1, output=output)
    found = json.loads(output.read_text())
    assert len(found["ratios"]) == 3
    assert all(0 < each["low"] <= each["median"] <= each["high"] for each in found["ratios"])
    assert max(found["differences"].values()) < 1e-4
    assert "streamed" in capsys.readouterr().out


def test_the_ratio_of_a_round_is_formed_within_it(benchmark: Callable[[str], ModuleType]) -> None:
    turns = benchmark("turns")
    rounds = [{"a": 2.0, "b": 1.0}, {"a": 30.0, "b": 10.0}, {"a": 4.0, "b": 1.0}]
    assert turns.ratio(rounds, "a", "b") == turns.Ratio("a / b", 3.0, 2.0, 4.0)
    calls: list[str] = []
    works = {"one": lambda: calls.append("one"), "two": lambda: calls.append("two")}
    assert len(turns.take_turns(works, repeats=2)) == 2
    assert calls == ["one", "two"] * 3


@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("precompute", {"problems": [20, 40], "repeats": 1}, 5),
        ("precompute", {"problems": [10], "shape": "4x64", "repeats": 1}, 2),
        ("memory", {"problems": 64, "repeats": 1}, 2),
        # Times of three ratios, answering at once and PAUSE; padding of the ratios and of the chain; three ratios with
        # END asked after every token, two undrafted; reading ahead.
        ("questions", {"batch_size": [2], "problems": 3, "lines": 3, "repeats": 1}, 15),
    ],
)
def test_benchmarks_say_their_ratios(
    benchmark: Callable[[str], ModuleType], tmp_path: Path, name: str, arguments: dict[str, object], count: int
) -> None:
    output = tmp_path / "found.json"
    benchmark(name).main(**arguments, output=output)
    ratios = json.loads(output.read_text())["ratios"]
    assert len(ratios) == count
    assert all(each["median"] > 0 for each in ratios)
