"""Hidden states are stored once, whole, and as they would have been without an interruption."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from workspace.making import edit_manifest

from ccot_cli import files
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.shards import read_records, shard_paths
from ccot_cli.errors import CorruptError, DivergedError, ResourceError, UsageError
from ccot_cli.names import PRECOMPUTE
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute
from ccot_cli.stages.problems import read_problems
from stages.runs import MakeRun, Stopping, Told, flip_a_bit, same_tensors


def test_a_ready_stage_does_nothing(make_run: MakeRun) -> None:
    run = make_run()
    assert not run.precompute().was_ready
    before = {path: path.stat().st_mtime_ns for path in run.workspace.root.rglob("*") if path.is_file()}
    assert run.precompute().was_ready
    assert before == {path: path.stat().st_mtime_ns for path in run.workspace.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change", [{"num_shards": None}, {"of_another": 1}])
def test_a_ready_one_of_another_version_is_refused(make_run: MakeRun, change: dict[str, object]) -> None:
    run = make_run()
    run.precompute()
    ready = run.workspace.require("precompute")
    summary = {name: value for name, value in {**ready.manifest.summary, **change}.items() if value is not None}
    edit_manifest(ready, summary=summary)
    with pytest.raises(CorruptError, match=r"precompute was made by ccot .*, and records what .* does not know"):
        run.precompute()


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
    small_shards = {"precompute.shard_megabytes": 1, "data.limit": 240}
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


@pytest.mark.parametrize("changes", [{"precompute.shard_megabytes": 64}, {"precompute.max_disk": 0.001}])
def test_shards_that_an_interrupted_precompute_wrote_in_vain_are_forgotten(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    run = make_run(**{"precompute.shard_megabytes": 1, "data.limit": 240})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(precompute, "_write_problems", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.precompute()
    assert len(shard_paths(run.workspace.folder("precompute"))) > 1
    assert run.precompute(**changes).num_shards == 1
    assert not list(run.workspace.require("precompute").damaged())


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
    with pytest.raises(CorruptError, match="is missing or has another size") as caught:
        after()
    assert f"ccot {stage}" in caught.value.fix


def test_problems_may_hold_whatever_else_ends_a_line(make_run: MakeRun, tmp_path: Path) -> None:
    # GSM8K has such a question.
    rows = [
        {"question": f"Mia\u2028has\u2029{n}\x85pens\x1c?", "answer": f"{n} + 1 =\u2028{n + 1}\n#### {n + 1}"}
        for n in range(30)
    ]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    run = make_run(**{"data.source": str(tmp_path / "odd.jsonl")})
    run.precompute()
    items = read_problems(run.workspace.require("precompute"))
    assert {item.problem.question for item in items} <= {str(row["question"]) for row in rows}
    assert {item.problem.num_steps for item in items} == {1}
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


def leave(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Let the disk seem to have as many bytes free."""
    for module in (files, precompute):
        monkeypatch.setattr(module, "free_bytes", lambda path: free)


def test_what_does_not_fit_the_disk_is_refused_before_it_starts(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    leave(monkeypatch, 1000)
    with pytest.raises(ResourceError, match=r"this needs about 291 kB, and 1\.0 kB are free") as caught:
        run.precompute()
    assert caught.value.fix == "fewer problems with --limit, or --force"
    assert not run.workspace.folder("precompute").exists()
    with pytest.raises(ResourceError, match="even one hidden-state index"):
        run.precompute(**{"precompute.max_disk": 1e-9})
    leave(monkeypatch, 100_000)
    with pytest.raises(ResourceError, match="this needs about 291 kB") as caught:
        run.precompute()
    assert caught.value.fix.startswith("add --max-disk 9e-05 ")
    assert not run.precompute(**{"precompute.max_disk": 9e-05}).is_every_index


def test_what_an_interrupted_precompute_has_written_needs_no_more_room(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(**{"precompute.shard_megabytes": 1, "data.limit": 120})
    with pytest.raises(KeyboardInterrupt):
        run.precompute(Stopping("hidden states", 90))
    written = sum(path.stat().st_size for path in shard_paths(run.workspace.folder(PRECOMPUTE)))
    needed = precompute.run(run.workspace, run.settings, dry_run=True, progress=Progress()).num_bytes
    leave(monkeypatch, needed - written - 1)
    with pytest.raises(ResourceError, match="this needs about") as caught:
        run.precompute()
    assert caught.value.fix == "free some space, or --force"
    leave(monkeypatch, needed - written)
    run.precompute()
    # A replacement has to fit beside what is in use.
    with pytest.raises(ResourceError, match="this needs about"):
        run.precompute(**{"data.limit": 119})


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
        for item in read_problems(run.workspace.require("precompute"))
        if item.is_validation
    }
    write(lambda number: number in held_out)
    with pytest.raises(UsageError, match="no validation problem is left"):
        run.precompute()
    write(lambda number: number not in held_out)
    with pytest.raises(UsageError, match="no training problem is left"):
        run.precompute()


def test_a_shard_that_changed_is_not_selected_from(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    shard = run.workspace.folder(PRECOMPUTE) / "shard-00000.safetensors"
    sound = shard.read_bytes()
    flip_a_bit(shard)
    with pytest.raises(CorruptError, match=r"shard-00000\.safetensors does not hold the bytes"):
        run.score()
    shard.write_bytes(sound)
    problems = run.workspace.folder(PRECOMPUTE) / "problems.jsonl"
    flip_a_bit(problems)
    with pytest.raises(CorruptError, match=r"problems\.jsonl"):
        run.score()
