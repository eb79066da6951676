"""Run θ over every solution once and keep its hidden states (paper, section 4.1)."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ccot_cli.config import Settings, stage_config
from ccot_cli.data.problems import load_training
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.shards import Record, ShardWriter, shard_paths, shards_of_other_width, stored_numbers
from ccot_cli.errors import DivergedError, ResourceError, UsageError
from ccot_cli.files import check_space, commit, free_bytes, human_bytes
from ccot_cli.models.base.theta import Theta, load_theta
from ccot_cli.models.selection.gold import STORED_DTYPE, gold_states, solution_ids
from ccot_cli.names import PRECOMPUTE
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import PROBLEMS_FILE, StoredProblem
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class PrecomputeResult:
    """What was stored, or would be."""

    num_train: int
    num_validation: int
    num_chain_tokens: int
    num_bytes: int
    is_every_index: bool
    """False where only the scorer's layer is stored and `score` makes a second pass."""
    num_shards: int
    seconds: float
    was_ready: bool = False


def run(
    workspace: Workspace,
    settings: Settings,
    *,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    force: bool = False,
    progress: Progress,
) -> PrecomputeResult:
    """Store gold states of the training and validation problems.

    Args:
        dry_run: Plan only; write nothing.
        force: Start even where the disk looks too small.

    Raises:
        ResourceError: where the plan does not fit the disk.
    """
    if not dry_run and workspace.artifact(PRECOMPUTE) is None:
        workspace.refuse_while_busy()
    theta = load_theta(settings.model)
    stored, encoded = _load(theta, settings, progress)
    plan = _plan(theta, settings, stored, encoded)
    inputs = {"model": theta.fingerprint(), "problems": _digest(stored)}
    spec = ArtifactSpec(PRECOMPUTE, None, stage_config(settings, PRECOMPUTE), inputs, tuple(overrides))
    if dry_run:
        # What would be replaced matters to those who write.
        found = workspace.matching(spec)
        return _with_ready(plan, found) if found and found.is_whole() else plan
    if ready := workspace.ready(spec):
        return _with_ready(plan, ready)
    if not force:
        _refuse_what_does_not_fit(workspace, theta, settings, plan)
    progress.say(f"about {human_bytes(plan.num_bytes)} of hidden states")
    started = time.perf_counter()
    with workspace.building(spec) as build:
        _write_problems(build.folder, stored)
        _write_states(build, theta, settings, encoded, plan, progress)
        num_shards, seconds = len(shard_paths(build.folder)), time.perf_counter() - started
        result = replace(plan, num_shards=num_shards, seconds=seconds)
        build.summary.update(asdict(result), batch_tokens=settings.precompute.batch_tokens)
    return result


def _write_states(
    build: Build,
    theta: Theta,
    settings: Settings,
    encoded: list[EncodedProblem],
    plan: PrecomputeResult,
    progress: Progress,
) -> None:
    """Write the shards that an interrupted run has not."""
    chosen = settings.precompute
    indices = range(theta.num_layers + 1) if plan.is_every_index else [chosen.scorer_layer]
    for path in shards_of_other_width(build.folder, len(indices)):
        path.unlink()  # the interrupted run had more room on the disk, or less
    done = stored_numbers(build.folder)
    states = gold_states(
        theta, encoded, indices=indices, batch_tokens=chosen.batch_tokens, dtype=STORED_DTYPE, skip=done
    )
    shard_bytes = min(chosen.shard_megabytes * 10**6, plan.num_bytes)
    with (
        ShardWriter(build.folder, shard_bytes, build.note) as writer,
        progress.task("hidden states", total=len(encoded) - len(done), unit="problems") as advance,
    ):
        for number, states_JID in states:
            writer.add(make_record(number, encoded[number], states_JID))
            advance()


def _load(theta: Theta, settings: Settings, progress: Progress) -> tuple[list[StoredProblem], list[EncodedProblem]]:
    loaded = load_training(settings.data)
    for line in loaded.notes:
        progress.say(line)
    stored = [StoredProblem(problem, False) for problem in loaded.train]
    stored += [StoredProblem(problem, True) for problem in loaded.validation]
    longest = getattr(theta.model.config, "max_position_embeddings", None) or 1 << 30
    encoded = theta.encoder.problems([item.problem for item in stored])
    fits = [len(solution_ids(theta, problem)) <= longest for problem in encoded]
    if not all(fits):
        progress.say(f"{fits.count(False):,} problems are longer than the model's {longest:,} positions: left out")
    stored = [item for item, is_short in zip(stored, fits, strict=True) if is_short]
    for kind, is_there in (("training", False), ("validation", True)):
        if all(item.is_validation != is_there for item in stored):
            raise UsageError(f"no {kind} problem is left", fix="check data.source in ccot.yaml, or give more problems")
    return stored, [problem for problem, is_short in zip(encoded, fits, strict=True) if is_short]


def _plan(
    theta: Theta, settings: Settings, stored: list[StoredProblem], encoded: list[EncodedProblem]
) -> PrecomputeResult:
    if settings.precompute.scorer_layer > theta.num_layers:
        raise UsageError(
            f"scorer_layer is {settings.precompute.scorer_layer}, but {theta.name} has {theta.num_layers} layers",
            fix="set precompute.scorer_layer in ccot.yaml",
        )
    rows = sum(1 + len(problem.chain) for problem in encoded)
    per_index = rows * theta.model.config.hidden_size * STORED_DTYPE.itemsize
    every_index = per_index * (theta.num_layers + 1)
    limit = settings.precompute.max_disk
    is_every_index = limit is None or every_index <= limit * 1e9
    num_bytes = every_index if is_every_index else per_index
    return PrecomputeResult(
        num_train=sum(not item.is_validation for item in stored),
        num_validation=sum(item.is_validation for item in stored),
        num_chain_tokens=rows - len(encoded),
        num_bytes=num_bytes,
        is_every_index=is_every_index,
        num_shards=-(-num_bytes // (settings.precompute.shard_megabytes * 10**6)),
        seconds=0.0,
    )


def _refuse_what_does_not_fit(workspace: Workspace, theta: Theta, settings: Settings, plan: PrecomputeResult) -> None:
    limit = settings.precompute.max_disk
    if limit is not None and plan.num_bytes > limit * 1e9:
        raise ResourceError(
            f"even one hidden-state index needs {plan.num_bytes / 1e9:,.2f} GB, and --max-disk allows {limit:,} GB",
            fix="a larger --max-disk, or fewer problems with --limit",
        )
    room = f"{free_bytes(workspace.root) * 0.9 / 1e9:.1f}"
    thinner = (
        f"add --max-disk {room}    (keeps index {settings.precompute.scorer_layer} only; "
        "score fetches the rest in a second pass)"
    )
    fewer = "fewer problems with --limit, or --force"
    check_space(workspace.root, plan.num_bytes, fix=thinner if plan.is_every_index else fewer)


def make_record(number: int, problem: EncodedProblem, states_JID: torch.Tensor) -> Record:
    """A problem's rows: its last query token and its chain.

    Raises:
        DivergedError: where a state is not finite, as when half precision overflows.
    """
    # One number that is not finite makes the sum so, and a sum is quick.
    if not states_JID.sum(dtype=torch.float32).isfinite():
        raise DivergedError(
            f"hidden states of problem {number} hold numbers that are not finite",
            fix="set model.dtype to float32 or bfloat16 in ccot.yaml",
        )
    start = len(problem.query) - 1
    return Record(
        number=number,
        states_JID=states_JID,
        token_ids_J=torch.tensor([problem.query[-1], *problem.chain]),
        positions_J=torch.arange(start, start + 1 + len(problem.chain)),
    )


def _rows(stored: list[StoredProblem]) -> list[str]:
    return [
        json.dumps({**asdict(item.problem), "is_validation": item.is_validation}, ensure_ascii=False) for item in stored
    ]


def _digest(stored: list[StoredProblem]) -> str:
    return hashlib.sha256("\n".join(_rows(stored)).encode()).hexdigest()


def _write_problems(folder: Path, stored: list[StoredProblem]) -> None:
    with commit(folder / PROBLEMS_FILE) as part:
        part.write_text("\n".join(_rows(stored)) + "\n", encoding="utf-8")


def _with_ready(plan: PrecomputeResult, ready: Artifact) -> PrecomputeResult:
    known = {name: ready.manifest.summary[name] for name in asdict(plan) if name in ready.manifest.summary}
    return PrecomputeResult(**{**known, "was_ready": True})
