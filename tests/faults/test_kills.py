"""SIGKILL at any write: the resumed result equals an uninterrupted one byte by byte, and nothing is left over."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from workspace.steps import before_every_change, killed_at

from faults.conftest import Tally
from faults.pipeline import PIPELINE, Run

SHARD_BYTES = 12_000
PARTS = 4
"""Tests among which the kills of a stage are shared, so that none is long."""
Chosen = Callable[[int], Sequence[int]]
"""Number of changes that a command makes -> at which of them, from 1, it is killed."""


@pytest.fixture(autouse=True)
def in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write several shards; do not wait for the disk, because a kill, unlike a power cut, loses nothing written."""
    monkeypatch.setattr("ccot_cli.stages.precompute.MEGABYTE", SHARD_BYTES)
    monkeypatch.setattr("ccot_cli.stages.score.SHARD_BYTES", SHARD_BYTES)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def num_changes(work: Callable[[], object]) -> int:
    """Do some work, and count the changes that it makes to the disk."""
    changes: list[None] = []
    with before_every_change(lambda: changes.append(None)):
        work()
    return len(changes)


def kill_and_resume(each: Run, command: Sequence[str], chosen: Chosen, tally: Tally) -> None:
    """Run a command to its end; then kill it at chosen changes, each time from the same start, and run it again."""
    start = each.files()
    changes = num_changes(lambda: each.do(*command))
    end, kills, different, left_over = each.files(), 0, [], []
    for number in chosen(changes):
        each.restore(start)
        assert killed_at(number, lambda: each.do(*command))
        is_done = {*each.files()} >= {name for name in end if name.startswith("eval/")} > set()
        each.do(*command)
        kills += 1
        found = each.files()
        if is_done:  # An evaluation that was complete is kept, and asked for again it is done again.
            kept = {Path(name).parts[1] for name in end if name.startswith("eval/")}
            again = {name for name in found if name.startswith("eval/") and Path(name).parts[1] not in kept}
            assert {Path(name).name for name in again} == {"manifest.json", "metrics.json", "predictions.jsonl"}
            found = {name: content for name, content in found.items() if name not in again}
        left_over += [(number, name) for name in found.keys() - end.keys()]
        different += [(number, name) for name in end if found.get(name) != end[name]]
    each.restore(end)
    tally("kills", tried=kills, not_byte_equal=len({number for number, _ in different}), left_over=len(left_over))
    assert (different, left_over) == ([], []), command


def test_a_kill_in_any_stage_ends_in_the_same_bytes_and_leaves_nothing_over(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally
) -> None:
    each = Run(tmp_path / "run", monkeypatch)
    each.set(model=small_model)
    for command in PIPELINE:
        kill_and_resume(each, command, lambda changes: [2 * changes // 3], tally)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    ("command", "is_replaced"),
    [*((command, False) for command in PIPELINE), *((command, True) for command in PIPELINE[:3])],
    ids=lambda value: value[0] if isinstance(value, list) else ["made", "replaced"][value],
)
def test_a_kill_at_any_change_ends_in_the_same_bytes_and_leaves_nothing_over(
    tmp_path: Path,
    small_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    tally: Tally,
    command: list[str],
    is_replaced: bool,
    part: int,
) -> None:
    each = Run(tmp_path / "run", monkeypatch)
    each.set(model=small_model)
    before = PIPELINE[: PIPELINE.index(command)]
    if is_replaced:
        for earlier in (*before, command):
            each.do(*earlier)
        each.set(model=small_model, limit=5, seed=1)
    for earlier in before:
        each.do(*earlier)
    kill_and_resume(each, command, lambda changes: range(1 + part, changes + 1, PARTS), tally)
