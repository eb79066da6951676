"""The runs of training behind an adapter travel with it."""

import json
from pathlib import Path

import pytest

from ccot_cli.errors import CorruptError
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.history import HISTORY_FILE, TrainingRun
from ccot_cli.models.base.theta import Theta

FIRST = {"steps": 30, "batch_size": 4, "problems": 40, "passes": 3}
SECOND = {"steps": 10, "batch_size": 8, "problems": 80, "passes": 1}


def trained(theta: Theta, folder: Path) -> Adapters:
    """Return adapters with a φ that was recorded and saved."""
    adapters = Adapters(theta)
    adapters.add(PHI, rank=4, alpha=8, seed=1)
    adapters.record(PHI, **FIRST)
    adapters.save(PHI, folder)
    return adapters


def test_an_adapter_that_goes_on_has_the_runs_before_it(theta: Theta, tmp_path: Path) -> None:
    adapters = trained(theta, tmp_path / "first")
    weights = sum(each.numel() for each in adapters.state(PHI).values())
    adapters.load(PHI, tmp_path / "first" / PHI)
    adapters.add(PSI, rank=2, alpha=2, seed=2)
    adapters.record(PHI, **SECOND)
    adapters.save(PHI, tmp_path / "second")
    adapters.load(PHI, tmp_path / "second" / PHI)
    runs = [TrainingRun(**FIRST, weights=weights), TrainingRun(**SECOND, weights=weights)]
    assert adapters.histories(PHI, PSI) == {PHI: runs, PSI: []}
    # A new adapter of that name knows nothing of the old one.
    adapters.add(PHI, rank=4, alpha=8, seed=1)
    assert adapters.histories(PHI) == {PHI: []}


def test_an_adapter_without_a_history_stays_without_one(theta: Theta, tmp_path: Path) -> None:
    adapters = trained(theta, tmp_path)
    (tmp_path / PHI / HISTORY_FILE).unlink()
    adapters.load(PHI, tmp_path / PHI)
    adapters.record(PHI, **SECOND)
    adapters.save(PHI, tmp_path / "again")
    assert adapters.histories(PHI) == {PHI: None}
    assert not (tmp_path / "again" / PHI / HISTORY_FILE).exists()


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[3]", json.dumps([FIRST]), json.dumps([{**FIRST, "weights": -1}]), "[" * 100_000]
)
def test_a_damaged_history_is_an_error(theta: Theta, tmp_path: Path, text: str) -> None:
    adapters = trained(theta, tmp_path)
    (tmp_path / PHI / HISTORY_FILE).write_text(text)
    with pytest.raises(CorruptError, match=HISTORY_FILE):
        adapters.load(PHI, tmp_path / PHI)
