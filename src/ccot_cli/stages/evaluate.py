"""Measure accuracy and time of trained methods on the test problems (paper, Table 2)."""

import json
import platform
import shutil
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ccot_cli import ranks
from ccot_cli.config import DataConfig, Settings, stage_config
from ccot_cli.data.problems import Problem, load_test
from ccot_cli.data.rows import names_file
from ccot_cli.errors import UsageError
from ccot_cli.files import PART, commit, write_json
from ccot_cli.models.base.history import History
from ccot_cli.models.methods.cascade import Cascade
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.controls import CONTROLS
from ccot_cli.models.methods.loading import Traits, traits_of
from ccot_cli.models.methods.method import Method, Reply, Seconds
from ccot_cli.models.methods.prompting import PromptedMethod
from ccot_cli.names import CCOT, EMBEDDED, EVAL, GOLD, METRICS_FILE, PREDICTIONS_FILE
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import building, short_enough
from ccot_cli.stages.methods import (
    COT,
    PROMPTING,
    LoadableMethod,
    Methods,
    find_methods,
    needs_theta_alone,
    own_methods,
)
from ccot_cli.stages.statistics import Proportion, calibration_error, mcnemar, wilson
from ccot_cli.stages.thoughts import Checked, Verification, check_thoughts, verification
from ccot_cli.stages.validation import ask, is_right
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.upkeep import drop_begun
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class Fallback:
    """What a cascade left to its second method."""

    min_confidence: float
    share: float
    """Of the problems, those whose first answer was less sure."""


@dataclass(frozen=True)
class EvalRow:
    """One method of the table. Seconds are wall-clock time per question: a batch's time divided by its questions."""

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
    """Accuracy by number of reasoning steps, where it is known."""
    calibration_error: float
    """Expected calibration error of `confidence`: 0 if it is the share of right answers."""
    fallback: Fallback | None = None
    """Of a cascade; else None."""
    verification: Verification | None = None
    """What the contemplation tokens say of the answers; None for other methods than CCoT, and for its controls."""
    training: dict[str, History | None] = field(default_factory=dict)
    """The runs of training behind each adapter, `phi` and `psi`, the oldest first; None if they are not known."""


@dataclass(frozen=True)
class Pair:
    """Comparison of two methods on the same problems."""

    method: str
    ratio: float
    than: str
    than_ratio: float
    wins: int
    """Problems that only `method` answers correctly."""
    losses: int
    """Problems that only `than` answers correctly."""
    p: float
    """p value of McNemar's exact test, two-sided."""


@dataclass(frozen=True)
class EvalResult:
    """The whole table."""

    rows: list[EvalRow]
    pairs: list[Pair]
    """Every method compared with answering at once, and with CCoT."""
    traits: dict[str, Traits]
    """What each method puts between query and answer (paper, Table 1)."""
    model: str
    data: str
    batch_size: int
    device: str
    versions: dict[str, str]
    folder: str | None
    """Folder of predictions.jsonl and metrics.json; None if nothing was saved."""


def run(
    workspace: Workspace | None,
    settings: Settings,
    *,
    ratios: Sequence[Decimal] = (),
    names: Sequence[str] = (),
    has_controls: bool = False,
    min_confidence: float | None = None,
    overrides: Sequence[str] = (),
    saves: bool = True,
    progress: Progress,
) -> EvalResult:
    """Evaluate the given methods and ratios; by default all trained ones and the explicit chain.

    Args:
        workspace: None evaluates the embedded model, and saves nothing.
        names: `ccot`, a baseline's name, `zero-shot`, `few-shot`, or `all`.
        has_controls: Evaluate CCoT with replaced contemplation tokens too, to see what the tokens carry.
        min_confidence: Evaluate CCoT also with the chain where its confidence is lower, from 0 to 1.
        saves: Save the result in the workspace.

    Raises:
        MissingError: if a method or a ratio was not trained.
        UsageError: if no test problems are named or left, a batch of one question is too small for the controls, or
            what is measured of CCoT alone is asked for without it.
        BusyError: if another process works on this workspace.
    """
    methods = find_methods(workspace, settings, may_have_none=needs_theta_alone(names, ratios))
    for error in methods.unusable.values():
        progress.say(f"left out: {error.message}; {error.fix}")
    loadable = methods.choose(names, ratios)
    if all(each.name != CCOT for each in loadable):
        _refuse_for_ccot_alone(has_controls, min_confidence)
    problems = problems_to_ask(methods, settings, settings.eval.limit, progress, loadable)
    fallback = None if min_confidence is None else methods.fallback()
    if has_controls and 1 in (settings.eval.batch_size, len(problems) % settings.eval.batch_size):
        raise UsageError(
            f"{len(problems):,} questions in batches of {settings.eval.batch_size} leave one alone, with no other"
            " question to exchange tokens with",
            fix="another --batch-size or --limit",
        )

    def compare() -> tuple[EvalResult, list[dict[str, Any]]]:
        to_measure = _load_each(loadable, has_controls, fallback, min_confidence or 0.0)
        return _compare(methods, to_measure, problems, settings, progress)

    if workspace is None or not saves:
        return compare()[0]
    inputs = _inputs(workspace, loadable, has_fallback=fallback is not None)
    key = ranks.first(lambda: _new_key(workspace))
    spec = ArtifactSpec(EVAL, key, stage_config(settings, EVAL), inputs, tuple(overrides))
    # The build is opened before the measurement, so that a workspace that cannot be written to fails at once.
    with building(workspace, spec, progress) as build:
        ranks.first(lambda: drop_begun(workspace, EVAL, build.folder))
        try:
            result, predictions = compare()
        except BaseException:
            shutil.rmtree(build.folder)
            raise
        return _save(build, result, predictions)


def _refuse_for_ccot_alone(has_controls: bool, min_confidence: float | None) -> None:
    """Refuse what is measured of CCoT alone, if that is not among the methods."""
    for option, is_given in (("--controls", has_controls), ("--min-confidence", min_confidence is not None)):
        if is_given:
            raise UsageError(
                f"{option} is for {CCOT}, which is not evaluated here", fix=f"leave it out, or add --method {CCOT}"
            )


def is_tested_on_training(data: DataConfig) -> bool:
    """Tell whether test problems come from the same file, or the same split of a data set, as those of training."""
    source = data.test_source or data.source
    if source == EMBEDDED or Path(source).resolve() != Path(data.source).resolve():
        return False
    return names_file(source) or data.test_split == data.split


def problems_to_ask(
    methods: Methods,
    settings: Settings,
    limit: int | None,
    progress: Progress,
    loadable: Sequence[LoadableMethod] = (),
    *,
    needs_chains: bool = False,
) -> list[Problem]:
    """Load the test problems, sorted by the length of the question, without those too long for the model.

    It says so if they are those of training.

    Args:
        limit: Most problems; None for all.
        loadable: Methods that will be asked. The prompts into which they put a question count too, and the whole
            solution if one of them reads it.
        needs_chains: Whether solutions are read, as they are if one of the methods reads chains: a problem without a
            chain is refused, and one whose solution is too long is left out.

    Raises:
        UsageError: if no test problems are named, or none is left.
    """
    if is_tested_on_training(methods.data):
        progress.say("warning: the test problems are those of training; name others with data.test_source or --data")
    reads_chains = needs_chains or any(each.name == GOLD for each in loadable)
    problems = load_test(
        methods.data,
        limit=limit,
        seed=settings.eval.seed,
        steps=settings.eval.steps,
        needs_chains=reads_chains,
    )
    if (longest := methods.theta.longest_query) is not None:
        encoder, most = methods.theta.encoder, methods.theta.blocks.num_positions
        prompted = [each.load() for each in loadable if most is not None and each.name in PROMPTING]
        phrasings = [method.phrase for method in prompted if isinstance(method, PromptedMethod)]

        def fits(question: str) -> bool:
            prompts = (encoder.query(phrase(question)) for phrase in phrasings)
            return len(encoder.query(question)) <= longest and all(most is None or len(each) < most for each in prompts)

        short = [problem for problem in problems if fits(problem.question)]
        if reads_chains:
            short = short_enough(methods.theta, short)
        if len(short) < len(problems):
            progress.say(f"{len(problems) - len(short):,} questions are too long for the model: left out")
        if not short:
            raise UsageError(
                "no question is short enough for the model",
                fix="other test problems, another model, or fewer eval.shots",
            )
        problems = short
    return sorted(problems, key=lambda problem: len(problem.question))


def _compare(
    methods: Methods,
    to_measure: Iterable[Method],
    problems: list[Problem],
    settings: Settings,
    progress: Progress,
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """Measure every method, one after the other; return the table and all predictions."""
    rows, predictions, are_right = [], [], []
    for method in to_measure:
        measured = measure(method, problems, settings.eval.batch_size, progress)
        are_right.append(measured.are_right)
        checked = _check_each(problems, measured.replies)
        rows.append(replace(measured.row, verification=_verification(measured, checked)))
        answered = zip(problems, measured.replies, measured.are_right, checked, strict=True)
        predictions += [_prediction(method, *each) for each in answered]
    result = EvalResult(
        rows=rows,
        pairs=_pairs(rows, are_right),
        traits={row.method: traits_of(row.method) for row in rows},
        model=methods.theta.name,
        data=methods.data.test_source or methods.data.source,
        batch_size=settings.eval.batch_size,
        device=methods.theta.device_name,
        versions={"python": platform.python_version(), "torch": torch.__version__},
        folder=None,
    )
    return result, predictions


class Measurement(NamedTuple):
    """One method's figures and replies."""

    row: EvalRow
    replies: list[Reply]
    are_right: list[bool]
    """Whether each reply is right."""


def measure(method: Method, problems: list[Problem], batch_size: int, progress: Progress) -> Measurement:
    """Ask a method all problems in batches, in their order, after one batch to warm up."""
    # Each rank warms up: `ask` hands every batch to one of them.
    warming = problems[:batch_size]
    for _ in ask(method, warming * ranks.size(), len(warming), "warm-up", Progress()):
        pass
    replies: list[Reply] = []
    seconds: list[tuple[int, Seconds]] = []
    label = f"{method.name} r = {method.ratio:f}"
    for batch, batch_replies, batch_seconds in ask(method, problems, batch_size, label, progress):
        replies += batch_replies
        seconds.append((len(batch), batch_seconds))
    are_right = list(map(is_right, problems, replies))
    return Measurement(_row(method, problems, replies, seconds, are_right), replies, are_right)


def _load_each(
    loadable: Sequence[LoadableMethod], has_controls: bool, fallback: Method | None, min_confidence: float
) -> Iterator[Method]:
    """Yield every method, loaded only when it is asked for, because loading one unloads the one before."""
    for each in loadable:
        method = each.load()
        if not isinstance(method, CcotMethod):
            yield method
            continue
        yield replace(method, reads_thoughts=True)
        if fallback:
            yield Cascade(method, fallback, min_confidence)
        if has_controls:
            yield from (replace(method, control=control) for control in CONTROLS)


def _check_each(problems: list[Problem], replies: list[Reply]) -> list[Checked | None]:
    """Check the thoughts behind each reply; None where they were not read."""
    return [
        None if reply.thoughts is None else check_thoughts(problem.question, reply)
        for problem, reply in zip(problems, replies, strict=True)
    ]


def _verification(measured: Measurement, checked: list[Checked | None]) -> Verification | None:
    found = [each for each in checked if each is not None]
    return verification(measured.replies, found, measured.are_right) if found else None


def _pairs(rows: list[EvalRow], are_right: list[list[bool]]) -> list[Pair]:
    """Compare every method with answering at once, and with CCoT if the ratios are equal or the method's is 0 or 1."""
    pairs = []
    for other in range(len(rows)):
        if rows[other].method not in ("direct", "ccot"):
            continue
        for one in range(len(rows)):
            is_of_another_ratio = rows[other].method == "ccot" and rows[one].ratio not in (rows[other].ratio, 0.0, 1.0)
            if one != other and not is_of_another_ratio:
                pairs.append(_pair(rows[one], rows[other], are_right[one], are_right[other]))
    return pairs


def _pair(row: EvalRow, than: EvalRow, are_right: list[bool], are_right_than: list[bool]) -> Pair:
    wins = sum(one and not other for one, other in zip(are_right, are_right_than, strict=True))
    losses = sum(other and not one for one, other in zip(are_right, are_right_than, strict=True))
    return Pair(row.method, row.ratio, than.method, than.ratio, wins, losses, mcnemar(wins, losses))


def _row(
    method: Method,
    problems: list[Problem],
    replies: list[Reply],
    seconds: list[tuple[int, Seconds]],
    are_right: list[bool],
) -> EvalRow:
    """Summarise one method's replies.

    Args:
        seconds: Number of questions and time of every batch.
    """
    n = len(problems)
    overall = wilson(sum(are_right), n)
    per_question = sorted(batch.total / count for count, batch in seconds for _ in range(count))
    right_by_steps: dict[int, list[bool]] = {}
    for problem, right in zip(problems, are_right, strict=True):
        right_by_steps.setdefault(problem.num_steps, []).append(right)
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
        prefill_seconds_mean=sum(batch.prefill for _, batch in seconds) / n,
        contemplation_seconds_mean=sum(batch.contemplation for _, batch in seconds) / n,
        answer_seconds_mean=sum(batch.answer for _, batch in seconds) / n,
        contemplation_tokens_mean=sum(reply.num_contemplation for reply in replies) / n,
        answer_tokens_mean=sum(reply.num_answer for reply in replies) / n,
        truncated_share=sum(reply.is_truncated for reply in replies) / n,
        calibration_error=calibration_error([reply.confidence for reply in replies], are_right),
        fallback=_fallback(method, replies),
        training=method.training,
        by_steps={
            str(steps): wilson(sum(right), len(right)) for steps, right in sorted(right_by_steps.items()) if steps
        },
    )


def _fallback(method: Method, replies: list[Reply]) -> Fallback | None:
    if not isinstance(method, Cascade):
        return None
    return Fallback(method.min_confidence, statistics.fmean(reply.is_fallback for reply in replies))


def _prediction(
    method: Method, problem: Problem, reply: Reply, is_correct: bool, checked: Checked | None
) -> dict[str, Any]:
    said = asdict(replace(reply, thoughts=None))
    del said["thoughts"], said["explanation"]
    return {
        "method": method.name,
        "ratio": float(method.ratio),
        "id": problem.id,
        "question": problem.question,
        "num_steps": problem.num_steps or None,
        "reference": problem.answer,
        "is_correct": is_correct,
        **said,
        "verified": checked and checked.is_answer_verified,
    }


def _inputs(workspace: Workspace, loadable: Sequence[LoadableMethod], *, has_fallback: bool) -> dict[str, str]:
    """Return the fingerprints of the artifacts that are evaluated, and of the chain's if one falls back on it."""
    evaluated = {(each.name, float(each.ratio)) for each in loadable}
    if has_fallback:
        evaluated.add((COT, 1.0))
    return {each.name: each.fingerprint for each in own_methods(workspace)[0] if _method_of(each) in evaluated}


def _save(build: Build, result: EvalResult, predictions: list[dict[str, Any]]) -> EvalResult:
    saved = replace(result, folder=str(build.folder))
    with commit(build.folder / PREDICTIONS_FILE) as part:
        lines = (json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions)
        part.write_text("".join(lines), encoding="utf-8")
    write_json(build.folder / METRICS_FILE, asdict(saved))
    best = max(result.rows, key=lambda row: row.accuracy)
    build.summary.update(rows=len(result.rows), n=best.n, best=best.method, accuracy=best.accuracy)
    return saved


def _method_of(artifact: Artifact) -> tuple[str, float]:
    summary = artifact.manifest.summary
    return summary.get("method", CCOT), float(summary["ratio"])


def _new_key(workspace: Workspace) -> str:
    """Return today's date with the first number that is free, or that a killed evaluation had: `2026-01-31-1`."""
    today, begun = datetime.now(UTC).date().isoformat(), {*workspace.unfinished(EVAL)} - {*workspace.finished(EVAL)}

    def is_free(key: str) -> bool:
        # A kill may also leave a folder that is empty, or holds no more than a draft that was being written.
        return key in begun or all(path.suffix == PART for path in workspace.folder(EVAL, key).glob("*"))

    return next(key for number in count(1) if is_free(key := f"{today}-{number}"))
