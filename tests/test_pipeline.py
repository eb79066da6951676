"""The stages one after another on a tiny random model."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from accelerator import pretended
from ccot_cli.stages.ceiling import gold_ceiling
from conftest import GSM8K, MakeTheta, save_tiny
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedTokenizerFast

from ccot_cli import files
from ccot_cli.config import ModelConfig, Settings, override
from ccot_cli.data.problems import Problem
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.shards import read_records, shard_paths
from ccot_cli.errors import BusyError, CorruptError, DivergedError, MissingError, ResourceError, UsageError
from ccot_cli.models.base import memory, theta
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.blocks import Blocks
from ccot_cli.models.base.memory import fits, is_out_of_memory
from ccot_cli.models.base.theta import Theta, load_theta
from ccot_cli.models.decoding import draft
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.training.draft import fit_draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import Method, Reply, Seconds, reply_in_parts
from ccot_cli.models.selection import gold
from ccot_cli.models.training.contexts import RolloutContext
from ccot_cli.models.training.end import MOST_EXTRA, fit_end
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.recipes.registry import RECIPES
from ccot_cli.models.training.scorer import ScorerTraining
from ccot_cli.names import BaselineName
from ccot_cli.progress import Progress
from ccot_cli.stages import evaluate, precompute, queries, score, sweep, train_baseline, train_phi, train_psi
from ccot_cli.stages.ask import Asker
from ccot_cli.stages.methods import find_methods
from ccot_cli.tensors.probes import Logistic, fit_logistic
from ccot_cli.tensors.select import num_kept
from ccot_cli.workspace.workspace import Workspace

RATIO = Decimal("0.1")
SMALL = {
    "data.limit": 20,
    "data.validation_limit": 6,
    "precompute.batch_tokens": 600,
    "train_phi.autoregressive_layer": 2,
    "train_phi.lora_rank": 4,
    "train_phi.taught_epochs": 1,
    "train_phi.epochs": 1,
    "train_phi.batch_size": 8,
    "train_psi.lora_rank": 4,
    "train_psi.epochs": 1,
    "train_psi.batch_size": 8,
    "eval.limit": 6,
    "eval.batch_size": 4,
    "decoding.max_chain_tokens": 12,
}


class Stopping(Progress):
    """Behaves like Ctrl-C after a number of steps of one task."""

    def __init__(self, label: str, after: int) -> None:
        self.label, self.left = label, after

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        def advance(count: int = 1, **figures: str) -> None:
            if label.startswith(self.label):
                self.left -= count
                if self.left < 0:
                    raise KeyboardInterrupt

        yield advance


class Told(Progress):
    """Remembers what was said, and which tasks there were."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.labels: list[str] = []
        self.left: dict[str, int] = {}
        """Of each task, what was still to be done when it began."""

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        self.labels.append(label)
        self.left[label] = (total or 0) - done
        yield lambda count=1, **figures: None


@dataclass(frozen=True)
class Run:
    """A workspace and its settings."""

    workspace: Workspace
    settings: Settings

    def precompute(self, progress: Progress | None = None, **changes: object) -> precompute.PrecomputeResult:
        settings = override(self.settings, changes)
        return precompute.run(self.workspace, settings, progress=progress or Progress())

    def score(self) -> score.ScoreResult:
        return score.run(self.workspace, self.settings, RATIO, progress=Progress())

    def train_phi(self, progress: Progress | None = None) -> train_phi.TrainPhiResult:
        return train_phi.run(self.workspace, self.settings, RATIO, progress=progress or Progress())

    def train_psi(self, progress: Progress | None = None) -> train_psi.TrainPsiResult:
        return train_psi.run(self.workspace, self.settings, RATIO, progress=progress or Progress())

    def train_baseline(
        self, name: BaselineName, progress: Progress | None = None
    ) -> train_baseline.TrainBaselineResult:
        return train_baseline.run(self.workspace, self.settings, name, RATIO, progress=progress or Progress())


MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> MakeRun:
    """A fresh workspace on a tiny random model that is saved in a folder, as a user's would be."""

    def make(name: str = "run", family: str = "llama", **changes: object) -> Run:
        folder = tmp_path / family
        if not folder.exists():
            save_tiny(family, tokenizer, folder)
        workspace = Workspace.create(tmp_path / name, "embedded")
        settings = override(workspace.settings, {**SMALL, "model.name": str(folder), **changes})
        return Run(workspace, settings)

    return make


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.relative_to(folder)}:{name}": tensor
        for path in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def same_tensors(one: Path, other: Path) -> bool:
    first, second = tensors_of(one), tensors_of(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def stored_problems(run: Run, *, is_validation: bool | None = None) -> list[EncodedProblem]:
    """The problems that `precompute` has kept, all of them or those of one split."""
    encoder = load_theta(run.settings.model).encoder
    stored = precompute.read_problems(run.workspace.require("precompute"))
    return encoder.problems([each.problem for each in stored if is_validation in (None, each.is_validation)])


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
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
    assert Asker(run.workspace, run.settings, None).reasoner.ratio == RATIO


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"train_psi.unfreeze": "above"}),
        ("gpt2", {"train_psi.unfreeze": "all"}),
        ("llama", {"train_phi.schedule": "layerwise", "score.selector": "learned"}),
    ],
)
def test_everything_trains_and_answers_in_bfloat16(make_run: MakeRun, family: str, changes: dict[str, object]) -> None:
    run = make_run(family=family, **{"model.dtype": "bfloat16", "score.scorer_steps": 4, **changes})
    run.precompute()
    run.score()
    assert all(map(isfinite, run.train_phi().report["losses"]))
    names: tuple[BaselineName, ...] = ("pause", "coconut", "gold")
    settings = override(run.settings, {"train_psi.epochs": 2})
    for name in names:
        trained = train_baseline.run(run.workspace, settings, name, RATIO, progress=Progress())
        assert isfinite(trained.train_loss)
    assert isfinite(run.train_psi().train_loss)
    result = evaluate.run(run.workspace, settings, has_controls=True, names=("ccot",), progress=Progress())
    assert len(result.rows) == 5
    assert all(row.n == 6 and row.contemplation_tokens_mean >= 1 for row in result.rows)


def test_what_score_stores_is_the_same_whether_every_index_was_kept_or_one(make_run: MakeRun) -> None:
    thick, thin = make_run("thick"), make_run("thin")
    assert thick.precompute().is_every_index
    # Room for the scorer's index alone: a fifth of the five indices, and a little.
    room = sum(path.stat().st_size for path in shard_paths(thick.workspace.folder("precompute"))) / 4 / 1e9
    assert not thin.precompute(**{"precompute.max_disk": room}).is_every_index
    for run in (thick, thin):
        run.score()
    assert same_tensors(thick.workspace.folder("score", "r0.10"), thin.workspace.folder("score", "r0.10"))


def test_selected_states_belong_to_the_selected_tokens(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    full = {record.number: record for record in read_records(run.workspace.folder("precompute"))}
    problems = stored_problems(run)
    for record in read_records(run.workspace.folder("score", "r0.10")):
        source = full[record.number]
        first = int(source.positions_J[0])
        rows = [int(position) - first for position in record.positions_J]
        assert rows[0] == 0
        assert torch.equal(record.states_JID, source.states_JID[rows])
        # z_0 is the last query token's.
        query = problems[record.number].query
        assert (int(record.token_ids_J[0]), first) == (query[-1], len(query) - 1)
        assert record.token_ids_J.tolist() == [int(source.token_ids_J[row]) for row in rows]


def test_a_ready_stage_does_nothing(make_run: MakeRun) -> None:
    run = make_run()
    assert not run.precompute().was_ready
    before = {path: path.stat().st_mtime_ns for path in run.workspace.root.rglob("*") if path.is_file()}
    assert run.precompute().was_ready
    assert before == {path: path.stat().st_mtime_ns for path in run.workspace.root.rglob("*") if path.is_file()}


def test_an_interrupted_precompute_ends_in_the_same_bytes(make_run: MakeRun) -> None:
    whole, halted = make_run("whole"), make_run("halted")
    small_shards = {"precompute.shard_megabytes": 1, "data.limit": 120}
    whole.precompute(**small_shards)
    with pytest.raises(KeyboardInterrupt):
        halted.precompute(Stopping("hidden states", 90), **small_shards)
    assert halted.workspace.state("precompute").name == "missing"
    assert shard_paths(halted.workspace.folder("precompute"))
    rest = Told()
    made = halted.precompute(rest, **small_shards)
    assert made.num_shards == len(shard_paths(whole.workspace.folder("precompute")))
    assert 0 < rest.left["hidden states"] < 126
    assert same_tensors(whole.workspace.folder("precompute"), halted.workspace.folder("precompute"))


def test_a_lost_shard_is_made_again_as_it_was(make_run: MakeRun) -> None:
    run = make_run()
    small_shards = {"precompute.shard_megabytes": 1, "data.limit": 120}
    run.precompute(**small_shards)
    folder = run.workspace.folder("precompute")
    assert len(shard_paths(folder)) > 2
    before = {path.name: path.read_bytes() for path in shard_paths(folder)}
    shard_paths(folder)[1].unlink()
    run.precompute(**small_shards)
    assert {path.name: path.read_bytes() for path in shard_paths(folder)} == before


def test_a_shard_may_be_allowed_more_than_any_memory(make_run: MakeRun) -> None:
    run = make_run()
    assert run.precompute(**{"precompute.shard_megabytes": 10**9}).num_shards == 1


def test_the_papers_recipe_trains_layer_by_layer(make_run: MakeRun) -> None:
    run = make_run(**{"score.selector": "even", "train_phi.schedule": "layerwise", "train_psi.unfreeze": "above"})
    run.precompute()
    assert run.score().overlap_with_even == 1
    phi = run.train_phi()
    assert [row["layer"] for row in phi.layers] == [1, 2, 3, 4]
    assert phi.num_steps == 12
    assert run.train_psi().num_steps == 3


def test_phi_learns_from_the_selected_tokens_and_is_probed_for_what_follows_them(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    theta, problems = load_theta(run.settings.model), stored_problems(run)
    selected = run.workspace.require("score", "r0.10")
    train, validation = train_phi.load_examples(theta, run.workspace.require("precompute"), selected)
    records = sorted(read_records(selected.folder), key=lambda record: record.number)
    assert (len(train), len(validation)) == (20, 6)
    for example, record in zip([*train, *validation], records, strict=True):
        problem = problems[record.number]
        text = [*problem.query, *problem.chain, *theta.encoder.answer_marker]
        assert example.query == problem.query
        assert torch.equal(example.gold_JID, record.states_JID)
        assert example.next_K.tolist() == [text[position + 1] for position in record.positions_J[1:].tolist()]
        assert record.token_ids_J.tolist() == [text[position] for position in record.positions_J.tolist()]


def test_layers_whose_states_rest_in_files_learn_the_same(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory, in_files = (make_run(name, **{"train_phi.schedule": "layerwise"}) for name in ("memory", "files"))
    for run in (in_memory, in_files):
        run.precompute()
        run.score()
    in_memory.train_phi()
    monkeypatch.setattr(train_phi, "fits", lambda num_bytes, device: False)
    rested = []
    monkeypatch.setattr(train_phi, "check_space", lambda folder, num_bytes, fix: rested.append(num_bytes))
    in_files.train_phi()
    assert rested[0] > 0
    one, other = (run.workspace.require("train-phi", "r0.10").manifest.files for run in (in_memory, in_files))
    assert one == other


def test_layers_that_rest_learn_the_same_one_at_a_time(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccot_cli.models.base.adapters.MOST_MERGED_BYTES", 0)  # a layer that rests is never merged
    monkeypatch.setattr(theta, "_has_memory_of_its_own", lambda device: True)
    rested: list[bool] = []
    loaded = theta.load_theta

    def load(config: ModelConfig) -> Theta:
        found = loaded(config)
        rested.append(found.blocks.is_offloaded)
        return found

    for stage in (precompute, score):
        monkeypatch.setattr(stage, "load_theta", load)
    changes = {"train_phi.schedule": "layerwise"}
    whole, resting = make_run("whole", **changes), make_run("resting", **changes, **{"model.offload": True})
    for run in (whole, resting):
        run.precompute()
        run.score()
        run.train_phi()
    assert rested == [False] * 3 + [True] * 3
    for stage, key in (("precompute", None), ("score", "r0.10"), ("train-phi", "r0.10")):
        one, other = (run.workspace.require(stage, key) for run in (whole, resting))
        assert one.manifest.files == other.manifest.files
        assert one.fingerprint == other.fingerprint, "where layers rest is no part of the result"
    whole.train_psi()
    answered = []
    for run in (whole, Run(whole.workspace, resting.settings)):
        asker = Asker(run.workspace, run.settings, RATIO)
        answered.append(asker.answer(["Mia has 3 pens and buys 4 more. How many pens does she have?"])[0])
    assert answered[0].text == answered[1].text
    joint = Run(resting.workspace, override(resting.settings, {"train_phi.schedule": "joint"}))
    learned = Run(resting.workspace, override(resting.settings, {"score.selector": "learned"}))
    refused: list[Callable[[], object]] = [
        learned.score,
        joint.train_phi,
        resting.train_psi,
        lambda: resting.train_baseline("direct"),
        lambda: gold_ceiling(resting.workspace, resting.settings, RATIO, progress=Progress()),
    ]
    for train in refused:
        with pytest.raises(UsageError, match="all of θ's layers"):
            train()
    assert not any((resting.workspace.root / stage).exists() for stage in ("train-psi", "train-baseline"))


def test_queries_that_are_too_large_to_keep_are_run_anew(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, fresh = make_run("kept"), make_run("fresh")
    for run in (kept, fresh):
        run.precompute()
        run.score()
    kept.train_phi()
    kept.train_psi()
    monkeypatch.setattr(queries, "MOST_BYTES", 1)
    fresh.train_phi()
    fresh.train_psi()
    assert list(kept.workspace.cache.glob("queries-*"))
    assert not list(fresh.workspace.cache.glob("queries-*"))
    for stage in ("train-phi", "train-psi"):
        one, other = (tensors_of(run.workspace.folder(stage, "r0.10")) for run in (kept, fresh))
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(tensor, other[name], atol=5e-3, rtol=1e-2)


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


def test_phi_goes_on_from_the_phi_of_another_ratio(make_run: MakeRun) -> None:
    run, wider = make_run(), Decimal("0.2")
    run.precompute()
    for ratio in (RATIO, wider):
        score.run(run.workspace, run.settings, ratio, progress=Progress())
    run.train_phi()
    # A rate this small leaves it where it starts.
    changes = {"train_phi.start": "0.1", "train_phi.learning_rate": 1e-12}
    settings = override(run.settings, changes)
    train_phi.run(run.workspace, settings, wider, progress=Progress())
    before, after = (tensors_of(run.workspace.folder("train-phi", key)) for key in ("r0.10", "r0.20"))
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert run.workspace.state("train-phi", "r0.20", settings).name == "ready"
    # Another φ to start from makes what was started from it stale.
    run.train_phi()
    again = override(run.settings, {"train_phi.seed": 5})
    train_phi.run(run.workspace, again, RATIO, progress=Progress())
    assert run.workspace.state("train-phi", "r0.20", settings).name == "stale"


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
    score.run(run.workspace, run.settings, Decimal("0.2"), progress=Progress())
    with pytest.raises(UsageError, match="lora_rank 2, not 4"):
        train_phi.run(
            run.workspace, override(run.settings, {"train_phi.start": "r0.10"}), Decimal("0.2"), progress=Progress()
        )


@pytest.mark.parametrize("scorer", ["linear", "mlp"])
def test_the_learned_selector_gives_the_same_tokens_from_all_indices_or_one(make_run: MakeRun, scorer: str) -> None:
    changes = {"score.selector": "learned", "score.scorer": scorer, "score.scorer_steps": 3}
    thick, thin = make_run("thick", **changes), make_run("thin", **changes)
    thick.precompute()
    room = sum(path.stat().st_size for path in shard_paths(thick.workspace.folder("precompute"))) / 4 / 1e9
    thin.precompute(**{"precompute.max_disk": room})
    kept = [run.score().examples for run in (thick, thin)]
    assert kept[0] == kept[1]
    folders = [run.workspace.folder("score", "r0.10") for run in (thick, thin)]
    assert (folders[0] / "scorer.safetensors").exists()
    # The decoder beside the scorer has learned; the second pass, which the thin one needs, is of θ without it.
    assert same_tensors(*folders)


def test_one_learned_scorer_serves_all_ratios(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(**{"score.selector": "learned", "score.scorer_steps": 3})
    run.precompute()
    run.score()
    with monkeypatch.context() as patch:
        patch.setattr(ScorerTraining, "steps", lambda self: pytest.fail("trained again"))
        score.run(run.workspace, run.settings, Decimal("0.2"), progress=Progress())
    folders = [run.workspace.folder("score", key) for key in ("r0.10", "r0.20")]
    scorers = [load_file(folder / "scorer.safetensors") for folder in folders]
    assert all(torch.equal(each, scorers[1][name]) for name, each in scorers[0].items())
    longer = override(run.settings, {"score.scorer_steps": 4})
    score.run(run.workspace, longer, Decimal("0.3"), progress=Progress())
    other = load_file(run.workspace.folder("score", "r0.30") / "scorer.safetensors")
    assert not all(torch.equal(each, other[name]) for name, each in scorers[0].items())


def test_controls_and_baselines_have_rows_of_their_own(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    trained, again = run.train_baseline("pause"), run.train_baseline("pause")
    assert (trained.was_ready, again.was_ready) == (False, True)
    result = evaluate.run(run.workspace, run.settings, ratios=[RATIO], has_controls=True, progress=Progress())
    names = ["ccot", "ccot, zeroed", "ccot, shuffled", "ccot, noise", "ccot, untrained", "pause"]
    assert [row.method for row in result.rows] == names
    assert len({row.contemplation_tokens_mean for row in result.rows[:5]}) == 1
    assert result.rows[-1].contemplation_tokens_mean == trained.mean_tokens >= 2


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


def test_a_method_is_asked_for_by_its_name(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    for name in ("direct", "pause"):
        run.train_baseline(name)
    methods = find_methods(run.workspace, run.settings)
    assert methods.named("pause", RATIO).name == "pause"
    # Methods with a ratio of their own have it whatever is asked.
    assert [methods.named(name, RATIO).ratio for name in ("direct", "cot", "zero-shot")] == [0, 1, 1]
    with pytest.raises(MissingError, match="no icot"):
        methods.named("icot", RATIO)
    with pytest.raises(UsageError, match="no method"):
        methods.named("magic", RATIO)


def test_a_sweep_uses_what_is_ready_and_puts_the_rest_beside_it(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    own = run.train_psi()
    before = run.workspace.require("train-psi", "r0.10").fingerprint
    grid = {"selector": ["predictive", "even"], "seed": [0, 1]}
    rows = sweep.run(run.workspace, run.settings, [RATIO], grid, progress=Progress())
    assert run.workspace.require("train-psi", "r0.10").fingerprint == before
    keys = ["r0.10", "r0.10-even", "r0.10-even-s1", "r0.10-s1"]
    assert run.workspace.keys("train-psi") == run.workspace.keys("score") == keys
    assert [(row.selector, row.seeds, len(row.accuracies)) for row in rows] == [
        ("predictive", [0, 1], 2),
        ("even", [0, 1], 2),
    ]
    assert rows[0].accuracies[0] == own.validation_accuracy
    assert all(row.low <= row.accuracy <= row.high for row in rows)
    # Each cell has its own tokens, its own φ and its own seed.
    fingerprints = {run.workspace.require("train-phi", key).fingerprint for key in keys}
    assert len(fingerprints) == 4
    every = [path for path in run.workspace.root.rglob("*") if path.is_file() and path.name != ".lock"]
    times = {path: path.stat().st_mtime_ns for path in every}
    assert sweep.run(run.workspace, run.settings, [RATIO], grid, progress=Progress()) == rows
    assert {path: path.stat().st_mtime_ns for path in every} == times
    # What matters to ψ alone is no reason for another φ.
    sweep.run(run.workspace, run.settings, [RATIO], {"unfreeze": ["none"]}, progress=Progress())
    assert run.workspace.keys("train-psi") == [*keys, "r0.10-unfreeze-none"]
    assert run.workspace.keys("train-phi") == run.workspace.keys("score") == keys
    # The variants are no methods of the workspace.
    assert find_methods(run.workspace, run.settings).ratios == [RATIO, Decimal(1)]
    assert {run.workspace.state("train-psi", key, run.settings).name for key in keys} == {"ready"}


def test_all_training_shares_the_kept_queries(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    told = Told()
    run.train_phi(told)
    kept = sorted(run.workspace.cache.iterdir())
    assert [path.suffix for path in kept] == [".bin", ".bin"]  # training problems and validation's
    assert sum("queries" in label for label in told.labels) == 2
    made = {path: path.stat().st_mtime_ns for path in kept}
    told = Told()
    first = run.train_psi(told)
    assert not any("queries" in label for label in told.labels)
    # Deleted, it is made again, and nothing else changes; what is no whole file is not read.
    kept[0].unlink()
    with kept[1].open("ab") as file:
        file.write(b"xx")
    weights = load_file(run.workspace.folder("train-psi", "r0.10") / "psi" / "adapter_model.safetensors")
    shutil.rmtree(run.workspace.folder("train-psi", "r0.10"))
    assert run.train_psi() == first
    again = load_file(run.workspace.folder("train-psi", "r0.10") / "psi" / "adapter_model.safetensors")
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    # What was kept for other problems goes when new ones come.
    run.precompute(**{"data.seed": 1})
    run.score()
    run.train_phi()
    assert len(list(run.workspace.cache.iterdir())) == 2
    assert not made.keys() & set(run.workspace.cache.iterdir())


def test_a_sweep_compares_methods_on_test_problems(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    methods, grid = ["ccot", "direct", "pause", "gold"], {"seed": [0, 1], "layer": [1, 2]}
    rows = sweep.run(run.workspace, run.settings, [RATIO], grid, methods=methods, num_test=6, progress=Progress())
    # A baseline has no l; one with a ratio of its own comes at that.
    assert [(row.method, row.ratio, row.layer) for row in rows] == [
        ("ccot", 0.1, 1),
        ("ccot", 0.1, 2),
        ("direct", 0.0, 2),
        ("pause", 0.1, 2),
        ("gold", 0.1, 2),
    ]
    assert all((row.n, row.split, row.seeds, len(row.accuracies)) == (6, "test", [0, 1], 2) for row in rows)
    assert all(row.seconds is not None and row.seconds > 0 for row in rows)
    assert len({row.num_steps for row in rows}) == 1
    assert [row.numbers_read is None for row in rows] == [False, False, True, True, True]
    keys = ["direct", "direct-s1", "gold-r0.10", "gold-r0.10-s1", "pause-r0.10", "pause-r0.10-s1"]
    assert run.workspace.keys("train-baseline") == keys
    # What a row says is what eval says of the same method; a variant is no method of the workspace.
    result = evaluate.run(run.workspace, override(run.settings, {"eval.limit": 6}), progress=Progress())
    own = {row.method: row for row in result.rows}
    assert own.keys() == {"ccot", "direct", "pause", "gold", "cot"}
    assert all(own[row.method].accuracy == row.accuracies[0] for row in rows if row.method != "ccot")
    grid = {"selector": ["even"]}
    other = sweep.run(run.workspace, run.settings, [RATIO], grid, methods=["gold", "direct"], progress=Progress())
    assert [(row.method, row.selector) for row in other] == [("gold", "even"), ("direct", "predictive")]
    more = sweep.run(run.workspace, run.settings, [RATIO], {"epochs": [3]}, methods=["direct"], progress=Progress())
    assert [(row.epochs, row.split, row.seconds) for row in more] == [(3, "validation", None)]
    assert more[0].num_steps == 3 * rows[2].num_steps // rows[2].epochs
    assert "direct-e3" in run.workspace.keys("train-baseline")


def test_intervals_are_over_problems_and_over_seeds_where_there_are_several() -> None:
    assert sweep.interval([0.8], 10) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    # Mean 0.5, standard deviation 0.1, three seeds: 0.5 ± 4.303 * 0.1 / sqrt(3), the problems being very many.
    found = sweep.interval([0.4, 0.5, 0.6], 10**8)
    assert found == (pytest.approx(0.2516, abs=1e-3), pytest.approx(0.7484, abs=1e-3))
    # Wilson's half of 5 in 10 is 0.2634: 0.5 ± hypot(0.2484, 0.2634).
    found = sweep.interval([0.4, 0.5, 0.6], 10)
    assert found == (pytest.approx(0.1379, abs=1e-3), pytest.approx(0.8621, abs=1e-3))
    # Seeds that agree answered the same problems.
    assert sweep.interval([1.0, 1.0, 1.0], 100) == (pytest.approx(0.9630, abs=1e-4), 1.0)
    assert sweep.interval([0.85, 0.85], 200) == pytest.approx(sweep.interval([0.85], 200))
    # Of the table, and of the expansion beyond it.
    quantiles = {1: 12.706, 9: 2.262, 10: 2.228, 15: 2.131, 30: 2.042, 120: 1.980}
    assert {freedom: sweep.student(freedom) for freedom in quantiles} == pytest.approx(quantiles, abs=1e-3)


def test_a_sweep_has_one_seed_for_all_stages(make_run: MakeRun) -> None:
    run = make_run(**{"train_psi.seed": 5})
    with pytest.raises(UsageError, match=r"train_psi\.seed differ"):
        sweep.run(run.workspace, run.settings, [RATIO], {"seed": [0, 5]}, progress=Progress())


def test_variants_alone_are_compared_on_test_problems_too(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    rows = sweep.run(run.workspace, run.settings, [RATIO], {"seed": [1]}, num_test=3, progress=Progress())
    assert [(row.method, row.seeds, row.split, row.n) for row in rows] == [("ccot", [1], "test", 3)]


def test_the_gold_ceiling_is_measured_on_validation_and_nothing_is_kept(make_run: MakeRun) -> None:
    run = make_run(**{"score.ceiling_steps": 4})
    run.precompute()
    run.score()
    before = sorted(run.workspace.root.rglob("*"))
    ceiling = gold_ceiling(run.workspace, run.settings, RATIO, progress=Progress())
    assert ceiling.num_steps == 6
    assert ceiling.share.n == 6
    assert sorted(run.workspace.root.rglob("*")) == before


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
    key = train_baseline.key_of(name, RATIO)
    one, other = (run.workspace.require("train-baseline", key) for run in (whole, halted))
    assert one.manifest.files == other.manifest.files


class Signalling(Progress):
    """Sends a signal during the n-th step of a task."""

    def __init__(self, number: signal.Signals, at: int) -> None:
        self.number, self.left = number, at
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        def advance(count: int = 1, **figures: str) -> None:
            if label.startswith("ψ"):
                self.left -= 1
                if not self.left:
                    signal.raise_signal(self.number)

        yield advance


def test_a_stop_waits_for_the_end_of_a_step_and_loses_none(
    make_run: MakeRun, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, halted = make_run("whole"), make_run("halted")
    for run in (whole, halted):
        run.precompute()
        run.score()
        run.train_phi()
    whole.train_psi()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            halted.train_psi(progress=Signalling(signal.SIGINT, at=3))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err.endswith("stopping after this step; once more to leave at once\n")
    rest = Signalling(signal.SIGINT, at=0)
    halted.train_psi(progress=rest)
    assert "resumed after step 3" in rest.said
    one, other = (run.workspace.require("train-psi", "r0.10") for run in (whole, halted))
    assert one.manifest.files == other.manifest.files


@pytest.mark.parametrize(("ends", "unfreeze"), [("late", "above"), ("exact", "above"), ("exact", "all")])
def test_rollouts_end_at_k_or_later_where_end_might_miss_it(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, ends: str, unfreeze: str
) -> None:
    made: list[PsiTraining] = []

    class Watched(PsiTraining):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(train_psi, "PsiTraining", Watched)
    run = make_run(**{"train_psi.ends": ends, "train_psi.unfreeze": unfreeze, "train_psi.epochs": 3})
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    lengths = [len(problem.chain) for problem in stored_problems(run, is_validation=False)]
    counts = [num_kept(RATIO, length) for length in lengths]
    lessons = [[example.num_tokens for example in made[0]._lessons(epoch)] for epoch in range(3)]
    context = made[0].context
    if (ends, unfreeze) == ("late", "above"):
        assert isinstance(context, RolloutContext)
        longest = [min(count + MOST_EXTRA, length) for count, length in zip(counts, lengths, strict=True)]
        assert [len(rollout) for rollout in context.rollouts] == longest
        assert all(
            k <= count <= most for epoch in lessons for k, count, most in zip(counts, epoch, longest, strict=True)
        )
        # An END of random states misses some, in every epoch others.
        assert len({tuple(epoch) for epoch in lessons}) > 1
        assert all([each.num_before_end for each in made[0]._lessons(epoch)] == counts for epoch in range(3))
    else:
        assert lessons == [counts] * 3


def test_end_is_fitted_on_all_tokens_of_psis_rollouts_of_which_the_kth_is_the_last(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watched(last_MD: torch.Tensor, is_last_M: torch.Tensor) -> Logistic:
        fitted.append((last_MD, is_last_M))
        return fit_logistic(last_MD, is_last_M)

    hinted: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []

    def watched_hint(rule: Logistic, lower: list[torch.Tensor], last: list[torch.Tensor]) -> End:
        hinted.append((lower, last))
        return fit_end(rule, lower, last)

    drafted: list[tuple[torch.Tensor, ...]] = []

    def watched_draft(*shown: torch.Tensor, validation: tuple[torch.Tensor, torch.Tensor]) -> Draft:
        drafted.extend([shown, validation])
        return fit_draft(*shown, validation=validation)

    monkeypatch.setattr(train_psi, "fit_logistic", watched)
    monkeypatch.setattr(train_psi, "fit_end", watched_hint)
    monkeypatch.setattr(train_psi, "fit_draft", watched_draft)
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    result = run.train_psi()
    theta = load_theta(run.settings.model)
    adapters = Adapters(theta)
    adapters.load(PHI, run.workspace.folder("train-psi", "r0.10") / PHI)
    fed, states, labels, firsts = [], [], [], []
    with torch.no_grad():
        for problem in stored_problems(run, is_validation=False):
            firsts.append(problem.answer[0])
            count = num_kept(RATIO, len(problem.chain))
            sequence, first_BD = encode_query(adapters, [problem.query], layer=2)
            made = contemplate(
                adapters, sequence, first_BD, layer=2, max_tokens=count, num_tokens_B=torch.tensor([count])
            )
            fed.append(made.inputs_BKD[0])
            states.append(made.last_BKD[0])
            labels += [*[False] * (count - 1), True]
    [(last_MD, is_last_M)] = fitted
    assert is_last_M.tolist() == labels
    # The kept queries are rounded.
    scale = float(last_MD.abs().mean())
    torch.testing.assert_close(last_MD, torch.cat(states), atol=0.1 * scale, rtol=0.05)
    [(lower, last)] = hinted
    assert torch.equal(torch.cat(last), last_MD)
    scale = float(torch.cat(fed).abs().mean())
    for low, inputs in zip(lower, fed, strict=True):
        torch.testing.assert_close(low[:-1], inputs[1:], atol=0.1 * scale, rtol=0.05)
    (final_MD, first_M), (held_MD, held_M) = drafted
    assert torch.equal(final_MD, last_MD[is_last_M])
    assert first_M.tolist() == firsts
    config = theta.model.config
    saved = Draft.load(run.workspace.folder("train-psi", "r0.10"), config.hidden_size, config.vocab_size)
    again = fit_draft(final_MD, first_M, validation=(held_MD, held_M))
    assert torch.equal(saved(final_MD), again(final_MD))
    held = [problem.answer[0] for problem in stored_problems(run, is_validation=True)]
    assert held_M.tolist() == held
    assert result.draft == pytest.approx(float((saved(held_MD) == held_M).float().mean()))
    assert result.end["true_ends"] + result.end["missed_ends"] == 6


@pytest.mark.parametrize(("ends", "expected"), [("late", 2.0), ("exact", 0.0)])
def test_end_is_as_sure_as_validates_best_where_it_may_be_late(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, ends: str, expected: float
) -> None:
    asked: list[End] = []
    # All together choose the third, as the first of two; its problems 0, 2 and 4 would have chosen the last.
    right = iter([[False] * 6, [True] + [False] * 5, [True, True, False, True, False, False], [True, False] * 3])

    def measure(reasoner: CcotMethod, problems: object, batch_size: int, progress: object) -> tuple[list[bool], float]:
        asked.append(reasoner.end)
        return next(right), float(len(asked))

    hinted: list[list[torch.Tensor]] = []

    def watched(rule: Logistic, lower: list[torch.Tensor], last: list[torch.Tensor]) -> End:
        hinted.append(last)
        return fit_end(rule, lower, last)

    drafted: list[torch.Tensor] = []

    def watched_draft(final_MD: torch.Tensor, first_M: torch.Tensor, validation: Any) -> Draft:
        drafted.append(final_MD)
        return fit_draft(final_MD, first_M, validation=validation)

    monkeypatch.setattr(train_psi, "marks_of", measure)
    monkeypatch.setattr(train_psi, "fit_end", watched)
    monkeypatch.setattr(train_psi, "fit_draft", watched_draft)
    run = make_run(**{"train_psi.ends": ends, "train_psi.epochs": 1})
    run.precompute()
    run.score()
    run.train_phi()
    result = run.train_psi()
    lengths = [len(problem.chain) for problem in stored_problems(run, is_validation=False)]
    counts = [num_kept(RATIO, length) for length in lengths]
    late = [min(count + MOST_EXTRA, length) for count, length in zip(counts, lengths, strict=True)]
    assert [[len(each) for each in last] for last in hinted] == [late if ends == "late" else counts] * len(asked)
    kth = [each[count - 1] for each, count in zip(hinted[0], counts, strict=True)]
    assert torch.equal(drafted[0], torch.stack(kth))
    stricter_by = [round(float(asked[0].rule.bias - each.rule.bias), 4) for each in asked]
    assert stricter_by == ([0, 1, 2, 3] if ends == "late" else [0])
    chosen = asked[2 if ends == "late" else 0]
    assert (result.sureness, result.validation_accuracy) == (expected, pytest.approx(1 / 6 if ends == "late" else 0))
    assert result.mean_tokens == (3.0 if ends == "late" else 1.0)
    saved = End.load(run.workspace.folder("train-psi", "r0.10"), chosen.rule.weight_D.shape[0])
    for mine, theirs in ((saved.rule, chosen.rule), (saved.hint, chosen.hint)):
        assert torch.equal(mine.weight_D, theirs.weight_D)
        assert torch.equal(mine.bias, theirs.bias)


@pytest.mark.parametrize(
    ("schedule", "unfreeze", "ends"),
    [
        ("joint", "above", "late"),
        ("joint", "all", "exact"),
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


def test_a_layer_whose_checkpoint_was_not_written_is_trained(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halted = (make_run(name, **{"train_phi.schedule": "layerwise"}) for name in ("whole", "halted"))
    for run in (whole, halted):
        run.precompute()
        run.score()
    whole.train_phi()
    calls, save = [], train_phi.save_file

    def fail_once(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt  # the log tells of two layers then, the checkpoint of one
        save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(train_phi, "save_file", fail_once)
    with pytest.raises(KeyboardInterrupt):
        halted.train_phi()
    halted.train_phi()
    one, other = (run.workspace.require("train-phi", "r0.10") for run in (whole, halted))
    assert one.manifest.files == other.manifest.files


def test_problems_may_hold_whatever_else_ends_a_line(make_run: MakeRun, tmp_path: Path) -> None:
    # GSM8K has such a question.
    rows = [
        {"question": f"Mia\u2028has\u2029{n}\x85pens\x1c?", "answer": f"{n} + 1 =\u2028{n + 1}\n#### {n + 1}"}
        for n in range(30)
    ]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    run = make_run(**{"data.source": str(tmp_path / "odd.jsonl")})
    run.precompute()
    items = precompute.read_problems(run.workspace.require("precompute"))
    assert {item.problem.question for item in items} <= {str(row["question"]) for row in rows}
    assert {item.problem.num_steps for item in items} == {1}
    run.score()


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


@pytest.mark.parametrize("stage", ["precompute", "score"])
def test_a_lost_shard_is_no_smaller_data_set(make_run: MakeRun, stage: str) -> None:
    run = make_run(**{"precompute.shard_megabytes": 1, "data.limit": 120})
    run.precompute()
    run.score()
    shards = shard_paths(run.workspace.folder(stage, None if stage == "precompute" else "r0.10"))
    assert stage == "score" or len(shards) > 1
    shards[0].unlink()
    after = run.score if stage == "precompute" else run.train_phi
    if stage == "precompute":
        shutil.rmtree(run.workspace.folder("score", "r0.10"))
    with pytest.raises(CorruptError, match="lacks a file") as caught:
        after()
    assert f"ccot {stage}" in caught.value.fix


def test_an_interrupted_precompute_that_goes_on_with_less_room_has_one_width(make_run: MakeRun) -> None:
    run = make_run(**{"precompute.shard_megabytes": 1, "data.limit": 120})
    with pytest.raises(KeyboardInterrupt):
        run.precompute(Stopping("hidden states", 90))
    folder = run.workspace.folder("precompute")
    assert {load_file(path)["states"].shape[1] for path in shard_paths(folder)} == {5}
    made = run.precompute(**{"precompute.max_disk": 0.001})
    assert not made.is_every_index
    assert {load_file(path)["states"].shape[1] for path in shard_paths(folder)} == {1}
    assert sorted(record.number for record in read_records(folder)) == list(range(126))


def test_a_stage_without_its_forerunner_says_which_command_comes_first(make_run: MakeRun) -> None:
    run = make_run()
    for stage, first in ((run.score, "precompute"), (run.train_phi, "score"), (run.train_psi, "precompute")):
        with pytest.raises(MissingError) as caught:
            stage()
        assert f"ccot {first}" in caught.value.fix
    with pytest.raises(MissingError):
        find_methods(run.workspace, run.settings)


def test_a_ratio_that_was_not_trained_names_those_that_were(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    with pytest.raises(MissingError, match=r"0\.37 .*trained: 0, 1") as caught:
        Asker(run.workspace, run.settings, Decimal("0.37"))
    assert "--ratio 0" in caught.value.fix


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


def test_a_method_that_is_damaged_is_missed_aloud(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    run.train_baseline("direct")
    run.train_baseline("pause")
    for name in ("train-psi/r0.10/end.safetensors", "train-baseline/pause-r0.10/pause.safetensors"):
        (run.workspace.root / name).unlink()
    told = Told()
    result = evaluate.run(run.workspace, run.settings, progress=told)
    assert [row.method for row in result.rows] == ["direct", "cot"]
    assert [line for line in told.said if "train-psi/r0.10" in line and "lacks a file" in line]
    assert [line for line in told.said if "pause-r0.10" in line and "ccot train-baseline pause --ratio 0.1" in line]
    # Asked for, each says what is wrong with it.
    with pytest.raises(CorruptError, match=r"train-psi/r0\.10"):
        evaluate.run(run.workspace, run.settings, ratios=[RATIO], progress=Progress())
    with pytest.raises(CorruptError, match=r"pause-r0\.10"):
        evaluate.run(run.workspace, run.settings, names=["pause"], progress=Progress())
    with pytest.raises(CorruptError, match=r"train-psi/r0\.10"):
        Asker(run.workspace, run.settings, RATIO)


def test_later_stages_use_the_model_that_precompute_ran(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    # The settings file still names the embedded model, as after `ccot precompute --model FOLDER`.
    result = score.run(run.workspace, run.workspace.settings, RATIO, progress=Progress())
    assert result.num_problems == 26


def test_a_model_that_changed_under_its_name_is_refused(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    weights = Path(run.settings.model.name) / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"] += 1
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(CorruptError, match="has changed since"):
        run.score()


def test_a_base_model_with_broken_weights_is_refused(make_run: MakeRun) -> None:
    run = make_run()
    weights = Path(run.settings.model.name) / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(CorruptError, match="not finite"):
        run.precompute()


def test_states_that_are_not_finite_are_not_stored() -> None:
    problem = EncodedProblem("1", query=[1, 2], chain=[3], answer=[4])
    states = torch.zeros(2, 5, 8)
    assert len(precompute.make_record(0, problem, states).states_JID) == 2
    states[1, 2, 3] = float("inf")
    with pytest.raises(DivergedError, match="not finite"):
        precompute.make_record(0, problem, states)


def test_the_plan_writes_nothing(make_run: MakeRun) -> None:
    run = make_run()
    plan = precompute.run(run.workspace, run.settings, dry_run=True, progress=Progress())
    assert not run.workspace.folder("precompute").exists()
    made = run.precompute()
    states = sum(record.states_JID.nbytes for record in read_records(run.workspace.folder("precompute")))
    assert plan.num_bytes == made.num_bytes == states


def test_what_does_not_fit_the_disk_is_refused_before_it_starts(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    monkeypatch.setattr(files, "free_bytes", lambda path: 1000)
    with pytest.raises(ResourceError, match=r"this needs about 642 kB, and 1\.0 kB are free") as caught:
        run.precompute()
    assert "--max-disk" in caught.value.fix
    assert not run.workspace.folder("precompute").exists()
    with pytest.raises(ResourceError, match="even one hidden-state index"):
        run.precompute(**{"precompute.max_disk": 1e-9})


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


@pytest.mark.parametrize("question", ["", "  \n ", "pens " * 2000])
def test_an_empty_or_endless_question_is_refused(make_run: MakeRun, question: str) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    with pytest.raises(UsageError):
        Asker(run.workspace, run.settings, Decimal(0)).check(question)


def test_torch_s_own_word_for_too_little_memory_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes differ"))


def test_a_container_s_memory_counts_and_not_the_machine_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LIMITS", (tmp_path / "memory.max", tmp_path / "not there"))
    (tmp_path / "memory.max").write_text("max\n")
    assert fits(1000, torch.device("cpu"))
    (tmp_path / "memory.max").write_text("1000\n")
    assert fits(500, torch.device("cpu"))
    assert not fits(501, torch.device("cpu"))


@pytest.mark.parametrize(
    "fault", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: not enough memory")]
)
def test_where_memory_is_short_batches_are_halved_and_answers_stay(
    monkeypatch: pytest.MonkeyPatch, fault: RuntimeError
) -> None:
    reasoner = find_methods(None, Settings()).load(Decimal(0))
    questions = ["Mia buys 2 more pens. " * number + "How many pens does Mia have?" for number in range(7)]
    expected, _ = reasoner.reply(questions)
    sizes, whole = [], type(reasoner).reply

    def reply(self: Method, batch: list[str]) -> tuple[list[Reply], Seconds]:
        sizes.append(len(batch))
        if len(batch) > room:
            raise fault
        return whole(self, batch)

    monkeypatch.setattr(type(reasoner), "reply", reply)
    room = 2
    found, seconds = reply_in_parts(reasoner, questions)
    assert found == expected
    assert len({reply.answer for reply in found}) > 1
    assert sizes == [7, 3, 1, 2, 4, 2, 2]
    assert seconds.total > 0
    room = 0
    with pytest.raises(ResourceError, match="single question"):
        reply_in_parts(reasoner, questions)
    monkeypatch.setattr(type(reasoner), "reply", lambda self, batch: (_ for _ in ()).throw(RuntimeError("another")))
    with pytest.raises(RuntimeError, match="another"):
        reply_in_parts(reasoner, questions)


def test_where_memory_is_short_hidden_states_come_from_smaller_batches(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch
) -> None:
    theta, run = make_theta("llama"), gold._run
    told = [Problem("", "Mia has 3 pens. " * count, "3 + 4 = 7", "7") for count in range(1, 6)]
    problems = [theta.encoder.problem(each) for each in told]
    options = {"indices": range(theta.num_layers + 1), "batch_tokens": 4096, "dtype": torch.float32}
    expected = dict(gold.gold_states(theta, problems, **options))  # type: ignore[arg-type]
    sizes = []

    def short(theta: Theta, part: list[EncodedProblem], **options: object) -> list[torch.Tensor]:
        sizes.append(len(part))
        if len(part) > 2:
            raise MemoryError
        return run(theta, part, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(gold, "_run", short)
    found = dict(gold.gold_states(theta, problems, **options))  # type: ignore[arg-type]
    assert sizes == [5, 2, 3, 1, 2]
    assert found.keys() == expected.keys()
    for number, states in expected.items():
        torch.testing.assert_close(found[number], states, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K's training file is not here")
def test_real_problems_pass_through_precompute_and_score(make_run: MakeRun) -> None:
    run = make_run(**{"data.source": str(GSM8K), "data.limit": 24})
    assert run.precompute().num_train == 24
    result = run.score()
    assert result.num_problems > 24
    assert not any("<<" in example for example in result.examples)


def test_wilson_intervals_are_those_of_the_textbook() -> None:
    share = evaluate.wilson(8, 10)
    assert (share.low, share.high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert evaluate.wilson(0, 10).low == 0
    assert evaluate.wilson(10, 10).high == pytest.approx(1)


def test_evaluation_asks_for_the_lock_first_and_leaves_nothing_when_stopped(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")

    def measured(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "measure", measured)
    other = Workspace.open(run.workspace.root)
    with other.building("score", "r0.50", config={}, inputs={}), pytest.raises(BusyError):
        evaluate.run(other, run.settings, progress=Progress())
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(other, run.settings, progress=Progress())
    assert not list((run.workspace.root / "eval").glob("*"))


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("You are trying to access a gated repo.\nMake sure to have access", "hf auth login"),
        ("401 Client Error: Unauthorized", "hf auth login"),
        ("We couldn't connect to the Hub", "hf download some/model"),
    ],
)
def test_a_model_that_cannot_be_had_says_how(monkeypatch: pytest.MonkeyPatch, said: str, fix: str) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise OSError(said)

    monkeypatch.setattr(theta.AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(ResourceError) as caught:
        load_theta(ModelConfig(name="some/model"))
    assert fix in caught.value.fix


def test_a_model_that_does_not_fit_the_device_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(model: nn.Module, device: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(nn.Module, "to", full)
    monkeypatch.setattr(theta.PreTrainedModel, "to", full)
    with pytest.raises(ResourceError, match=r"embedded needs 0\.0 GB, more than is free on cpu"):
        load_theta(ModelConfig())


@pytest.mark.parametrize(
    "change", [{"rms_norm_eps": 0.1}, {"rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}]
)
def test_settings_that_no_weight_shows_make_another_model(make_run: MakeRun, change: dict[str, object]) -> None:
    run = make_run()
    before = run.precompute() and load_theta(run.settings.model).fingerprint()
    described = Path(run.settings.model.name) / "config.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), **change}))
    assert load_theta(run.settings.model).fingerprint() != before
    with pytest.raises(CorruptError, match="has changed since"):
        run.score()


def test_test_questions_that_are_too_long_are_left_out(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(family="gpt2", **{"data.test_source": str(tmp_path / "test.jsonl")})
    run.precompute()
    run.train_baseline("direct")

    def write(*counts: int) -> None:
        questions = [f"{number} pens? " * count for number, count in enumerate(counts)]
        lines = [json.dumps({"question": question, "answer": "3 + 4 = 7\n#### 7"}) for question in questions]
        (tmp_path / "test.jsonl").write_text("\n".join(lines))

    write(3, 900, 2)
    told = Told()
    result = evaluate.run(run.workspace, run.settings, names=("direct",), progress=told)
    assert [row.n for row in result.rows] == [2]
    assert "1 questions have more than 256 tokens: left out" in told.said
    write(900)
    with pytest.raises(UsageError, match="no question is short enough"):
        evaluate.run(run.workspace, run.settings, names=("direct",), progress=told)


def test_a_folder_that_is_no_model_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no model") as caught:
        load_theta(ModelConfig(name=str(tmp_path / "empty")))
    assert "hf download" not in caught.value.fix
    with pytest.raises(UsageError, match=r"there is no folder \./nowhere"):
        load_theta(ModelConfig(name="./nowhere"))


def test_a_model_that_was_moved_is_found_where_it_is_now(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    run.precompute()
    moved = tmp_path / "elsewhere" / "llama"
    moved.parent.mkdir()
    Path(run.settings.model.name).rename(moved)
    there = Run(run.workspace, override(run.settings, {"model.name": str(moved)}))
    assert there.workspace.state("precompute", settings=there.settings).reason.count("model.name") == 0
    assert there.precompute().was_ready
    assert there.score().mean_kept > 0
    with pytest.raises(UsageError, match="there is no folder"):
        run.train_phi()


def test_problems_that_are_all_too_long_to_validate_on_are_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(family="gpt2", **{"data.source": str(tmp_path / "data.jsonl")})

    def write(is_long: Callable[[str], bool]) -> None:
        rows = [
            (f"How many are {number} pens?", "3 + 4 = 7\n" * (200 if is_long(f"{number}") else 1))
            for number in range(20)
        ]
        lines = [json.dumps({"question": question, "answer": f"{chain}#### 7"}) for question, chain in rows]
        (tmp_path / "data.jsonl").write_text("\n".join(lines))

    write(lambda number: False)
    run.precompute()
    held_out = {
        item.problem.question.split()[3]
        for item in precompute.read_problems(run.workspace.require("precompute"))
        if item.is_validation
    }
    write(lambda number: number in held_out)
    with pytest.raises(UsageError, match="no validation problem is left"):
        run.precompute()
    write(lambda number: number not in held_out)
    with pytest.raises(UsageError, match="no training problem is left"):
        run.precompute()


def test_on_a_gpu_float16_becomes_bfloat16(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    folder = Path(run.settings.model.name)
    load_theta(run.settings.model).model.half().save_pretrained(folder)
    on_cpu = {
        dtype: load_theta(run.settings.model.model_copy(update={"dtype": dtype})) for dtype in ("bfloat16", "float32")
    }
    assert len({each.fingerprint() for each in on_cpu.values()}) == 1, "a model is the same on a GPU and on a CPU"
    monkeypatch.setattr(Blocks, "verify", lambda self: None)
    monkeypatch.setattr(theta, "resolve_device", torch.device)
    for asked, found in (("auto", torch.bfloat16), ("float16", torch.float16), ("float32", torch.float32)):
        loaded = load_theta(run.settings.model.model_copy(update={"device": "meta", "dtype": asked}))
        assert loaded.dtype == found
        assert loaded.blocks.rotary.inv_freq.dtype == torch.float32


# On another device

FEW = {
    "data.limit": 8,
    "data.validation_limit": 3,
    "eval.limit": 2,
    "train_phi.batch_size": 4,
    "score.scorer_steps": 3,
    "score.ceiling_steps": 2,
}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"score.selector": "learned", "train_phi.schedule": "layerwise", "train_psi.unfreeze": "none"}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("llama", {"train_psi.unfreeze": "above"}),
                (
                    "gpt2",
                    {"train_psi.unfreeze": "all", "train_phi.through_rollout": True, "train_phi.optimiser": "muon"},
                ),
                ("qwen3", {"score.selector": "learned", "score.scorer": "mlp", "train_psi.ends": "late"}),
            )
        ),
    ],
)
def test_every_stage_does_beside_the_cpu_what_it_does_on_it(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, family: str, changes: dict[str, object]
) -> None:
    losses = []
    for name in ("here", "there"):
        monkeypatch.setattr(draft, "LEAST_CHANCE", 0.0)
        run = make_run(name, family, **FEW, **changes)
        with nullcontext("cpu") if name == "here" else pretended(monkeypatch) as device:
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
def test_every_method_and_control_works_beside_the_cpu(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "LEAST_CHANCE", 0.0)
    with pretended(monkeypatch) as device:
        run = make_run("run", **FEW, **{"model.device": device, "model.dtype": "bfloat16", "train_psi.epochs": 3})
        run.precompute()
        run.score()
        run.train_phi()
        run.train_psi()
        for name in RECIPES:
            assert isfinite(run.train_baseline(cast(BaselineName, name)).train_loss)
        names = ("ccot", *RECIPES, "zero-shot")
        result = evaluate.run(run.workspace, run.settings, names=names, has_controls=True, progress=Progress())
        assert len(result.rows) == len(names) + 4
        assert gold_ceiling(run.workspace, run.settings, RATIO, progress=Progress()).num_steps


def test_an_interrupted_training_goes_on_beside_the_cpu(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(monkeypatch) as device:
        run = make_run("run", **FEW, **{"model.device": device, "train_phi.checkpoint_steps": 1})
        run.precompute()
        run.score()
        with pytest.raises(KeyboardInterrupt):
            run.train_phi(Stopping("φ", 2))
        rest = Told()
        run.train_phi(rest)
        assert min(left for label, left in rest.left.items() if label.startswith("φ")) == 2
