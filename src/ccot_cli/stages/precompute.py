"""Run θ over every solution once, and store its hidden states (paper, section 4.1)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ccot_cli import ranks
from ccot_cli.config import Settings, stage_config
from ccot_cli.data.problems import load_training
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.shards import Record, shard_paths
from ccot_cli.errors import DivergedError, ResourceError, UsageError
from ccot_cli.files import check_space, commit, free_bytes, human_bytes
from ccot_cli.models.base.merged import adapter_hash
from ccot_cli.models.base.theta import Theta, load_theta, weights_hash
from ccot_cli.models.selection.gold import STORED_DTYPE, fits, gold_states, solution_order
from ccot_cli.names import PRECOMPUTE
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import as_ready, building, pass_tokens, ready_result
from ccot_cli.stages.problems import PROBLEMS_FILE, StoredProblem, digest, json_lines, stored_problems
from ccot_cli.stages.sharing import write_records, written_bytes
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.workspace import Workspace

MEGABYTE = 10**6
"""Bytes of a unit of `precompute.shard_megabytes`."""


@dataclass(frozen=True)
class PrecomputeResult:
    """What was stored, or would be stored."""

    num_train: int
    num_validation: int
    num_chain_tokens: int
    num_bytes: int
    is_every_index: bool
    """False if only the scorer's layer is stored. `score` then runs θ a second time."""
    num_shards: int
    seconds: float
    batch_tokens: int = 0
    """Most tokens in one forward pass. `score` runs θ over the same batches."""
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
    """Store gold states of the training and validation problems; each rank makes some of the shards.

    Args:
        dry_run: Plan only; write nothing.
        force: Start even if the disk seems too small.

    Raises:
        UsageError: if the source is unusable, no problem is left, or the scorer's layer does not exist.
        ResourceError: if the plan does not fit on the disk.
        DivergedError: if a hidden state is not finite.
    """
    if not dry_run and workspace.artifact(PRECOMPUTE) is None:
        ranks.first(workspace.refuse_while_busy)
    theta = load_theta(settings.model)
    stored, encoded = _load(theta, settings, progress)
    plan = _plan(theta, settings, stored, encoded)
    inputs = {"model": theta.fingerprint(), "weights": weights_hash(settings.model), "problems": digest(stored)}
    if settings.model.adapter is not None:
        inputs["adapter"] = adapter_hash(settings.model.adapter)
    spec = ArtifactSpec(PRECOMPUTE, None, stage_config(settings, PRECOMPUTE), inputs, tuple(overrides))
    if dry_run:
        # `ready` would refuse to replace an artifact, but a plan replaces none.
        match = workspace.matching(spec)
        if match and match.is_complete():
            return as_ready(match, PrecomputeResult)
        return plan
    if ready := ranks.first(lambda: ready_result(workspace, spec, PrecomputeResult)):
        return ready
    if not force:
        ranks.first(lambda: _refuse_what_does_not_fit(workspace, theta, settings, plan, written_bytes(workspace, spec)))
    progress.say(f"about {human_bytes(plan.num_bytes)} of hidden states")
    started = time.perf_counter()
    with building(workspace, spec, progress, shares_folder=True) as build:
        _write_states(build, theta, settings, encoded, plan, progress)
        ranks.first(lambda: _write_problems(build.folder, stored))
        num_shards, seconds = len(shard_paths(build.folder)), time.perf_counter() - started
        result = replace(plan, num_shards=num_shards, seconds=seconds)
        build.summary.update(asdict(result))
    return result


def _write_states(
    build: Build,
    theta: Theta,
    settings: Settings,
    encoded: list[EncodedProblem],
    plan: PrecomputeResult,
    progress: Progress,
) -> None:
    config = settings.precompute
    indices = range(theta.num_layers + 1) if plan.is_every_index else [config.scorer_layer]

    def make(wanted: frozenset[int]) -> Iterator[Record]:
        states = gold_states(theta, encoded, indices=indices, batch_tokens=plan.batch_tokens, wanted=wanted)
        return (make_record(number, encoded[number], states_JID) for number, states_JID in states)

    write_records(
        build,
        solution_order(theta, encoded),
        [1 + len(each.chain) for each in encoded],
        make,
        num_indices=len(indices),
        row_bytes=len(indices) * theta.model.config.hidden_size * STORED_DTYPE.itemsize,
        shard_bytes=min(config.shard_megabytes * MEGABYTE, plan.num_bytes),
        label="hidden states",
        progress=progress,
    )


def _load(theta: Theta, settings: Settings, progress: Progress) -> tuple[list[StoredProblem], list[EncodedProblem]]:
    """Load and tokenize the training problems, then the validation problems, without those too long for the model."""
    loaded = load_training(settings.data)
    for line in loaded.notes:
        progress.say(line)
    stored = stored_problems(loaded)
    encoded = theta.encoder.problems([item.problem for item in stored])
    are_short = [fits(theta, problem) for problem in encoded]
    if not all(are_short):
        longest = theta.model.config.max_position_embeddings
        progress.say(f"{are_short.count(False):,} problems are longer than the model's {longest:,} positions: left out")
    stored = [item for item, is_short in zip(stored, are_short, strict=True) if is_short]
    for kind, is_validation in (("training", False), ("validation", True)):
        if all(item.is_validation != is_validation for item in stored):
            raise UsageError(f"no {kind} problem is left", fix="check data.source in ccot.yaml, or give more problems")
    return stored, [problem for problem, is_short in zip(encoded, are_short, strict=True) if is_short]


def _plan(
    theta: Theta, settings: Settings, stored: list[StoredProblem], encoded: list[EncodedProblem]
) -> PrecomputeResult:
    """Compute what will be stored: every hidden-state index if `max_disk` allows it, else the scorer's alone."""
    if settings.precompute.scorer_layer > theta.num_layers:
        raise UsageError(
            f"scorer_layer is {settings.precompute.scorer_layer}, but {theta.name} has {theta.num_layers} layers",
            fix="set precompute.scorer_layer in ccot.yaml",
        )
    num_rows = sum(1 + len(problem.chain) for problem in encoded)
    one_index_bytes = num_rows * theta.model.config.hidden_size * STORED_DTYPE.itemsize
    every_index_bytes = one_index_bytes * (theta.num_layers + 1)
    limit = settings.precompute.max_disk
    is_every_index = limit is None or every_index_bytes <= limit * 1e9
    num_bytes = every_index_bytes if is_every_index else one_index_bytes
    return PrecomputeResult(
        num_train=sum(not item.is_validation for item in stored),
        num_validation=sum(item.is_validation for item in stored),
        num_chain_tokens=num_rows - len(encoded),
        num_bytes=num_bytes,
        is_every_index=is_every_index,
        num_shards=-(-num_bytes // (settings.precompute.shard_megabytes * MEGABYTE)),
        seconds=0.0,
        batch_tokens=pass_tokens(theta, settings),
    )


def _refuse_what_does_not_fit(
    workspace: Workspace, theta: Theta, settings: Settings, plan: PrecomputeResult, num_written: int
) -> None:
    """Refuse a plan if the disk, or `max_disk`, has no room for it.

    Args:
        num_written: Bytes that an interrupted attempt has written; they need no more room.
    """
    limit = settings.precompute.max_disk
    if limit is not None and plan.num_bytes > limit * 1e9:
        raise ResourceError(
            f"even one hidden-state index needs {plan.num_bytes / 1e9:,.2f} GB, but --max-disk allows {limit:,} GB",
            fix="a larger --max-disk, or fewer problems with --limit",
        )
    room = free_bytes(workspace.root) * 0.9
    if num_written:  # Another plan would delete that.
        fix = "free some space, or --force"
    elif plan.is_every_index and plan.num_bytes / (theta.num_layers + 1) <= room:
        fix = (
            f"add --max-disk {room / 1e9:.4g}    (stores index {settings.precompute.scorer_layer} only; "
            "score computes the others in a second pass)"
        )
    else:
        fix = "fewer problems with --limit, or --force"
    check_space(workspace.root, plan.num_bytes - num_written, fix=fix)


def make_record(number: int, problem: EncodedProblem, states_JID: torch.Tensor) -> Record:
    """Return the record of a problem's last query token and its chain tokens.

    Raises:
        DivergedError: if a state is not finite, for example because half precision overflowed.
    """
    # A sum is fast, and not finite if one of its terms is not.
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


def _write_problems(folder: Path, stored: list[StoredProblem]) -> None:
    with commit(folder / PROBLEMS_FILE) as part:
        part.write_text("\n".join(json_lines(stored)) + "\n", encoding="utf-8")
