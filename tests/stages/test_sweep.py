"""A sweep uses finished artifacts, adds the missing ones, and compares all on the same problems."""

import re
from decimal import Decimal
from typing import Any

import pytest

from ccot_cli.config import Settings
from ccot_cli.errors import BusyError, UsageError
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import evaluate, sweep
from ccot_cli.stages.methods import find_methods
from ccot_cli.workspace.lock import lock
from ccot_cli.workspace.workspace import Workspace
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
    assert run.workspace.keys("train-psi") == keys
    assert run.workspace.keys("score") == keys[:2]
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
    assert run.workspace.keys("train-phi") == keys
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


def test_what_is_set_for_all_cells_replaces_nothing_of_the_workspace(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    before = run.workspace.require("train-psi", "r0.10").fingerprint
    workspace = Workspace(run.workspace.root, run.settings)
    given = {"train_phi.learning_rate": 0.002, "train_phi.checkpoint_steps": 7, "train_psi.epochs": 2}
    settings = override(run.settings, given)
    rows = sweep.run(workspace, settings, [RATIO], {"seed": [0, 1]}, overrides=tuple(given), progress=Progress())
    assert [(row.epochs, row.settings, row.seeds) for row in rows] == [(2, {"train_phi.learning_rate": 0.002}, [0, 1])]
    assert run.workspace.require("train-psi", "r0.10").fingerprint == before
    key = "r0.10-phi-learning-rate-0.002"
    assert run.workspace.keys("train-phi") == ["r0.10", key, f"{key}-s1"]
    assert run.workspace.keys("train-psi") == ["r0.10", f"{key}-e2", f"{key}-e2-s1"]
    # What is varied counts more than what is set.
    rows = sweep.run(workspace, settings, [RATIO], {"epochs": [1]}, overrides=tuple(given), progress=Progress())
    assert [row.epochs for row in rows] == [1]


def test_a_grid_with_an_impossible_cell_is_refused_before_anything_is_trained(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    with pytest.raises(UsageError, match="autoregressive_layer is 99, but"):
        sweep.run(run.workspace, run.settings, [RATIO], {"layer": [1, 99]}, progress=Progress())
    methods = ("direct", "icot")
    with pytest.raises(UsageError, match="icot needs at least two epochs"):
        sweep.run(run.workspace, run.settings, [RATIO], {}, methods=methods, progress=Progress())
    assert not any(run.workspace.finished(stage) for stage in ("score", "train-phi", "train-baseline"))


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


def cells(
    varied: dict[str, list[Any]],
    methods: tuple[str, ...] = ("ccot",),
    *,
    settings: dict[str, object] | None = None,
    **grid: list[Any],
) -> list[sweep.Cell]:
    """The cells of a grid over the settings of the package, with some of them changed."""
    own = override(Settings(), settings or {})
    return list(sweep.cells(own, [RATIO], sweep.with_varied(own, grid, varied), methods))


def keys(cell: sweep.Cell) -> list[str]:
    return [cell.key(stage) for stage in ("score", "train-phi", "train-psi")]


@pytest.mark.parametrize(
    ("settings", "setting", "value", "expected"),
    [
        ({}, "train_phi.learning_rate", 0.005, ["r0.10", *["r0.10-phi-learning-rate-0.005"] * 2]),
        ({}, "train_psi.learning_rate", 0.005, ["r0.10", "r0.10", "r0.10-psi-learning-rate-0.005"]),
        # The learned scorer is trained with ψ's rate.
        (
            {"score.selector": "learned"},
            "train_psi.learning_rate",
            0.005,
            ["r0.10-psi-learning-rate-0.005"] * 3,
        ),
        ({"score.selector": "learned"}, "score.scorer", "mlp", ["r0.10-score-scorer-mlp"] * 3),
        ({}, "train_phi.limit", 50, ["r0.10", *["r0.10-phi-limit-50"] * 2]),
        ({"train_phi.limit": 50}, "train_phi.limit", None, ["r0.10", *["r0.10-phi-limit-null"] * 2]),
        # What has an option of its own has the key of that option.
        ({}, "train_phi.autoregressive_layer", 4, ["r0.10", "r0.10-l4", "r0.10-l4"]),
        ({}, "train_psi.epochs", 9, ["r0.10", "r0.10", "r0.10-e9"]),
        # The workspace's own value, however it is written.
        ({}, "train_phi.learning_rate", "8e-3", ["r0.10"] * 3),
    ],
)
def test_a_varied_setting_is_in_the_keys_from_the_first_stage_that_it_changes(
    settings: dict[str, object], setting: str, value: object, expected: list[str]
) -> None:
    [cell] = cells({setting: [value]}, settings=settings)
    assert keys(cell) == expected
    assert cell.changes == ({} if expected == ["r0.10"] * 3 else {setting: value})


def test_the_number_of_problems_is_a_dimension_of_every_training() -> None:
    both, direct, gold = cells({}, ("ccot", "direct", "gold"), problems=[500])
    assert keys(both) == ["r0.10", "r0.10-n500", "r0.10-n500"]
    assert both.changes == {"train_psi.limit": 500, "train_phi.limit": 500}
    assert [direct.key("train-baseline"), gold.key("train-baseline")] == ["direct-n500", "gold-r0.10-n500"]
    assert gold.key("score") == "r0.10"


def test_a_baseline_depends_on_its_own_training_and_on_the_tokens_that_it_reads() -> None:
    varied = {"train_phi.lora_rank": [8], "train_psi.lora_rank": [8], "score.seed": [1]}
    direct, gold = cells(varied, ("direct", "gold"), settings={"score.selector": "random"})
    assert direct.key("train-baseline") == "direct-psi-lora-rank-8"
    assert gold.key("train-baseline") == "gold-r0.10-score-seed-1-psi-lora-rank-8"
    assert gold.key("score") == "r0.10-score-seed-1"
    # A row says what the method was trained with.
    assert [each.values["train_phi.lora_rank"] for each in (direct, gold)] == [64, 64]


def test_a_setting_that_a_choice_does_not_use_makes_no_cell() -> None:
    found = cells({"train_phi.taught_epochs": [4, 8]}, schedule=["joint", "layerwise"])
    assert [keys(each)[1] for each in found] == [
        "r0.10-phi-taught-epochs-4",
        "r0.10-layerwise",
        "r0.10-phi-taught-epochs-8",
    ]


def test_seeds_share_the_tokens_that_no_chance_selects() -> None:
    assert [keys(each) for each in cells({}, seed=[0, 1])] == [["r0.10"] * 3, ["r0.10", "r0.10-s1", "r0.10-s1"]]
    of_chance = cells({}, seed=[0, 1], settings={"score.selector": "random"})
    assert [keys(each) for each in of_chance] == [["r0.10"] * 3, ["r0.10-s1"] * 3]


def test_different_values_never_share_a_key() -> None:
    starts = [
        None,
        "null",
        "r0.10",
        "R0.10",
        "phi",
        "a/b",
        "a-b",
        "/home/me/phi",
        "/home/me/phi.ccot-new",
        "..",
        "x" * 300,
    ]
    rates = [0.01, 0.010000000000000002, 1e-05, 1.5e-05]
    found = cells({"train_phi.start": starts, "train_phi.learning_rate": rates})
    names = [keys(each)[1] for each in found]
    assert len({name.lower() for name in names}) == len(names) == len(starts) * len(rates)
    assert all(re.fullmatch(r"r0\.10[a-z0-9.-]*[a-z0-9]", name) and len(name) < 128 for name in names)
    assert not any(name.endswith((".ccot-new", ".ccot-retired")) for name in names)
    # The order of the options does not matter.
    again = cells({"train_phi.learning_rate": rates, "train_phi.start": starts})
    assert {keys(each)[1] for each in again} == {*names}
    assert (
        len({keys(each)[1] for each in cells({"train_phi.start": [None, "null"]}, settings={"train_phi.start": "x"})})
        == 2
    )


def test_a_value_is_the_same_however_it_is_written() -> None:
    found = cells({"train_phi.learning_rate": ["1e-3", 0.001, "0.0010"], "train_phi.lora_rank": ["8", 8.0]})
    assert [each.values["train_phi.learning_rate"] for each in found] == [0.001]
    assert keys(found[0])[1] == "r0.10-phi-learning-rate-0.001-phi-lora-rank-8"


@pytest.mark.parametrize(
    ("varied", "grid", "message", "fix"),
    [
        ({"data.limit": [5]}, {}, "data.limit cannot be varied: .* their workspace", "another workspace"),
        ({"model.name": ["x"]}, {}, "model.name cannot be varied", "another workspace"),
        ({"decoding.cap_tokens": [5]}, {}, "decoding.cap_tokens cannot be varied", "train_psi"),
        ({"train_phi.learning_rat": [5]}, {}, "no setting is called train_phi.learning_rat", "train_phi.learning_rate"),
        ({"train.epochs": [5]}, {}, "no setting is called train", "train_psi"),
        ({"train_phi.lora_rank": [5, 0]}, {}, "train_phi.lora_rank: a number of at least 1 is needed", "64"),
        ({"train_phi.schedule": ["both"]}, {}, "'joint' or 'layerwise' is needed", "joint"),
        ({"train_psi.epochs": [5]}, {"epochs": [4]}, "train_psi.epochs is varied twice", "--epochs"),
        ({"train_phi.limit": [5]}, {"problems": [4]}, "train_phi.limit is varied twice", "--problems"),
        ({"train_phi.seed": [5]}, {"seed": [4]}, "train_phi.seed is varied twice", "--seed"),
    ],
)
def test_what_cannot_be_varied_is_refused(
    varied: dict[str, list[object]], grid: dict[str, list[object]], message: str, fix: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        sweep.with_varied(Settings(), grid, varied)
    assert fix in str(caught.value.fix)


def test_a_setting_may_be_varied_beside_another_one() -> None:
    rates: dict[str, list[object]] = {"train_phi.learning_rate": [0.005, 0.01]}
    assert sweep.with_varied(Settings(), rates, {"train_psi.epochs": [2]}) == {**rates, "epochs": [2]}


@pytest.mark.parametrize(
    ("setting", "method"),
    [
        ("train_phi.checkpoint_steps", "ccot"),
        ("score.scorer_steps", "ccot"),
        ("train_phi.lora_rank", "direct"),
        ("layer", "direct"),
    ],
)
def test_a_setting_on_which_nothing_depends_is_refused(make_run: MakeRun, setting: str, method: str) -> None:
    run = make_run()
    with pytest.raises(UsageError, match=f"{setting} changes no result of this sweep"):
        sweep.run(run.workspace, run.settings, [RATIO], {setting: [7]}, methods=[method], progress=Progress())


def test_limits_that_differ_are_no_number_of_problems(make_run: MakeRun) -> None:
    run = make_run(**{"train_phi.limit": 8})
    with pytest.raises(UsageError, match=r"train_psi\.limit, train_phi\.limit differ"):
        sweep.run(run.workspace, run.settings, [RATIO], {"problems": [4]}, progress=Progress())
    run.precompute()
    [row] = sweep.run(run.workspace, run.settings, [RATIO], {"epochs": [2]}, progress=Progress())
    assert (row.epochs, row.problems, row.settings) == (2, None, {})


def test_rates_and_numbers_of_problems_are_varied_beside_the_workspaces_own(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    varied = {"train_phi.learning_rate": [0.008, 0.002]}
    grid = sweep.with_varied(run.settings, {"problems": [8, 16]}, varied)
    methods = ["ccot", "direct"]
    rows = sweep.run(run.workspace, run.settings, [RATIO], grid, methods=methods, progress=Progress())
    assert [(row.method, row.settings, row.problems, row.num_steps) for row in rows] == [
        ("ccot", {"train_phi.learning_rate": 0.008}, 8, 1),
        ("ccot", {"train_phi.learning_rate": 0.008}, 16, 2),
        ("ccot", {"train_phi.learning_rate": 0.002}, 8, 1),
        ("ccot", {"train_phi.learning_rate": 0.002}, 16, 2),
        ("direct", {"train_phi.learning_rate": 0.008}, 8, 1),
        ("direct", {"train_phi.learning_rate": 0.008}, 16, 2),
    ]
    slow = "phi-learning-rate-0.002"
    trained = ["r0.10-n16", "r0.10-n8", f"r0.10-{slow}-n16", f"r0.10-{slow}-n8"]
    assert run.workspace.keys("train-phi") == run.workspace.keys("train-psi") == trained
    assert run.workspace.keys("train-baseline") == ["direct-n16", "direct-n8"]
    assert run.workspace.keys("score") == ["r0.10"]
    config = run.workspace.require("train-phi", f"r0.10-{slow}-n8").manifest.config["train_phi"]
    assert (config["learning_rate"], config["limit"]) == (0.002, 8)
    assert {run.workspace.state("train-phi", key, run.settings).name for key in trained} == {"ready"}
    assert all(row.n == 6 for row in rows)
    # Without a number of problems, the workspace's own φ learns from all.
    grid = sweep.with_varied(run.settings, {}, varied)
    rows = sweep.run(run.workspace, run.settings, [RATIO], grid, progress=Progress())
    assert [(row.problems, row.num_steps) for row in rows] == [(None, 3), (None, 3)]
    assert run.workspace.keys("train-phi") == sorted(["r0.10", f"r0.10-{slow}", *trained])
