"""Baselines train as ψ does, and continue after an interruption."""

from decimal import Decimal

import pytest
import torch

from ccot_cli.errors import MissingError, UsageError
from ccot_cli.models.training.loop import Judgement
from ccot_cli.models.training.psi import HeldOut, PsiTraining
from ccot_cli.names import BaselineName
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import evaluate, score
from ccot_cli.stages.ask import Asker
from ccot_cli.stages.methods import baseline_key
from stages.runs import RATIO, MakeRun, Stopping, Told, stored_problems, tensors_of


def test_gold_is_trained_on_what_score_selected_and_answers_test_problems(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    with pytest.raises(MissingError, match="score"):
        run.train_baseline("gold")
    run.score()
    assert run.train_baseline("gold").num_steps == 3
    result = evaluate.run(run.workspace, run.settings, names=["gold"], progress=Progress())
    [row] = result.rows
    assert (row.method, row.ratio) == ("gold", 0.1)
    assert row.contemplation_tokens_mean >= 3
    asker = Asker(run.workspace, run.settings, RATIO, "gold")
    with pytest.raises(UsageError, match="none"):
        asker.answer(["Mia has 12 pens."])
    with pytest.raises(MissingError, match=r"trained: 0\.1\)"):
        Asker(run.workspace, run.settings, Decimal("0.2"), "gold")
    # Other tokens make it stale.
    again = override(run.settings, {"score.selector": "even"})
    score.run(run.workspace, again, RATIO, progress=Progress())
    assert run.workspace.state("train-baseline", "gold-r0.10", run.settings).name == "stale"


@pytest.mark.parametrize("name", ["pause", "coconut", "icot"])
def test_an_interrupted_baseline_ends_in_the_same_bits(make_run: MakeRun, name: BaselineName) -> None:
    changes = {"train_psi.checkpoint_steps": 1, "train_psi.epochs": 3}
    whole, halted = make_run("whole", **changes), make_run("halted", **changes)
    for run in (whole, halted):
        run.precompute()
    whole.train_baseline(name)
    with pytest.raises(KeyboardInterrupt):
        halted.train_baseline(name, Stopping(name, 4))
    rest = Told()
    halted.train_baseline(name, rest)
    assert [left for label, left in rest.left.items() if label.startswith(name)] == [5]
    key = baseline_key(name, RATIO)
    one, other = (run.workspace.require("train-baseline", key) for run in (whole, halted))
    assert one.manifest.files == other.manifest.files


@pytest.mark.parametrize("name", ["ψ", "pause", "gold"])
def test_the_weights_that_did_best_on_validation_problems_are_saved(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    judged: list[HeldOut] = []

    saved = []
    for step in (3, 9):

        def judge(training: PsiTraining, held_out: HeldOut, best_step: int = step) -> Judgement:
            judged.append(held_out)
            return Judgement(float(training.optimiser.step_count == best_step), 1.0)

        monkeypatch.setattr(PsiTraining, "judge", judge)
        run = make_run(f"run-{step}", **{"train_psi.epochs": 3})
        run.precompute()
        run.score()
        if name == "ψ":
            run.train_phi()
        result = run.train_psi() if name == "ψ" else run.train_baseline(name)  # type: ignore[arg-type]
        assert (result.num_steps, result.kept_step) == (9, step)
        key = ("train-psi", "r0.10") if name == "ψ" else ("train-baseline", f"{name}-r0.10")
        saved.append(tensors_of(run.workspace.folder(*key)))
    assert not any(torch.equal(each, saved[1][path]) for path, each in saved[0].items() if path.startswith("psi"))
    queries = [problem.query for problem in stored_problems(run, is_validation=True)]
    assert all([each.query for each in held_out.examples] == queries for held_out in judged)
