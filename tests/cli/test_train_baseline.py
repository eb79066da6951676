"""`ccot train-baseline`."""

import json
from pathlib import Path

import pytest

from cli.running import Output, output


def test_a_method_with_a_ratio_of_its_own_needs_none(here: Path, capsys: Output) -> None:
    output(capsys, "precompute")
    out, err = output(capsys, "train-baseline", "direct", "--ratio", "0")
    assert out.startswith("direct: validation accuracy")
    assert "--ratio is not read" not in err
    _, err = output(capsys, "train-baseline", "direct", "--ratio", "0.1")
    assert "direct always has ratio 0: --ratio is not read" in err


def test_it_starts_from_the_adapter_in_a_folder_relative_to_the_current_one(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained / "train-psi")
    output(capsys, "train-baseline", "direct", "-w", "..", "--start", "r0.10/psi")
    manifest = json.loads((trained / "train-baseline" / "direct" / "manifest.json").read_text())
    start = str(trained / "train-psi" / "r0.10" / "psi")
    assert manifest["config"]["train_psi"]["start"] == start
    assert "start" in manifest["inputs"]
    _, err = output(capsys, "train-baseline", "direct", "-w", "..", "--start", "r0.20/psi", code=3)
    assert "r0.20/psi is no adapter's folder" in err
