"""Which methods there are, by name and ratio."""

import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from workspace.making import edit_manifest

from ccot_cli.config import Settings
from ccot_cli.errors import BusyError, CorruptError, MissingError, UsageError
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.methods.pause import PauseMethod
from ccot_cli.names import PRECOMPUTE, SCORE, TRAIN_BASELINE, TRAIN_PHI, TRAIN_PSI
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import score, train_baseline, train_phi, train_psi
from ccot_cli.stages.ask import Asker
from ccot_cli.stages.methods import Methods, find_methods
from ccot_cli.workspace.artifact import MANIFEST_FILE
from stages.runs import RATIO, MakeRun, flip_a_bit


@pytest.fixture(scope="module")
def shipped() -> Methods:
    return find_methods(None, Settings())


def names(methods: Methods, *arguments: object) -> list[tuple[str, str]]:
    return [(entry.name, f"{entry.ratio:f}") for entry in methods.choose(*arguments)]  # type: ignore[arg-type]


def test_a_ratio_chooses_among_methods_that_come_in_ratios(shipped: Methods) -> None:
    tenth = [Decimal("0.1")]
    assert names(shipped, ("ccot",), tenth) == [("ccot", "0.1")]
    assert names(shipped, (), tenth) == [("ccot", "0.1")]
    # A method that was named and has a fixed ratio is chosen, whatever the ratio.
    assert names(shipped, ("ccot", "direct", "cot"), tenth) == [("direct", "0"), ("ccot", "0.1"), ("cot", "1")]
    assert names(shipped, ("ccot", "few-shot"), tenth) == [("ccot", "0.1"), ("few-shot", "1")]
    for methods in ((), ("ccot",), ("all",)):
        with pytest.raises(MissingError, match=r"0\.37"):
            shipped.choose(methods, [Decimal("0.37")])


def test_a_ratio_that_is_asked_for_is_never_left_out(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    run.train_baseline("direct")
    tenth, half, more = Decimal("0.1"), Decimal("0.5"), Decimal("0.7")
    for ratio in (tenth, half):
        train_baseline.run(run.workspace, run.settings, "pause", ratio, progress=Progress())
    methods = find_methods(run.workspace, run.settings)
    for chosen, ratios, message in (
        (["pause"], [tenth, more], r"no pause at ratio 0\.7 in "),
        (["ccot"], [tenth, half], r"no generator was trained for ratio 0\.5 .*trained: 0, 0\.1, 1"),
        (["ccot"], [tenth, Decimal(0)], "no ccot at ratio 0 in "),
        (["ccot", "pause"], [more], r"no generator was trained for ratio 0\.7 "),
        (["direct", "pause"], [half, more], r"no pause at ratio 0\.7 in "),
        ([], [tenth, more], r"no generator was trained for ratio 0\.7 "),
        (["all"], [tenth, more], r"no generator was trained for ratio 0\.7 "),
    ):
        with pytest.raises(MissingError, match=message):
            methods.choose(chosen, ratios)
    # Every ratio is somebody's; those of `direct` and the chain are fixed.
    assert names(methods, ["ccot", "pause"], [tenth, half]) == [("ccot", "0.1"), ("pause", "0.1"), ("pause", "0.5")]
    assert names(methods, ["pause", "direct"], [half]) == [("direct", "0"), ("pause", "0.5")]
    assert names(methods, ["ccot", "cot"], [tenth, Decimal(1)]) == [("ccot", "0.1"), ("cot", "1")]
    assert names(methods, ["direct", "cot"], [more]) == [("direct", "0"), ("cot", "1")]


def test_one_method_answers_a_question(shipped: Methods) -> None:
    with pytest.raises(UsageError, match="one method"):
        shipped.find("all", Decimal("0.1")).load()


def test_a_method_is_asked_for_by_its_name(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    for name in ("direct", "pause"):
        run.train_baseline(name)
    methods = find_methods(run.workspace, run.settings)
    assert methods.find("pause", RATIO).load().name == "pause"
    # A method with a fixed ratio keeps it, whatever ratio is asked for.
    assert [methods.find(name, RATIO).load().ratio for name in ("direct", "cot", "zero-shot")] == [0, 1, 1]
    with pytest.raises(MissingError, match="no icot"):
        methods.find("icot", RATIO).load()
    with pytest.raises(UsageError, match="no method"):
        methods.find("magic", RATIO).load()


def test_a_ratio_that_was_not_trained_names_those_that_were(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    with pytest.raises(MissingError, match=r"0\.37 .*trained: 0, 1") as caught:
        Asker(run.workspace, run.settings, Decimal("0.37"))
    assert "--ratio 0" in caught.value.fix


def test_theta_s_own_chain_does_not_pass_for_a_damaged_or_stale_cot(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    for name in ("direct", "cot"):
        run.train_baseline(name)
    folder = run.workspace.folder(TRAIN_BASELINE, "cot")
    (folder / MANIFEST_FILE).write_text("{}")
    methods = find_methods(run.workspace, run.settings)
    for ask in (
        lambda: methods.find("cot", None).load(),
        lambda: methods.load(Decimal(1)),
        lambda: methods.choose(("cot",)),
        methods.fallback,
        lambda: Asker(run.workspace, run.settings, Decimal(0), min_confidence=0.5),
    ):
        with pytest.raises(CorruptError, match="train-baseline/cot"):
            ask()
    assert names(methods) == [("direct", "0")]
    shutil.rmtree(folder)
    assert names(find_methods(run.workspace, run.settings)) == [("direct", "0"), ("cot", "1")]


def test_where_no_ratio_can_be_asked_for_the_training_of_one_is_recommended(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    for name in ("pause", "cot"):
        run.train_baseline(name)
    (run.workspace.folder(TRAIN_BASELINE, "cot") / MANIFEST_FILE).write_text("{}")
    with pytest.raises(MissingError, match=r"for ratio 0\.1 .*trained: none") as caught:
        find_methods(run.workspace, run.settings).find("ccot", None)
    assert caught.value.fix.startswith("train it: ccot score")


def test_a_stale_method_is_called_stale_without_its_ratio_too(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    three_tenths = Decimal("0.3")
    for stage in (score, train_phi, train_psi):
        stage.run(run.workspace, run.settings, three_tenths, progress=Progress())
    assert find_methods(run.workspace, run.settings).find("ccot", None).ratio == three_tenths
    train_phi.run(run.workspace, override(run.settings, {"train_phi.seed": 5}), three_tenths, progress=Progress())
    methods = find_methods(run.workspace, run.settings)
    for ratio in (None, three_tenths):
        with pytest.raises(MissingError, match=r"train-psi/r0\.30 of run is stale"):
            methods.find("ccot", ratio).load()


def test_a_method_is_stale_under_another_model_even_if_its_phi_is_gone(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    shutil.rmtree(run.workspace.folder(TRAIN_PHI))
    assert find_methods(run.workspace, run.settings).find("ccot", None).load().ratio == RATIO
    run.precompute(**{"model.answer_marker": " = "})
    methods = find_methods(run.workspace, override(run.settings, {"model.answer_marker": " = "}), may_have_none=True)
    for asked in (lambda: methods.find("ccot", None).load(), lambda: methods.choose(["ccot"])):
        with pytest.raises(MissingError, match=r"train-psi/r0\.10 of run is stale: precompute was made again"):
            asked()


def test_a_damaged_variant_of_a_sweep_is_nobody_elses_ratio(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    variant = run.workspace.folder(TRAIN_PSI, "r0.20-l4")
    variant.mkdir(parents=True)
    (variant / MANIFEST_FILE).write_text("{")
    methods = find_methods(run.workspace, run.settings)
    assert [*methods.unusable] == ["r0.20-l4"]
    with pytest.raises(MissingError, match=r"no generator was trained for ratio 0\.1 "):
        methods.find("ccot", None)


@pytest.mark.parametrize("stage", [TRAIN_PSI, TRAIN_PHI, SCORE, TRAIN_BASELINE])
def test_what_was_damaged_since_it_was_made_is_not_used(make_run: MakeRun, stage: str) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    if stage == TRAIN_PSI:
        run.train_psi()
    if stage == TRAIN_BASELINE:
        run.train_baseline("pause")
    uses: dict[str, Callable[[], object]] = {
        TRAIN_PSI: lambda: find_methods(run.workspace, run.settings).load(RATIO),
        TRAIN_PHI: run.train_psi,
        SCORE: lambda: run.train_baseline("gold"),
        TRAIN_BASELINE: lambda: find_methods(run.workspace, run.settings).find("pause", RATIO).load(),
    }
    folders = [path.parent for path in run.workspace.folder(stage).glob(f"*/{MANIFEST_FILE}")]
    files = [path for path in sorted(folders[0].rglob("*")) if path.is_file() and path.name != MANIFEST_FILE]
    assert files
    for path in files:
        sound = path.read_bytes()
        flip_a_bit(path)
        with pytest.raises(CorruptError, match=path.name):
            uses[stage]()
        path.write_bytes(sound)
    uses[stage]()


def test_a_method_that_is_replaced_while_it_is_loaded_is_loaded_whole(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("pause")
    folder = run.workspace.folder(TRAIN_BASELINE, "pause-r0.10")
    replaced = make_run("other", **{"train_psi.seed": 5})
    replaced.precompute()
    replaced.train_baseline("pause")
    newer = replaced.workspace.folder(TRAIN_BASELINE, "pause-r0.10")
    loads = []

    def load(adapters: Adapters, name: str, place: Path) -> None:
        loads.append(place)
        plain_load(adapters, name, place)
        if len(loads) == 1:
            folder.rename(folder.with_name("pause-r0.10.ccot-retired"))
            shutil.copytree(newer, folder)

    plain_load = Adapters.load
    monkeypatch.setattr(Adapters, "load", load)
    method = find_methods(run.workspace, run.settings).find("pause", RATIO).load()
    assert isinstance(method, PauseMethod)
    assert len(loads) == 2, "the first time ψ was the old one, and the pause token would have been the new one"
    assert torch.equal(method.pause_1D, load_file(newer / "pause.safetensors")["pause"])
    saved = load_file(newer / "psi" / "adapter_model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in method.adapters.state(PSI).items())


def test_a_model_that_was_replaced_before_its_method_was_loaded_is_noticed(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    methods = find_methods(run.workspace, run.settings)
    source = run.workspace.require(PRECOMPUTE)
    edit_manifest(source, inputs={**source.manifest.inputs, "model": "another"})
    with pytest.raises(BusyError, match="filled from another model meanwhile"):
        methods.find("direct", None).load()
