"""The script that averages the φ and ψ of several methods."""

import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file

from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.stages.methods import METHODS_FOLDER
from examples.scripts import script

SHIPPED, WEIGHTS = METHODS_FOLDER / "r0.10", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def averaging() -> ModuleType:
    return script("average_methods.py")


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    """The shipped method with adapters whose weights are twice as large, and another END."""
    folder = tmp_path / "doubled"
    shutil.copytree(SHIPPED, folder)
    for adapter in (PHI, PSI):
        weights = load_file(SHIPPED / adapter / WEIGHTS)
        save_file({name: 2 * each for name, each in weights.items()}, folder / adapter / WEIGHTS)
    end = load_file(SHIPPED / "end.safetensors")
    save_file({name: each + 1 for name, each in end.items()}, folder / "end.safetensors")
    return folder


def test_phi_and_psi_are_averaged_and_the_rest_is_that_of_the_first(
    averaging: ModuleType, doubled: Path, tmp_path: Path
) -> None:
    averaging.main(["3", str(SHIPPED), "1", str(doubled)], tmp_path / "mean")
    for adapter in (PHI, PSI):
        shipped, mean = load_file(SHIPPED / adapter / WEIGHTS), load_file(tmp_path / "mean" / adapter / WEIGHTS)
        assert mean.keys() == shipped.keys()
        for name, each in shipped.items():
            assert mean[name].dtype == torch.bfloat16
            torch.testing.assert_close(mean[name], 1.25 * each)
    for name in ("end.safetensors", "draft.safetensors", "method.json"):
        assert (tmp_path / "mean" / name).read_bytes() == (SHIPPED / name).read_bytes()


def test_a_folder_that_exists_is_refused_and_left_alone(averaging: ModuleType, doubled: Path) -> None:
    before = (doubled / PSI / WEIGHTS).read_bytes()
    with pytest.raises(typer.BadParameter, match="doubled exists already"):
        averaging.main(["1", str(SHIPPED), "1", str(doubled)], doubled)
    assert (doubled / PSI / WEIGHTS).read_bytes() == before


def test_methods_of_other_shapes_are_refused_before_anything_is_written(
    averaging: ModuleType, doubled: Path, tmp_path: Path
) -> None:
    weights = load_file(doubled / PSI / WEIGHTS)
    save_file({name: each[:1].contiguous() for name, each in weights.items()}, doubled / PSI / WEIGHTS)
    with pytest.raises(typer.BadParameter, match="psi has other weights in one folder than in another"):
        averaging.main(["1", str(SHIPPED), "1", str(doubled)], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()
