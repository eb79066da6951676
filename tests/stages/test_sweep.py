"""A sweep uses finished artifacts, adds the missing ones, and compares all on the same problems."""

from decimal import Decimal

import pytest

from ccot_cli.errors import BusyError, UsageError
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import evaluate, sweep
from ccot_cli.stages.methods import find_methods
from ccot_cli.workspace.lock import lock
from stages.runs import RATIO, MakeRun


def test_a_sweep_uses_what_is_ready_and_puts_the_rest_beside_it(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    own = run.train_psi()
    before = run.workspace.require("train-psi", "r0.10").fingerprint
    grid = {"selector": ["predictive", "even"], "seed": [0, 1]}
    rows = sweep.run(run.workspace, run.settings, [RATIO], grid, progress=Progress())
    assert run.workspace.require("train-psi", "r0.10").fingerprint == before
    keys = ["r0.10", "r0.10-even", "r0.10-even-s1", "r0.10-s1"]
    assert run.workspace.keys("train-psi") == run.workspace.keys("score") == keys
    assert [(row.selector, row.seeds, len(row.accuracies)) for row in rows] == [
        ("predictive", [0, 1], 2),
        ("even", [0, 1], 2),
    ]
    assert rows[0].accuracies[0] == own.validation_accuracy
    assert all(row.low <= row.accuracy <= row.high for row in rows)
    # Each cell has its own tokens, its own φ and its own seed.
    fingerprints = {run.workspace.require("train-phi", key).fingerprint for key in keys}
    assert len(fingerprints) == 4
    every = [path for path in run.workspace.root.rglob("*") if path.is_file() and path.name != ".lock"]
    times = {path: path.stat().st_mtime_ns for path in every}
    assert sweep.run(run.workspace, run.settings, [RATIO], grid, progress=Progress()) == rows
    assert {path: path.stat().st_mtime_ns for path in every} == times
    # What matters to ψ alone is no reason for another φ.
    sweep.run(run.workspace, run.settings, [RATIO], {"unfreeze": ["none"]}, progress=Progress())
    assert run.workspace.keys("train-psi") == [*keys, "r0.10-unfreeze-none"]
    assert run.workspace.keys("train-phi") == run.workspace.keys("score") == keys
    # The variants are no methods of the workspace.
    assert find_methods(run.workspace, run.settings).ratios == [RATIO, Decimal(1)]
    assert {run.workspace.state("train-psi", key, run.settings).name for key in keys} == {"ready"}


def test_a_sweep_compares_methods_on_test_problems(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    methods, grid = ["ccot", "direct", "pause", "gold"], {"seed": [0, 1], "layer": [1, 2]}
    rows = sweep.run(run.workspace, run.settings, [RATIO], grid, methods=methods, num_test=6, progress=Progress())
    # A baseline has no l; one with a ratio of its own comes at that.
    assert [(row.method, row.ratio, row.layer) for row in rows] == [
        ("ccot", 0.1, 1),
        ("ccot", 0.1, 2),
        ("direct", 0.0, 2),
        ("pause", 0.1, 2),
        ("gold", 0.1, 2),
    ]
    assert all((row.n, row.split, row.seeds, len(row.accuracies)) == (6, "test", [0, 1], 2) for row in rows)
    assert all(row.seconds is not None and row.seconds > 0 for row in rows)
    assert len({row.num_steps for row in rows}) == 1
    assert [row.numbers_read is None for row in rows] == [False, False, True, True, True]
    keys = ["direct", "direct-s1", "gold-r0.10", "gold-r0.10-s1", "pause-r0.10", "pause-r0.10-s1"]
    assert run.workspace.keys("train-baseline") == keys
    # What a row says is what eval says of the same method; a variant is no method of the workspace.
    result = evaluate.run(run.workspace, override(run.settings, {"eval.limit": 6}), progress=Progress())
    own = {row.method: row for row in result.rows}
    assert own.keys() == {"ccot", "direct", "pause", "gold", "cot"}
    assert all(own[row.method].accuracy == row.accuracies[0] for row in rows if row.method != "ccot")
    grid = {"selector": ["even"]}
    other = sweep.run(run.workspace, run.settings, [RATIO], grid, methods=["gold", "direct"], progress=Progress())
    assert [(row.method, row.selector) for row in other] == [("gold", "even"), ("direct", "predictive")]
    more = sweep.run(run.workspace, run.settings, [RATIO], {"epochs": [3]}, methods=["direct"], progress=Progress())
    assert [(row.epochs, row.split, row.seconds) for row in more] == [(3, "validation", None)]
    assert more[0].num_steps == 3 * rows[2].num_steps // rows[2].epochs
    assert "direct-e3" in run.workspace.keys("train-baseline")


def test_a_sweep_has_one_seed_for_all_stages(make_run: MakeRun) -> None:
    run = make_run(**{"train_psi.seed": 5})
    with pytest.raises(UsageError, match=r"train_psi\.seed differ"):
        sweep.run(run.workspace, run.settings, [RATIO], {"seed": [0, 5]}, progress=Progress())


def test_variants_alone_are_compared_on_test_problems_too(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    rows = sweep.run(run.workspace, run.settings, [RATIO], {"seed": [1]}, num_test=3, progress=Progress())
    assert [(row.method, row.seeds, row.split, row.n) for row in rows] == [("ccot", [1], "test", 3)]


def test_a_sweep_beside_another_writer_is_refused_before_anything_is_read(make_run: MakeRun) -> None:
    run = make_run()
    with lock(run.workspace.root, ("precompute",)), pytest.raises(BusyError, match="ccot precompute"):
        sweep.run(run.workspace, run.settings, [RATIO], {}, progress=Progress())
