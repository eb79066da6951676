"""The script that averages the weights of several θ."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file

from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER
from examples.scripts import script

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def averaging() -> ModuleType:
    return script("average_theta.py")


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    """The shipped θ with weights that are twice as large."""
    folder = tmp_path / "doubled"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((EMBEDDED_FOLDER / name).read_bytes())
    weights = load_file(EMBEDDED_FOLDER / WEIGHTS)
    save_file({name: 2 * each for name, each in weights.items()}, folder / WEIGHTS, {"format": "pt"})
    return folder


def test_shares_weigh_what_is_averaged_and_need_not_add_up_to_one(averaging: ModuleType) -> None:
    first, second = {"a": torch.tensor([1.0, 5.0])}, {"a": torch.tensor([3.0, 1.0])}
    assert averaging.average([(3, first), (1, second)])["a"].tolist() == [1.5, 4.0]
    assert averaging.average([(0.75, first), (0.25, second)])["a"].tolist() == [1.5, 4.0]


def test_the_mean_is_written_as_a_model_of_its_own(averaging: ModuleType, doubled: Path, tmp_path: Path) -> None:
    averaging.main(["3", str(EMBEDDED_FOLDER), "1", str(doubled)], tmp_path / "mean")
    shipped, mean = load_file(EMBEDDED_FOLDER / WEIGHTS), load_file(tmp_path / "mean" / WEIGHTS)
    assert mean.keys() == shipped.keys()
    for name, each in shipped.items():
        assert mean[name].dtype == torch.bfloat16
        torch.testing.assert_close(mean[name], 1.25 * each)
    for name in ("tokenizer.json", "config.json"):
        assert (tmp_path / "mean" / name).exists()


@pytest.mark.parametrize("models", [["1", "folder", "1"], ["folder", "1"]])
def test_shares_and_folders_that_do_not_alternate_are_refused(
    averaging: ModuleType, models: list[str], tmp_path: Path
) -> None:
    with pytest.raises(typer.BadParameter, match="a folder follows each share"):
        averaging.main(models, tmp_path)
