"""`ccot status --plot` draws what the logs of trainings hold."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ccot_cli.cli import app
from ccot_cli.cli.curves import Curve, read_panel
from ccot_cli.config import stage_config
from ccot_cli.models.training.loop import LOG_FILE, write_lines
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.workspace import Workspace
from cli.running import Output


def psi_lines(count: int) -> list[dict[str, Any]]:
    """Write a log whose loss falls from 2, judged at its last step."""
    lines: list[dict[str, Any]] = [{"step": step, "loss": 2 / step} for step in range(1, count + 1)]
    lines[-1] |= {"validation_right": 0.25, "validation_loss": 0.75}
    return lines


def test_a_panel_has_losses_and_what_was_judged() -> None:
    panel = read_panel("train-psi r0.10", psi_lines(4))
    assert panel.losses == {"training": Curve([1, 2, 3, 4], [2, 1, 2 / 3, 0.5]), "validation": Curve([4], [0.75])}
    assert panel.shares == {"right, word for word": Curve([4], [0.25])}


def test_many_steps_are_averaged_and_thinned() -> None:
    [curve] = read_panel("", [{"step": step, "loss": float(step)} for step in range(1, 2001)]).losses.values()
    assert len(curve.x) == 500
    assert curve.x[:3] == [1, 5, 9]
    assert curve.y[0] == 1
    assert curve.y[100] == pytest.approx(401 - 39 / 2)  # the mean of the 40 steps up to step 401


def test_losses_that_are_not_finite_leave_a_gap() -> None:
    lines = psi_lines(3)
    lines[1]["loss"] = None
    assert read_panel("", lines).losses["training"].x == [1, 3]


def test_a_report_with_a_number_that_is_not_finite_is_left_out() -> None:
    reports = [{"losses": [0.5, None], "generated_read": [0.5, 0.5]}, {"losses": [0.5, 0.25], "generated_read": None}]
    panel = read_panel("", [{"step": step, "loss": 1.0, **report} for step, report in enumerate(reports, start=1)])
    assert panel.losses["validation rollouts"] == Curve([2], [0.375])
    assert panel.shares == {"numbers read at L": Curve([1], [0.5])}


def test_phi_has_its_rollouts_or_its_layers() -> None:
    report = {"losses": [0.5, 0.25], "generated_read": [0.5, 0.75]}
    joint = read_panel("", [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5, **report}])
    assert joint.losses["validation rollouts"] == Curve([2], [0.375])
    assert joint.shares == {"numbers read at L": Curve([2], [0.75])}
    figures = {"train_loss": 0.1, "validation_loss": 0.2, "untrained_loss": 1.5}
    layers = read_panel("", [{"layer": 1, **figures}, {"layer": 2, **figures}])
    assert layers.x_label == "layer of φ"
    assert layers.losses["validation"] == Curve([1, 2], [0.2, 0.2])


def test_finished_and_unfinished_trainings_are_drawn(workspace: Workspace, tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curves.svg"
    assert app.run(["status", "-w", "my-run", "--plot", str(picture)]) == 2
    assert "nothing has been trained here yet" in capsys.readouterr().err
    assert not picture.exists()

    def spec(stage: str, key: str) -> ArtifactSpec:
        return ArtifactSpec(stage, key, stage_config(workspace.settings, stage), {})

    with workspace.building(spec("train-psi", "r0.10")) as build:
        write_lines(build.folder / LOG_FILE, psi_lines(20))
    with suppress(KeyboardInterrupt), workspace.building(spec("train-phi", "r0.05")) as build:
        write_lines(build.folder / LOG_FILE, [{"step": 1, "loss": 1.0}])
        raise KeyboardInterrupt
    assert app.run(["status", "-w", "my-run", "--plot", str(picture)]) == 0
    assert capsys.readouterr().err == f"2 trainings drawn into {picture}\n"
    drawn = picture.read_text()
    for text in ("train-psi r0.10", "train-phi r0.05, not finished", "validation", "loss (log scale)", "step"):
        assert f">{text}<" in drawn
