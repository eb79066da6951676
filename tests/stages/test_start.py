"""ψ, a baseline and the chain decoder go on from an adapter of their kind."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ccot_cli.errors import MissingError, UsageError
from ccot_cli.files import sha256_of
from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.models.base.history import read_history
from ccot_cli.names import ADAPTER_FILE
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import train_decoder
from stages.runs import RATIO, MakeRun, Run, Told, tensors_of

LAYER = 2
"""l of the runs."""

TRAININGS: dict[str, tuple[str, Callable[[Run], Any]]] = {
    "train-psi/r0.10": ("psi", Run.train_psi),
    "train-baseline/direct": ("psi", lambda run: run.train_baseline("direct")),
    "train-decoder/r0.10": (
        "decoder",
        lambda run: train_decoder.run(run.workspace, run.settings, RATIO, progress=Progress()),
    ),
}
"""The folder of what is trained, the adapter in it, and how it is trained."""


@pytest.fixture
def trained(make_run: MakeRun) -> Run:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    return run


@pytest.fixture
def method(trained: Run, tmp_path: Path) -> Path:
    """Copy the trained method to a folder of its own; ψ's training changed φ's layers above l."""
    folder = tmp_path / "method"
    shutil.copytree(trained.workspace.folder("train-psi", "r0.10"), folder)
    assert not same(trained.workspace.folder("train-phi", "r0.10") / PHI, folder / PHI, above=True)
    assert same(trained.workspace.folder("train-phi", "r0.10") / PHI, folder / PHI, above=False)
    return folder


def same(one: Path, other: Path, *, above: bool) -> bool:
    """Tell whether two φ are the same above l, or in the layers up to l."""
    first, second = tensors_of(one), tensors_of(other)
    names = [name for name in first if (int(name.split(".layers.")[1].split(".")[0]) >= LAYER) == above]
    assert names
    return all(torch.allclose(first[name], second[name], atol=1e-6) for name in names)


def test_phi_starts_from_a_methods_without_the_layers_that_learned_with_psi(trained: Run, method: Path) -> None:
    changes = {"train_phi.start": str(method / PHI), "train_phi.learning_rate": 1e-12}
    Run(trained.workspace, override(trained.settings, changes)).train_phi()
    after = trained.workspace.folder("train-phi", "r0.10") / PHI
    assert same(after, method / PHI, above=False)
    ups = {name: each for name, each in tensors_of(after).items() if ".lora_B." in name}
    for name, each in ups.items():
        is_above = int(name.split(".layers.")[1].split(".")[0]) >= LAYER
        assert (each.abs().max() < 1e-6) == is_above


@pytest.mark.parametrize("unfreeze", ["above", "none"])
def test_psi_goes_on_with_the_layers_of_phi_that_learned_with_it(trained: Run, method: Path, unfreeze: str) -> None:
    changes = {"train_phi.seed": 7, "train_psi.start": str(method / PSI), "train_psi.learning_rate": 1e-12}
    going_on = Run(trained.workspace, override(trained.settings, {**changes, "train_psi.unfreeze": unfreeze}))
    going_on.train_phi()
    going_on.train_psi()
    phi, after = (trained.workspace.folder(stage, "r0.10") / PHI for stage in ("train-phi", "train-psi"))
    assert same(after, phi, above=False)
    assert not same(after, method / PHI, above=False)
    assert same(after, method / PHI, above=True) == (unfreeze == "above")
    # Another φ beside the ψ to start from is another input.
    assert going_on.train_psi().was_ready
    shutil.copytree(phi, method / PHI, dirs_exist_ok=True)
    assert not going_on.train_psi().was_ready


def test_layers_that_learned_with_psi_stay_out_of_a_phi_of_another_rank(trained: Run, method: Path) -> None:
    changes = {"train_phi.lora_rank": 2, "train_psi.start": str(method / PSI), "train_psi.learning_rate": 1e-12}
    going_on, told = Run(trained.workspace, override(trained.settings, changes)), Told()
    going_on.train_phi()
    going_on.train_psi(told)
    phi, after = (trained.workspace.folder(stage, "r0.10") / PHI for stage in ("train-phi", "train-psi"))
    assert same(after, phi, above=True)
    assert any("have another rank or alpha: left out" in line for line in told.said)


@pytest.mark.parametrize("artifact", TRAININGS)
def test_a_training_goes_on_from_an_adapter(trained: Run, artifact: str, tmp_path: Path) -> None:
    (adapter, train), (stage, key) = TRAININGS[artifact], artifact.split("/")
    train(trained)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(trained.workspace.folder(stage, key) / adapter, elsewhere)
    before = tensors_of(elsewhere)
    # With so small a rate it does not move, and with another seed a new one would begin elsewhere.
    changes = {"train_psi.start": str(elsewhere), "train_psi.learning_rate": 1e-12, "train_psi.seed": 5}
    going_on = Run(trained.workspace, override(trained.settings, changes))
    train(going_on)
    after = tensors_of(trained.workspace.folder(stage, key) / adapter)
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    history = read_history(trained.workspace.folder(stage, key) / adapter)
    assert history is not None
    assert [*read_history(elsewhere), history[-1]] == history
    assert len(history) == 2
    manifest = trained.workspace.require(stage, key).manifest
    assert manifest.inputs["start"] == sha256_of(elsewhere / ADAPTER_FILE)
    assert str(elsewhere) not in "".join(manifest.inputs)
    assert trained.workspace.state(stage, key, going_on.settings).name == "ready"
    # The adapter counts, not where it lies.
    moved = elsewhere.rename(tmp_path / "moved")
    assert train(Run(trained.workspace, override(going_on.settings, {"train_psi.start": str(moved)}))).was_ready


@pytest.mark.parametrize("artifact", TRAININGS)
def test_nothing_starts_from_what_it_will_replace(trained: Run, artifact: str) -> None:
    (adapter, train), (stage, key) = TRAININGS[artifact], artifact.split("/")
    train(trained)
    folder = trained.workspace.folder(stage, key)
    before = tensors_of(folder)
    with pytest.raises(UsageError, match="cannot start from itself"):
        train(Run(trained.workspace, override(trained.settings, {"train_psi.start": str(folder / adapter)})))
    assert tensors_of(folder).keys() == before.keys()


@pytest.mark.parametrize("artifact", TRAININGS)
def test_a_start_that_cannot_be_is_refused(trained: Run, artifact: str, tmp_path: Path) -> None:
    (_, train), (stage, key) = TRAININGS[artifact], artifact.split("/")
    before = trained.workspace.state(stage, key, trained.settings)
    nowhere = Run(trained.workspace, override(trained.settings, {"train_psi.start": str(tmp_path)}))
    with pytest.raises(MissingError, match="no adapter's folder"):
        train(nowhere)
    psi = trained.workspace.folder("train-psi", "r0.10") / "psi"
    shutil.copytree(psi, tmp_path / "psi")
    changes = {"train_psi.start": str(tmp_path / "psi"), "train_psi.lora_rank": 2}
    with pytest.raises(UsageError, match="lora_rank 4, not 2"):
        train(Run(trained.workspace, override(trained.settings, changes)))
    # Nothing was begun.
    assert trained.workspace.state(stage, key, trained.settings) == before
