"""The queries' keys and values are kept if there is room, and serve all training."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training.queries import FreshQueries, KeptQueries, Queries
from ccot_cli.names import PRECOMPUTE
from ccot_cli.stages import query_cache
from ccot_cli.stages.inputs import load_matching_theta
from stages.runs import MakeRun, Told, flip_a_bit, tensors_of


def test_queries_that_are_too_large_to_keep_are_run_anew(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"data.steps": (2, 2), "data.subset": "two_steps"}
    kept, fresh = make_run("kept", **short), make_run("fresh", **short)
    for run in (kept, fresh):
        run.precompute()
        run.score()
    kept.train_phi()
    kept.train_psi()
    monkeypatch.setattr(query_cache, "MOST_BYTES", 1)
    fresh.train_phi()
    fresh.train_psi()
    assert list(kept.workspace.cache.glob("queries-*"))
    assert not list(fresh.workspace.cache.glob("queries-*"))
    for stage in ("train-phi", "train-psi"):
        one, other = (tensors_of(run.workspace.folder(stage, "r0.10")) for run in (kept, fresh))
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(tensor, other[name], atol=5e-3, rtol=1e-2)


def test_a_gpu_keeps_no_queries(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    run.precompute()
    source = run.workspace.require(PRECOMPUTE)
    adapters = Adapters(load_matching_theta(run.settings, source))

    def opened() -> Queries:
        return query_cache.open_queries(run.workspace, source, adapters, [[5, 6]], 2, "theta", Told())

    assert isinstance(opened(), KeptQueries)
    shutil.rmtree(run.workspace.cache)
    monkeypatch.setattr(Theta, "device", torch.device("cuda"))
    assert isinstance(opened(), FreshQueries)
    assert not run.workspace.cache.exists()


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
    # Deleted or damaged, it is made again, and nothing else changes.
    kept[0].unlink()
    flip_a_bit(kept[1])
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


def test_what_was_kept_for_other_problems_makes_room_first(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    run.precompute()
    source = run.workspace.require(PRECOMPUTE)
    adapters = Adapters(load_matching_theta(run.settings, source))
    run.workspace.cache.mkdir()
    old = run.workspace.cache / "queries-of-others.bin"
    old.write_bytes(b"old")
    monkeypatch.setattr(query_cache, "free_bytes", lambda folder: 0 if old.exists() else 10**9)
    opened = query_cache.open_queries(run.workspace, source, adapters, [[5, 6]], 2, "theta", Told())
    assert isinstance(opened, KeptQueries)
