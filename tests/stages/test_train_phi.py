"""φ is trained layer by layer or jointly, after an interruption, or starting from another φ."""

import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.errors import MissingError, UsageError
from ccot_cli.files import sha256_of
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.theta import load_theta
from ccot_cli.models.decoding.phi import replay
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import score, train_phi
from ccot_cli.stages.inputs import load_examples
from ccot_cli.tensors.losses import scaled_mse
from ccot_cli.tensors.masks import first_columns
from stages.runs import RATIO, MakeRun, Told, tensors_of


def test_the_papers_recipe_trains_layer_by_layer(make_run: MakeRun) -> None:
    run = make_run(**{"score.selector": "even", "train_phi.schedule": "layerwise", "train_psi.unfreeze": "above"})
    run.precompute()
    assert run.score().overlap_with_even == 1
    phi = run.train_phi()
    assert [row["layer"] for row in phi.layers] == [1, 2, 3, 4]
    assert phi.num_steps == 12
    assert all(row["validation_loss"] < row["untrained_loss"] for row in phi.layers)
    # The φ that was saved, run as a whole from gold inputs, errs as much as every layer did on its own.
    adapters = Adapters(load_theta(run.settings.model))
    adapters.load(PHI, run.workspace.folder("train-phi", "r0.10") / PHI)
    scored = run.workspace.require("score", "r0.10")
    _, validation = load_examples(adapters.theta, run.workspace.require("precompute"), scored)
    sequence, _ = encode_query(adapters, [each.query for each in validation], layer=2)
    gold = [each.gold_JID.float() for each in validation]
    mask_BK = first_columns([len(each) - 1 for each in gold], device=adapters.theta.device)
    inputs_BKD = pad_sequence([each[:-1, 2] for each in gold], batch_first=True)
    for index, states_BKD in zip((2, 4), replay(adapters, sequence, inputs_BKD, mask_BK, layer=2), strict=True):
        target_BKD = pad_sequence([each[1:, index] for each in gold], batch_first=True)
        error = scaled_mse(states_BKD, target_BKD, mask_BK).item()
        assert error == pytest.approx(phi.layers[index - 1]["validation_loss"], rel=1e-4)
    assert run.train_psi().num_steps == 3


def test_layers_whose_states_rest_in_files_learn_the_same(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory, in_files = (make_run(name, **{"train_phi.schedule": "layerwise"}) for name in ("memory", "files"))
    for run in (in_memory, in_files):
        run.precompute()
        run.score()
    in_memory.train_phi()
    monkeypatch.setattr(train_phi, "fits", lambda num_bytes, device: False)
    rested = []
    monkeypatch.setattr(train_phi, "check_space", lambda folder, num_bytes: rested.append(num_bytes))
    in_files.train_phi()
    assert rested[0] > 0
    one, other = (run.workspace.require("train-phi", "r0.10").manifest.files for run in (in_memory, in_files))
    assert one == other


def test_a_layer_whose_checkpoint_was_not_written_is_trained(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halted = (make_run(name, **{"train_phi.schedule": "layerwise"}) for name in ("whole", "halted"))
    for run in (whole, halted):
        run.precompute()
        run.score()
    whole.train_phi()
    calls, save = [], train_phi.save_checkpoint

    def fail_once(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt  # the log tells of two layers then, the checkpoint of one
        save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(train_phi, "save_checkpoint", fail_once)
    with pytest.raises(KeyboardInterrupt):
        halted.train_phi()
    halted.train_phi()
    one, other = (run.workspace.require("train-phi", "r0.10") for run in (whole, halted))
    assert one.manifest.files == other.manifest.files


def test_phi_goes_on_from_the_phi_of_another_ratio(make_run: MakeRun) -> None:
    run, wider = make_run(), Decimal("0.2")
    run.precompute()
    for ratio in (RATIO, wider):
        score.run(run.workspace, run.settings, ratio, progress=Progress())
    run.train_phi()
    # With so small a rate, φ does not move.
    changes = {"train_phi.start": "0.1", "train_phi.learning_rate": 1e-12}
    settings = override(run.settings, changes)
    train_phi.run(run.workspace, settings, wider, progress=Progress())
    before, after = (tensors_of(run.workspace.folder("train-phi", key)) for key in ("r0.10", "r0.20"))
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert run.workspace.state("train-phi", "r0.20", settings).name == "ready"
    # What it was started from cannot start from it: it would be stale at once.
    with pytest.raises(UsageError, match=r"train-phi/r0\.20 was itself trained from train-phi/r0\.10"):
        train_phi.run(run.workspace, override(run.settings, {"train_phi.start": "0.2"}), RATIO, progress=Progress())
    # Another φ to start from makes what was started from it stale.
    run.train_phi()
    again = override(run.settings, {"train_phi.seed": 5})
    train_phi.run(run.workspace, again, RATIO, progress=Progress())
    assert run.workspace.state("train-phi", "r0.20", settings).name == "stale"


def test_phi_goes_on_from_an_adapter_of_another_workspace(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    elsewhere, key = tmp_path / "elsewhere" / "phi", "r0.10"
    shutil.copytree(run.workspace.folder("train-phi", key) / "phi", elsewhere)
    before = tensors_of(elsewhere)
    # With so small a rate, φ does not move.
    settings = override(run.settings, {"train_phi.start": str(elsewhere), "train_phi.learning_rate": 1e-12})
    train_phi.run(run.workspace, settings, RATIO, progress=Progress())
    after = tensors_of(run.workspace.folder("train-phi", key) / "phi")
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert run.workspace.state("train-phi", key, settings).name == "ready"
    manifest = run.workspace.require("train-phi", key).manifest
    assert manifest.inputs["start"] == sha256_of(elsewhere / "adapter_model.safetensors")
    other_rank = override(settings, {"train_phi.lora_rank": 2})
    with pytest.raises(UsageError, match="lora_rank 4, not 2"):
        train_phi.run(run.workspace, other_rank, RATIO, progress=Progress())


def test_a_start_that_cannot_be_is_refused(make_run: MakeRun) -> None:
    run = make_run(**{"train_phi.start": "r0.20"})
    run.precompute()
    run.score()
    for start in ("0.2", "foo", "../x"):
        with pytest.raises(MissingError, match="to start from"):
            train_phi.run(run.workspace, override(run.settings, {"train_phi.start": start}), RATIO, progress=Progress())
    itself = override(run.settings, {"train_phi.start": "r0.10"})
    with pytest.raises(UsageError, match="itself"):
        train_phi.run(run.workspace, itself, RATIO, progress=Progress())
    other_rank = override(run.settings, {"train_phi.start": None, "train_phi.lora_rank": 2})
    train_phi.run(run.workspace, other_rank, RATIO, progress=Progress())
    folder = run.workspace.folder("train-phi", "r0.10") / "phi"
    with pytest.raises(UsageError, match="itself"):
        train_phi.run(run.workspace, override(other_rank, {"train_phi.start": str(folder)}), RATIO, progress=Progress())
    score.run(run.workspace, run.settings, Decimal("0.2"), progress=Progress())
    with pytest.raises(UsageError, match="lora_rank 2, not 4"):
        train_phi.run(
            run.workspace, override(run.settings, {"train_phi.start": "r0.10"}), Decimal("0.2"), progress=Progress()
        )


@pytest.mark.parametrize(("probed", "layer"), [([0.1, 0.2, 0.3, 0.96, 1.0], 3), ([0.99, 1.0, 1.0, 1.0, 1.0], 2)])
def test_auto_is_the_layer_that_score_found_or_half_of_all(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, probed: list[float], layer: int
) -> None:
    accuracies = iter(probed)
    monkeypatch.setattr(score, "probe_accuracy", lambda *_: next(accuracies))
    named, run = make_run("named", **{"train_phi.autoregressive_layer": layer}), make_run("auto")
    run = replace(run, settings=override(run.settings, {"train_phi.autoregressive_layer": "auto"}))
    run.precompute()
    run.score()
    told = Told()
    result = run.train_phi(told)
    assert result.autoregressive_layer == layer
    assert sum(line.startswith(f"l = {layer} of 4: ") for line in told.said) == 1
    manifest = run.workspace.require("train-phi", "r0.10").manifest
    assert manifest.summary["autoregressive_layer"] == layer
    assert run.workspace.state("train-phi", "r0.10", run.settings).name == "ready"
    assert run.train_phi().was_ready
    run.train_psi()
    assert MethodInfo.load(run.workspace.folder("train-psi", "r0.10")).autoregressive_layer == layer
    # The same φ as if the layer had been named.
    accuracies = iter(probed)
    named.precompute()
    named.score()
    assert named.train_phi().report == result.report


def test_states_that_a_killed_run_left_in_files_do_not_count_as_used(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(**{"train_phi.schedule": "layerwise"})
    run.precompute()
    run.score()
    monkeypatch.setattr(train_phi, "fits", lambda num_bytes, device: False)
    save, left = train_phi.save_checkpoint, list[list[Path]]()

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_phi, "save_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        run.train_phi()
    monkeypatch.setattr(train_phi, "save_checkpoint", save)
    monkeypatch.setattr(train_phi, "check_space", lambda folder, _: left.append([*folder.glob("resting/*")]))
    assert [*run.workspace.root.rglob("resting/0/*")]
    run.train_phi()
    assert left == [[]]
