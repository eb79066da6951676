"""Stages on two ranks write what one process writes."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
import torch
from ranks_running import on_ranks

from ccot_cli import ranks
from ccot_cli.errors import BusyError
from ccot_cli.models.training.loop import LOG_FILE, read_lines
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import evaluate, precompute, score, train_baseline, train_phi
from ccot_cli.workspace.lock import lock
from stages.runs import MakeRun, Run, Told, tensors_of

SEVERAL_SHARDS = {"precompute.shard_megabytes": 1, "data.limit": 240}


def content(folder: Path) -> dict[str, bytes]:
    """The files of an artifact but its manifest, which names the time and the ranks."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".json"}


def train_baseline_of(run: Run, method: str) -> train_baseline.TrainBaselineResult:
    return train_baseline.run(run.workspace, run.settings, method, Decimal(0), progress=Progress())


def evaluated(run: Run) -> evaluate.EvalResult:
    settings = override(run.settings, {"eval.batch_size": 2})
    return evaluate.run(run.workspace, settings, names=["ccot", "direct"], has_controls=True, progress=Progress())


@pytest.mark.slow
@pytest.mark.usefixtures("muon_in_float32")
def test_every_stage_comes_to_what_one_process_comes_to(make_run: MakeRun) -> None:
    small = {**SEVERAL_SHARDS, "data.limit": 120}
    alone, together = make_run("alone", **small), make_run("together", **small)

    def states(run: Run) -> tuple[int, float]:
        return run.precompute().num_shards, run.score().mean_kept

    assert on_ranks(2, lambda: states(together)) == [states(alone)] * 2
    for name in ("precompute", "score/r0.10"):
        one, other = content(alone.workspace.root / name), content(together.workspace.root / name)
        assert one == other
        assert len(one) >= 2
    assert alone.workspace.require("precompute").fingerprint == together.workspace.require("precompute").fingerprint

    def training(run: Run) -> tuple[float, float, float]:
        return (
            run.train_phi().report["losses"][0],
            run.train_psi().train_loss,
            train_baseline_of(run, "direct").train_loss,
        )

    losses = training(alone)
    assert on_ranks(2, lambda: training(together)) == [pytest.approx(losses, rel=1e-3)] * 2
    for name in ("train-phi/r0.10", "train-psi/r0.10", "train-baseline/direct"):
        one, other = (read_lines(run.workspace.root / name / LOG_FILE) for run in (alone, together))
        assert [line["loss"] for line in other] == pytest.approx([line["loss"] for line in one], rel=1e-3)
        manifest = json.loads((together.workspace.root / name / "manifest.json").read_text())
        assert manifest["ranks"] == 2

    # The same weights: what differs is only the ranks that ask the questions.
    asked = evaluated(together)
    first, second = on_ranks(2, lambda: evaluated(together))
    assert replace(second, folder=first.folder) == first
    assert first.folder != asked.folder
    assert [replace_times(row) for row in first.rows] == [replace_times(row) for row in asked.rows]
    assert first.pairs == asked.pairs
    said, said_alone = (Path(str(each.folder)) / "predictions.jsonl" for each in (first, asked))
    assert said.read_bytes() == said_alone.read_bytes()
    assert len(said.read_text().splitlines()) == 6 * len(first.rows)


def replace_times(row: evaluate.EvalRow) -> evaluate.EvalRow:
    times = {name: 0.0 for name in vars(row) if "seconds" in name}
    return replace(row, **times)


class SlowSecond(Told):
    """On the second rank, every problem takes a while."""

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        with super().task(label, total=total, unit=unit, done=done):
            yield lambda count=1, **figures: time.sleep(0.03 * ranks.rank())


class Interrupted(Progress):
    """On the first rank, Ctrl-C once another rank has written its shard."""

    def __init__(self, shard: Path) -> None:
        self.shard = shard

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        def advance(count: int = 1, **figures: str) -> None:
            until = time.monotonic() + 60
            while not self.shard.exists() and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.1)  # Its hash is written down after it.
            raise KeyboardInterrupt

        yield advance if ranks.rank() == 0 and label.startswith("hidden states") else lambda count=1, **figures: None


def test_what_every_rank_has_written_serves_an_interrupted_precompute(make_run: MakeRun) -> None:
    whole, run = make_run("whole", **SEVERAL_SHARDS), make_run("cut", **SEVERAL_SHARDS)
    whole.precompute()
    last = run.workspace.root / "precompute" / "shard-00002.safetensors"

    def interrupt() -> bool:
        with suppress(KeyboardInterrupt, RuntimeError):  # The other rank loses its connection.
            run.precompute(Interrupted(last))
        return last.exists()

    assert on_ranks(2, interrupt) == [True, True]
    written, told = last.stat().st_mtime_ns, Told()
    result = run.precompute(told)
    assert 0 < told.left["hidden states"] < result.num_train + result.num_validation
    assert last.stat().st_mtime_ns == written
    assert content(last.parent) == content(whole.workspace.root / "precompute")
    assert sorted(path.name for path in last.parent.glob("*.json")) == ["manifest.json"]


def test_what_a_rank_has_written_again_has_its_new_hash(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(**SEVERAL_SHARDS)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(precompute, "_write_problems", interrupt)
        run.precompute(**{"precompute.shard_megabytes": 64})
    assert on_ranks(2, lambda: run.precompute().num_shards > 1) == [True, True]
    assert not list(run.workspace.require("precompute").damaged())


def test_a_workspace_in_use_refuses_every_rank(make_run: MakeRun) -> None:
    run = make_run()

    def refused() -> str:
        with pytest.raises(BusyError) as raised:
            run.precompute()
        return raised.value.message

    with lock(run.workspace.root, ("train-phi",)):
        first, second = on_ranks(2, refused)
    assert first == second
    assert "in use by process" in first


@pytest.mark.usefixtures("muon_in_float32")
@pytest.mark.parametrize("is_in_files", [False, True])
def test_layer_by_layer_each_rank_trains_on_a_part_of_every_batch(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, is_in_files: bool
) -> None:
    monkeypatch.setattr(train_phi, "fits", lambda needed, device: not is_in_files)
    # The last batch has a single problem, so that one rank has none of it.
    layerwise = {"train_phi.schedule": "layerwise", "data.limit": 9, "train_phi.batch_size": 4, "train_phi.epochs": 2}
    alone, together = make_run("alone", **layerwise), make_run("together", **layerwise)

    def layers(run: Run) -> list[float]:
        run.precompute()
        run.score()
        kinds = ("untrained_loss", "train_loss", "validation_loss")
        return [layer[kind] for layer in run.train_phi().layers for kind in kinds]

    losses = layers(alone)
    assert on_ranks(2, lambda: layers(together)) == [pytest.approx(losses, rel=1e-4)] * 2
    folder = together.workspace.root / "train-phi" / "r0.10"
    expected = tensors_of(alone.workspace.root / "train-phi" / "r0.10")
    for name, tensor in tensors_of(folder).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)
    assert json.loads((folder / "manifest.json").read_text())["ranks"] == 2
    assert not [path for path in folder.iterdir() if path.name in ("resting", "checkpoint.safetensors")]


@pytest.mark.parametrize("max_disk", [None, 0.0005])
def test_each_rank_writes_a_part_of_the_selected_states(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, max_disk: float | None
) -> None:
    monkeypatch.setattr(score, "SHARD_BYTES", 20_000)
    settings = {"data.limit": 60, "precompute.max_disk": max_disk}
    alone, together = make_run("alone", **settings), make_run("together", **settings)
    for run in (alone, together):
        assert run.precompute().is_every_index == (max_disk is None)
    expected = alone.score()

    def scored() -> tuple[score.ScoreResult, int]:
        told = SlowSecond()
        return together.score(told), told.left["selected states, one of 2 shares"]

    (first, num_first), (second, num_second) = on_ranks(2, scored)
    assert first == second == expected
    assert 0 < num_first < num_first + num_second == expected.num_problems
    folders = [run.workspace.root / "score" / "r0.10" for run in (alone, together)]
    assert content(folders[0]) == content(folders[1])
    assert len(list(folders[0].glob("shard-*"))) > 3
    assert sorted(path.name for path in folders[1].glob("*.json")) == sorted(p.name for p in folders[0].glob("*.json"))
