"""All stages one after another: on several families, in bfloat16, on another device, after a change or a stop."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest
from accelerator import mock_device
from conftest import GSM8K, OTHER_FAMILIES

from ccot_cli.config import ModelConfig
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.models.base.theta import Theta, load_theta
from ccot_cli.models.decoding import draft
from ccot_cli.models.training import optimiser
from ccot_cli.models.training.recipes.registry import RECIPES
from ccot_cli.names import BaselineName
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import evaluate, inputs, precompute, train_baseline
from ccot_cli.stages.ask import Asker
from ccot_cli.stages.methods import find_methods
from stages.runs import RATIO, MakeRun, Run, Stopping, Told


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen3", "gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mistral", *OTHER_FAMILIES))],
)
def test_the_whole_pipeline_ends_in_a_table_and_an_answer(make_run: MakeRun, family: str) -> None:
    run = make_run(family=family)
    assert run.precompute().num_train == 20
    scored = run.score()
    assert scored.mean_kept == pytest.approx(scored.mean_chain * 0.1, abs=1)
    phi = run.train_phi()
    assert (phi.schedule, phi.num_steps) == ("joint", 6)
    assert len(phi.report["losses"]) == 3
    for name in ("direct", "cot"):
        assert run.train_baseline(name).num_steps == 3
    assert run.train_psi().target_tokens == pytest.approx(scored.mean_kept, abs=3)
    result = evaluate.run(run.workspace, run.settings, progress=Progress())
    assert [(row.method, row.ratio) for row in result.rows] == [("direct", 0.0), ("ccot", 0.1), ("cot", 1.0)]
    assert all(row.n == 6 and 0 <= row.low <= row.accuracy <= row.high <= 1 for row in result.rows)
    assert result.rows[0].contemplation_tokens_mean == 0
    assert 1 <= result.rows[1].contemplation_tokens_mean <= 20
    assert result.folder is not None
    predictions = [json.loads(line) for line in (Path(result.folder) / "predictions.jsonl").read_text().splitlines()]
    assert len(predictions) == 18
    for row in result.rows:
        marks = [line["is_correct"] for line in predictions if line["ratio"] == row.ratio]
        assert sum(marks) / len(marks) == row.accuracy
    assert json.loads((Path(result.folder) / "metrics.json").read_text())["rows"][0]["method"] == "direct"
    asker = Asker(run.workspace, run.settings, RATIO)
    [answer] = asker.answer([asker.check("Mia has 12 pens. How many pens does Mia have?")])
    assert answer.contemplation_tokens >= 1
    assert Asker(run.workspace, run.settings, None).method.ratio == RATIO


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"train_psi.unfreeze": "above"}),
        ("gpt2", {"train_psi.unfreeze": "none"}),
        ("llama", {"train_phi.schedule": "layerwise", "score.selector": "learned"}),
    ],
)
def test_everything_trains_and_answers_in_bfloat16(make_run: MakeRun, family: str, changes: dict[str, object]) -> None:
    names: tuple[BaselineName, ...] = ("pause", "coconut", "gold")
    errors, losses = [], []
    for dtype in ("float32", "bfloat16"):
        run = make_run(dtype, family, **{"model.dtype": dtype, "score.scorer_steps": 4, **changes})
        settings = override(run.settings, {"train_psi.epochs": 2})
        run.precompute()
        run.score()
        errors.append(run.train_phi().report["losses"])
        trained = [train_baseline.run(run.workspace, settings, name, RATIO, progress=Progress()) for name in names]
        losses.append([each.train_loss for each in (*trained, run.train_psi())])
    # Both learn alike. Untrained, φ errs at least 40 % more here, and the losses are at least 1 % higher.
    assert errors[1] == pytest.approx(errors[0], rel=0.05)
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)
    result = evaluate.run(run.workspace, settings, has_controls=True, names=("ccot",), progress=Progress())
    assert len(result.rows) == 5
    [count] = {row.contemplation_tokens_mean for row in result.rows}
    assert all(row.n == 6 for row in result.rows)
    assert count >= 1


def test_layers_that_rest_learn_the_same_one_at_a_time(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccot_cli.models.base.adapters.MOST_MERGED_BYTES", 0)  # a layer that rests is never merged
    rested: list[bool] = []

    def load(config: ModelConfig) -> Theta:
        """Offload on a CPU too, which `load_theta` does not: layers are stored in one place and run in another."""
        found = load_theta(config)
        found.blocks.to(found.device, offload=config.offload)
        rested.append(found.blocks.is_offloaded)
        return found

    for stage in (precompute, inputs):
        monkeypatch.setattr(stage, "load_theta", load)
    changes = {"train_phi.schedule": "layerwise"}
    whole, resting = make_run("whole", **changes), make_run("resting", **changes, **{"model.offload": True})
    for run in (whole, resting):
        run.precompute()
        run.score()
        run.train_phi()
    assert rested == [False] * 3 + [True] * 3
    for name, key in (("precompute", None), ("score", "r0.10"), ("train-phi", "r0.10")):
        one, other = (run.workspace.require(name, key) for run in (whole, resting))
        assert one.manifest.files == other.manifest.files
        assert one.fingerprint == other.fingerprint, "where layers rest is no part of the result"
    whole.train_psi()
    answered = []
    for run in (whole, Run(whole.workspace, resting.settings)):
        asker = Asker(run.workspace, run.settings, RATIO)
        answered.append(asker.answer(["Mia has 3 pens and buys 4 more. How many pens does she have?"])[0])
    assert rested[-2:] == [False, True]
    assert answered[0].text == answered[1].text
    resting.train_psi()
    whole.train_baseline("direct")
    resting.train_baseline("direct")
    for name, key in (("train-psi", "r0.10"), ("train-baseline", "direct")):
        one, other = (run.workspace.require(name, key) for run in (whole, resting))
        assert one.manifest.files == other.manifest.files


def test_a_tokenizer_without_padding_will_do(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(family="gpt2")
    described = tmp_path / "gpt2" / "tokenizer_config.json"
    roles = json.loads(described.read_text())
    described.write_text(json.dumps({name: role for name, role in roles.items() if name != "pad_token"}))
    assert load_theta(run.settings.model).encoder.tokenizer.pad_token_id is None
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    assert evaluate.run(run.workspace, run.settings, progress=Progress()).rows[0].method == "ccot"


@pytest.mark.parametrize(
    ("schedule", "unfreeze", "ends"),
    [
        ("joint", "above", "late"),
        ("joint", "none", "exact"),
        ("layerwise", "above", "exact"),
        ("layerwise", "none", "late"),
    ],
)
def test_interrupted_training_ends_in_the_same_bits(make_run: MakeRun, schedule: str, unfreeze: str, ends: str) -> None:
    changes = {
        "train_phi.checkpoint_steps": 1,
        "train_phi.schedule": schedule,
        "train_psi.checkpoint_steps": 1,
        "train_psi.unfreeze": unfreeze,
        "train_psi.ends": ends,
    }
    whole, halted = make_run("whole", **changes), make_run("halted", **changes)
    for run in (whole, halted):
        run.precompute()
        run.score()
    everything, rest = Told(), Told()
    whole.train_phi(everything)
    whole.train_psi(everything)
    with pytest.raises(KeyboardInterrupt):
        halted.train_phi(Stopping("φ", 4))
    halted.train_phi(rest)
    with pytest.raises(KeyboardInterrupt):
        halted.train_psi(progress=Stopping("ψ", 2))
    halted.train_psi(rest)
    # What was done before is not done again.
    assert {label: everything.left[label] - left for label, left in rest.left.items() if label[0] in "φψ"} == {
        "φ at r = 0.1": 4 if schedule == "joint" else 3,
        "ψ at r = 0.1": 2,
    }
    for stage in ("train-phi", "train-psi"):
        one, other = whole.workspace.require(stage, "r0.10"), halted.workspace.require(stage, "r0.10")
        assert one.manifest.files == other.manifest.files


def test_what_was_made_from_a_changed_forerunner_s_results_is_stale_all_the_way(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    run.precompute(**{"data.seed": 1})
    for stage in ("score", "train-phi", "train-psi"):
        assert run.workspace.state(stage, "r0.10", run.settings)[0] == "stale"
        with pytest.raises(MissingError, match="precompute was made again"):
            run.workspace.require(stage, "r0.10")
    with pytest.raises(MissingError):
        run.train_psi()


def test_a_stage_without_its_forerunner_says_which_command_comes_first(make_run: MakeRun) -> None:
    run = make_run()
    for stage, first in ((run.score, "precompute"), (run.train_phi, "score"), (run.train_psi, "precompute")):
        with pytest.raises(MissingError) as caught:
            stage()
        assert f"ccot {first}" in caught.value.fix
    with pytest.raises(MissingError):
        find_methods(run.workspace, run.settings)


@pytest.mark.parametrize(
    "change", [{"train_phi.autoregressive_layer": 5}, {"precompute.scorer_layer": 5}, {"model.device": "cuda:77"}]
)
def test_a_setting_that_the_model_cannot_have_is_refused(make_run: MakeRun, change: dict[str, object]) -> None:
    run = make_run(**change)

    def until_it_fails() -> None:
        run.precompute()
        run.score()
        run.train_phi()

    with pytest.raises(UsageError):
        until_it_fails()


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K's training file is not here")
def test_real_problems_pass_through_precompute_and_score(make_run: MakeRun) -> None:
    run = make_run(**{"data.source": str(GSM8K), "data.limit": 24})
    assert run.precompute().num_train == 24
    result = run.score()
    assert result.num_problems > 24
    assert not any("<<" in example for example in result.examples)


# On another device

FEW = {
    "data.limit": 8,
    "data.validation_limit": 3,
    "eval.limit": 2,
    "train_phi.batch_size": 4,
    "score.scorer_steps": 3,
}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"score.selector": "learned", "train_phi.schedule": "layerwise", "train_psi.unfreeze": "none"}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("llama", {"train_psi.unfreeze": "above"}),
                ("gpt2", {"train_psi.unfreeze": "none", "train_phi.optimiser": "adamw"}),
                ("qwen3", {"score.selector": "learned", "score.scorer": "mlp", "train_psi.ends": "late"}),
            )
        ),
    ],
)
def test_every_stage_does_on_another_device_what_it_does_on_the_cpu(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, family: str, changes: dict[str, object]
) -> None:
    losses = []
    for name in ("here", "there"):
        monkeypatch.setattr(draft, "LEAST_CHANCE", 0.0)
        run = make_run(name, family, **FEW, **changes)
        with nullcontext("cpu") if name == "here" else mock_device(monkeypatch) as device:
            there = Run(run.workspace, override(run.settings, {"model.device": device}))
            there.precompute()
            there.score()
            losses.append([*there.train_phi().report["losses"], there.train_psi().train_loss])
        monkeypatch.undo()
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    # What was made there answers here.
    reply = Asker(run.workspace, run.settings, RATIO).answer(["Mia has 12 pens. How many pens does Mia have?"])[0]
    assert reply.contemplation_tokens >= 1


@pytest.mark.slow
def test_every_method_and_control_does_on_another_device_what_it_does_on_the_cpu(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, losses, rows = ("ccot", *RECIPES, "zero-shot"), [], []
    for place in ("here", "there"):
        monkeypatch.setattr(draft, "LEAST_CHANCE", 0.0)
        # bfloat16 would make the last digits, which differ, count for more.
        monkeypatch.setattr(optimiser, "multiplies_bfloat16", lambda device: False)
        with nullcontext("cpu") if place == "here" else mock_device(monkeypatch) as device:
            # Problems on which END, which is fitted on few tokens, is not so near its threshold that rounding decides.
            settings = {"model.dtype": "bfloat16", "train_psi.epochs": 3, "data.seed": 1}
            run = make_run(place, **FEW, **settings, **{"model.device": device})
            run.precompute()
            run.score()
            phi, psi = run.train_phi(), run.train_psi()
            baselines = [run.train_baseline(cast(BaselineName, name)).train_loss for name in RECIPES]
            losses.append([*phi.report["losses"], psi.train_loss, *baselines])
            result = evaluate.run(run.workspace, run.settings, names=names, has_controls=True, progress=Progress())
            rows.append([(row.method, row.contemplation_tokens_mean, row.answer_tokens_mean) for row in result.rows])
        monkeypatch.undo()
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert len(rows[0]) == len(names) + 4
    assert rows[1] == rows[0]


def test_an_interrupted_training_continues_on_another_device(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mock_device(monkeypatch) as device:
        run = make_run("run", **FEW, **{"model.device": device, "train_phi.checkpoint_steps": 1})
        run.precompute()
        run.score()
        with pytest.raises(KeyboardInterrupt):
            run.train_phi(Stopping("φ", 2))
        rest = Told()
        run.train_phi(rest)
        assert min(left for label, left in rest.left.items() if label.startswith("φ")) == 2
