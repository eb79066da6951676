"""SIGKILL at any write: the resumed result equals an uninterrupted one byte by byte, and nothing is left over."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from conftest import as_theta, tiny_config
from transformers import PreTrainedTokenizerFast
from workspace.steps import before_every_change, killed_at

from ccot_cli.cli.app import run
from ccot_cli.data.shards import ShardWriter
from faults.conftest import Tally

PIPELINE = (["precompute"], ["score"], ["train-phi"], ["train-psi"], ["train-baseline", "direct"], ["eval"])
SETTINGS = """
ratios: ["0.1"]
model: {{name: {model}}}
data: {{limit: {limit}, validation_limit: 2}}
precompute: {{scorer_layer: 1}}
train_phi: {{autoregressive_layer: 1, lora_rank: 2, taught_epochs: 1, batch_size: 3, checkpoint_steps: 1, epochs: 1, seed: {seed}}}
train_psi: {{lora_rank: 2, epochs: 2, batch_size: 3, checkpoint_steps: 1, seed: {seed}}}
eval: {{limit: 2, batch_size: 2}}
decoding: {{max_chain_tokens: 4, max_answer_tokens: 2, cap_tokens: 40}}
"""
DEFAULTS = {"limit": 6, "seed": 0}
SHARD_BYTES = 12_000
PARTS = 4
"""Tests among which the kills of a stage are shared, so that none is long."""
Chosen = Callable[[int], Sequence[int]]
"""Number of changes that a command makes -> at which of them, from 1, it is killed."""


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A model of two layers."""
    config = tiny_config("llama", len(tokenizer))
    config.num_hidden_layers = 2
    folder = tmp_path_factory.mktemp("small-model")
    as_theta(config, tokenizer).model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write several shards; do not wait for the disk, because a kill, unlike a power cut, loses nothing written."""
    for stage in ("precompute", "score"):
        monkeypatch.setattr(
            f"ccot_cli.stages.{stage}.ShardWriter", lambda folder, _, then: ShardWriter(folder, SHARD_BYTES, then)
        )
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


class Run:
    """A workspace in which commands run one after the other, and the clock tells the same time in every attempt."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._monkeypatch = root, monkeypatch
        root.mkdir()

    def set(self, **changes: object) -> None:
        (self.root / "ccot.yaml").write_text(SETTINGS.format(**{**DEFAULTS, **changes}))

    def do(self, *command: str) -> None:
        ticks, created = count(), datetime(2026, 1, 31, tzinfo=UTC)
        self._monkeypatch.setattr("time.perf_counter", lambda: next(ticks) / 1000)
        self._monkeypatch.setattr("ccot_cli.workspace.build.now", lambda: created)
        assert run([*command, "-w", str(self.root)]) == 0

    def restore(self, files: Mapping[str, bytes]) -> None:
        shutil.rmtree(self.root)
        for name, content in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes(content)

    def files(self) -> dict[str, bytes]:
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in paths}


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
@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("number", range(len(PIPELINE)), ids=[command[0] for command in PIPELINE])
def test_a_kill_at_any_change_ends_in_the_same_bytes_and_leaves_nothing_over(
    tmp_path: Path,
    small_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    tally: Tally,
    number: int,
    is_replaced: bool,
    part: int,
) -> None:
    each = Run(tmp_path / "run", monkeypatch)
    each.set(model=small_model)
    if is_replaced:
        for command in PIPELINE:
            each.do(*command)
        each.set(model=small_model, limit=5, seed=1)
    for command in PIPELINE[:number]:
        each.do(*command)
    kill_and_resume(each, PIPELINE[number], lambda changes: range(1 + part, changes + 1, PARTS), tally)
