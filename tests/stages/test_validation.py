"""Figures on validation are those of the present caps, and confidence is calibrated there."""

from collections.abc import Sequence
from decimal import Decimal

import pytest

from ccot_cli.models.methods.calibration import Calibration
from ccot_cli.overrides import override
from ccot_cli.stages import train_baseline
from ccot_cli.stages.ask import Asker
from ccot_cli.stages.problems import read_problems
from stages.runs import RATIO, MakeRun, Run, Told


def test_figures_of_a_ready_method_are_those_of_the_present_caps(make_run: MakeRun) -> None:
    run = make_run(**{"decoding.cap_tokens": 60})
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    run.train_baseline("cot")
    short = Run(run.workspace, override(run.settings, {"decoding.cap_tokens": 20, "decoding.max_chain_tokens": 5}))
    # END of a random model may come before the cap, so that the cap alone shortens nothing for certain.
    psi, cot = short.train_psi(), short.train_baseline("cot")
    assert psi.was_ready
    assert psi.mean_tokens <= 2
    assert cot.was_ready
    assert cot.mean_tokens <= 5
    assert psi.decoding == cot.decoding == {"cap_tokens": 20, "max_answer_tokens": 16, "max_chain_tokens": 5}
    told = Told()
    again = train_baseline.run(run.workspace, run.settings, "cot", RATIO, progress=told)
    assert (again.was_ready, told.labels) == (True, [])
    assert again.mean_tokens > 5


def test_confidence_is_what_validation_made_of_the_score(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    found, fitted = Calibration(2.0, -1.0), list[tuple[Sequence[float], Sequence[bool]]]()

    def fit(scores: Sequence[float], are_right: Sequence[bool]) -> Calibration:
        fitted.append((scores, are_right))
        return found

    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    told = Told()
    run.train_psi(progress=told)
    [reason] = [line for line in told.said if "confidence" in line]
    assert reason.startswith("confidence is not calibrated: of 6 validation answers")
    questions = [
        each.problem.question for each in read_problems(run.workspace.require("precompute")) if each.is_validation
    ]
    raw = Asker(run.workspace, run.settings, RATIO).ask_all(questions)
    assert not any(result.calibrated for result in raw)

    monkeypatch.setattr(Calibration, "fit", fit)
    other = Run(run.workspace, override(run.settings, {"train_psi.seed": 1}))
    other.train_psi()
    other.train_baseline("direct")
    for ratio, (scores, are_right) in zip((RATIO, Decimal(0)), fitted, strict=True):
        results = Asker(other.workspace, other.settings, ratio).ask_all(questions)
        assert all(result.calibrated for result in results)
        assert [result.confidence for result in results] == pytest.approx([found(score) for score in scores], abs=1e-4)
        assert len(are_right) == len(questions) == 6
