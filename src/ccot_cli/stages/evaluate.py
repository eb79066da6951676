"""Accuracy and time of every trained method on the test problems (paper, Table 2)."""

import json
import platform
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from math import ceil
from typing import Any, NamedTuple

import torch

from ccot_cli.config import Settings, stage_config
from ccot_cli.data.problems import Problem, load_test
from ccot_cli.errors import UsageError
from ccot_cli.files import commit, write_json
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.controls import CONTROLS
from ccot_cli.models.methods.loading import Traits, traits_of
from ccot_cli.models.methods.method import Method, MethodInfo, Reply, Seconds
from ccot_cli.names import EVAL
from ccot_cli.progress import Progress
from ccot_cli.stages.methods import LoadableMethod, Methods, find_methods, own_methods
from ccot_cli.stages.statistics import Proportion, mcnemar, wilson
from ccot_cli.stages.validation import ask, is_right
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class EvalRow:
    """One method of the table. Seconds are wall-clock per question: a batch's time over its questions."""

    method: str
    ratio: float
    n: int
    accuracy: float
    low: float
    high: float
    seconds_mean: float
    seconds_median: float
    seconds_p95: float
    prefill_seconds_mean: float
    contemplation_seconds_mean: float
    answer_seconds_mean: float
    contemplation_tokens_mean: float
    answer_tokens_mean: float
    truncated_share: float
    by_steps: dict[str, Proportion]
    """Accuracy by the number of reasoning steps."""


@dataclass(frozen=True)
class Pair:
    """Two methods on the same problems."""

    method: str
    ratio: float
    than: str
    than_ratio: float
    wins: int
    """Problems that the first alone has right."""
    losses: int
    """Problems that the second alone has right."""
    p: float
    """McNemar's exact test, two-sided."""


@dataclass(frozen=True)
class EvalResult:
    """The whole table."""

    rows: list[EvalRow]
    pairs: list[Pair]
    """Every method against answering at once and against CCoT."""
    traits: dict[str, Traits]
    """What each method puts between query and answer (paper, Table 1)."""
    model: str
    data: str
    batch_size: int
    device: str
    versions: dict[str, str]
    folder: str | None
    """Where predictions.jsonl and metrics.json lie; None where nothing was saved."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(
    workspace: Workspace | None,
    settings: Settings,
    *,
    ratios: Sequence[Decimal] = (),
    names: Sequence[str] = (),
    has_controls: bool = False,
    overrides: Sequence[str] = (),
    saves: bool = True,
    progress: Progress,
) -> EvalResult:
    """Evaluate the given methods and ratios, or all that are trained and the explicit chain.

    Args:
        workspace: None evaluates the embedded default; nothing is saved then.
        names: `ccot`, a baseline's name, `zero-shot`, `few-shot`.
        has_controls: Whether contemplation tokens are replaced too, to see what they carry.

    Raises:
        MissingError: for a method or a ratio that was not trained.
        UsageError: where no test problems are named.
    """
    methods = find_methods(workspace, settings)
    for error in methods.unusable.values():
        progress.say(f"left out: {error.message}; {error.fix}")
    problems = problems_to_ask(methods, settings, settings.eval.limit, progress)
    loadable = methods.choose(names, ratios)
    if has_controls and 1 in (settings.eval.batch_size, len(problems) % settings.eval.batch_size):
        raise UsageError(
            f"{len(problems):,} questions in batches of {settings.eval.batch_size} leave one alone, which has no"
            " other's tokens to be given",
            fix="another --batch-size or --limit",
        )

    def compare() -> tuple[EvalResult, list[dict[str, Any]]]:
        return _compare(methods, loadable, problems, settings, has_controls=has_controls, progress=progress)

    if workspace is None or not saves:
        return compare()[0]
    inputs = _inputs(workspace, loadable)
    spec = ArtifactSpec(EVAL, _new_key(workspace), stage_config(settings, EVAL), inputs, tuple(overrides))
    # What cannot be written is not measured first.
    with workspace.building(spec) as build:
        try:
            result, predictions = compare()
        except BaseException:
            shutil.rmtree(build.folder)
            raise
        return _save(build, result, predictions)


def problems_to_ask(methods: Methods, settings: Settings, limit: int | None, progress: Progress) -> list[Problem]:
    """Test problems by the length of their questions; those that are too long for the model are left out.

    Raises:
        UsageError: where none is left.
    """
    problems = load_test(methods.data, limit=limit, seed=settings.eval.seed, steps=settings.eval.steps)
    if (longest := methods.theta.longest_query) is not None:
        queries = methods.theta.encoder.problems(problems)
        kept = [problem for problem, each in zip(problems, queries, strict=True) if len(each.query) <= longest]
        if len(kept) < len(problems):
            progress.say(f"{len(problems) - len(kept):,} questions have more than {longest:,} tokens: left out")
        if not kept:
            raise UsageError("no question is short enough for the model", fix="other test problems, or another model")
        problems = kept
    return sorted(problems, key=lambda problem: len(problem.question))


def _compare(
    methods: Methods,
    loadable: Sequence[LoadableMethod],
    problems: list[Problem],
    settings: Settings,
    *,
    has_controls: bool,
    progress: Progress,
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """Measure every method, one after the other; with every prediction."""
    rows, predictions, marks = [], [], []
    for method in _loaded(loadable, has_controls):
        measured = measure(method, problems, settings.eval.batch_size, progress)
        marks.append(measured.marks)
        rows.append(measured.row)
        answered = zip(problems, measured.replies, measured.marks, strict=True)
        predictions += [_prediction(method, *each) for each in answered]
    result = EvalResult(
        rows=rows,
        pairs=_pairs(rows, marks),
        traits={row.method: traits_of(row.method) for row in rows},
        model=methods.theta.name,
        data=methods.data.test_source or methods.data.source,
        batch_size=settings.eval.batch_size,
        device=methods.theta.device_name,
        versions={"python": platform.python_version(), "torch": torch.__version__},
        folder=None,
    )
    return result, predictions


class Measured(NamedTuple):
    """What one method came to."""

    row: EvalRow
    replies: list[Reply]
    marks: list[bool]
    """Which of them are right."""


def measure(method: Method, problems: list[Problem], batch_size: int, progress: Progress) -> Measured:
    """Ask one method everything, in batches as the problems come."""
    for _ in ask(method, problems[:batch_size], batch_size, "warm-up", Progress()):  # not timed
        pass
    replies: list[Reply] = []
    seconds: list[tuple[int, Seconds]] = []
    for batch, replied, spent in ask(method, problems, batch_size, f"{method.name} r = {method.ratio:f}", progress):
        replies += replied
        seconds.append((len(batch), spent))
    marks = list(map(is_right, problems, replies))
    return Measured(_row(method, problems, replies, seconds, marks), replies, marks)


def _loaded(loadable: Sequence[LoadableMethod], has_controls: bool) -> Iterator[Method]:
    """Every method that is asked for, loaded when its turn comes."""
    for each in loadable:
        method = each.load()
        yield method
        if has_controls and isinstance(method, CcotMethod):
            yield from (replace(method, control=control) for control in CONTROLS)


def _pairs(rows: list[EvalRow], marks: list[list[bool]]) -> list[Pair]:
    """Every method against answering at once; and against CCoT, where it has the same ratio or one of its own."""
    pairs = []
    for other in range(len(rows)):
        if rows[other].method not in ("direct", "ccot"):
            continue
        for one in range(len(rows)):
            is_of_another_ratio = rows[other].method == "ccot" and rows[one].ratio not in (rows[other].ratio, 0.0, 1.0)
            if one != other and not is_of_another_ratio:
                pairs.append(_pair(rows[one], rows[other], marks[one], marks[other]))
    return pairs


def _pair(row: EvalRow, than: EvalRow, marks: list[bool], others: list[bool]) -> Pair:
    wins = sum(mark and not other for mark, other in zip(marks, others, strict=True))
    losses = sum(other and not mark for mark, other in zip(marks, others, strict=True))
    return Pair(row.method, row.ratio, than.method, than.ratio, wins, losses, mcnemar(wins, losses))


def _row(
    method: Method,
    problems: list[Problem],
    replies: list[Reply],
    seconds: list[tuple[int, Seconds]],
    marks: list[bool],
) -> EvalRow:
    n = len(problems)
    overall = wilson(sum(marks), n)
    per_question = sorted(spent.total / count for count, spent in seconds for _ in range(count))
    steps = sorted({problem.num_steps for problem in problems})
    by_steps = {
        str(step): wilson(sum(chosen), len(chosen))
        for step in steps
        if (chosen := [mark for mark, problem in zip(marks, problems, strict=True) if problem.num_steps == step])
    }
    return EvalRow(
        method=method.name,
        ratio=float(method.ratio),
        n=n,
        accuracy=overall.accuracy,
        low=overall.low,
        high=overall.high,
        seconds_mean=sum(per_question) / n,
        seconds_median=statistics.median(per_question),
        seconds_p95=per_question[ceil(0.95 * n) - 1],
        prefill_seconds_mean=sum(spent.prefill for _, spent in seconds) / n,
        contemplation_seconds_mean=sum(spent.contemplation for _, spent in seconds) / n,
        answer_seconds_mean=sum(spent.answer for _, spent in seconds) / n,
        contemplation_tokens_mean=sum(reply.num_contemplation for reply in replies) / n,
        answer_tokens_mean=sum(reply.num_answer for reply in replies) / n,
        truncated_share=sum(reply.is_truncated for reply in replies) / n,
        by_steps=by_steps,
    )


def _prediction(method: Method, problem: Problem, reply: Reply, is_correct: bool) -> dict[str, Any]:
    return {
        "method": method.name,
        "ratio": float(method.ratio),
        "id": problem.id,
        "num_steps": problem.num_steps,
        "reference": problem.answer,
        "is_correct": is_correct,
        **asdict(reply),
    }


def _inputs(workspace: Workspace, loadable: Sequence[LoadableMethod]) -> dict[str, str]:
    """Fingerprints of what was trained and is evaluated."""
    evaluated = {(each.name, float(each.ratio)) for each in loadable}
    return {each.name: each.fingerprint for each in own_methods(workspace)[0] if _method_of(each) in evaluated}


def _save(build: Build, result: EvalResult, predictions: list[dict[str, Any]]) -> EvalResult:
    saved = EvalResult(**{**vars(result), "folder": str(build.folder)})
    with commit(build.folder / "predictions.jsonl") as part:
        lines = (json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions)
        part.write_text("".join(lines), encoding="utf-8")
    write_json(build.folder / "metrics.json", saved.to_json())
    best = max(result.rows, key=lambda row: row.accuracy)
    build.summary.update(rows=len(result.rows), n=best.n, best=best.method, accuracy=best.accuracy)
    return saved


def _method_of(artifact: Artifact) -> tuple[str, float]:
    info = MethodInfo.load(artifact.folder)
    return info.name, float(info.ratio)


def _new_key(workspace: Workspace) -> str:
    """Today's date and the first number that is free."""
    today = datetime.now(UTC).date().isoformat()
    number = 1
    while workspace.folder(EVAL, f"{today}-{number}").exists():
        number += 1
    return f"{today}-{number}"
