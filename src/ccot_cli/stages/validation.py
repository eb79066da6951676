"""Measure a trained method on the validation problems."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ccot_cli import ranks
from ccot_cli.config import Settings
from ccot_cli.data.answers import is_correct
from ccot_cli.data.batches import cut
from ccot_cli.data.problems import Problem
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.methods.calibration import LEAST_OF_EACH, Calibration
from ccot_cli.models.methods.gold import GoldMethod
from ccot_cli.models.methods.loading import load_method
from ccot_cli.models.methods.method import Method, Reply, Seconds, reply_in_parts
from ccot_cli.names import PRECOMPUTE
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import load_matching_theta
from ccot_cli.stages.problems import read_problems
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec, read_whole
from ccot_cli.workspace.workspace import Workspace

MOST_JUDGED = 256
"""Validation problems, at most, that ψ is judged on while it is trained."""


def caps(settings: Settings) -> dict[str, Any]:
    """Return the decoding settings that the figures depend on: the caps, but not the engine."""
    return settings.decoding.model_dump(exclude={"engine"})


def changed_figures(
    measured_with: dict[str, Any], workspace: Workspace, settings: Settings, spec: ArtifactSpec, progress: Progress
) -> dict[str, Any]:
    """Measure a finished method again if the caps have changed since.

    Args:
        measured_with: The caps that its figures were measured with; empty if they are not known.
        spec: The specification of its artifact.

    Returns:
        The figures that replace those of its result; empty if the caps are the same or not known.
    """
    if measured_with in ({}, caps(settings)):
        return {}
    source = workspace.require(PRECOMPUTE)
    adapters = Adapters(load_matching_theta(settings, source))
    held_out = [item.problem for item in read_problems(source) if item.is_validation]

    def measure(ready: Artifact | None) -> Validated:
        ready = ready or workspace.require(spec.stage, spec.key)
        ready.check()
        return validate(adapters, ready.folder, held_out, settings, progress)

    found = read_whole(workspace.folder(spec.stage, spec.key), measure)
    return {"validation_accuracy": found.accuracy, "mean_tokens": found.mean_tokens, "decoding": caps(settings)}


class Validated(NamedTuple):
    """How a method did on the validation problems."""

    scores: list[float]
    """Confidence of each reply; before calibration, if the method has none."""
    are_right: list[bool]
    mean_tokens: float
    """Mean number of tokens between query and answer."""

    @property
    def accuracy(self) -> float:
        return fmean(self.are_right)


def validate(
    adapters: Adapters, folder: Path, problems: Sequence[Problem], settings: Settings, progress: Progress
) -> Validated:
    """Measure the method in a folder, without its calibration."""
    method = load_method(adapters, folder, settings.decoding)
    method.calibration = None
    return validate_method(method, problems, settings.eval.batch_size, progress)


def validate_method(method: Method, problems: Sequence[Problem], batch_size: int, progress: Progress) -> Validated:
    """Ask a method the validation problems."""
    marks: list[bool] = []
    replies: list[Reply] = []
    for batch, batch_replies, _ in ask(method, problems, batch_size, "validation", progress):
        marks += map(is_right, batch, batch_replies)
        replies += batch_replies
    mean_tokens = fmean(reply.num_contemplation for reply in replies)
    return Validated([reply.confidence for reply in replies], marks, mean_tokens)


def calibrate(found: Validated, folder: Path, progress: Progress) -> None:
    """Fit what makes the confidence of a method a probability, and write it into its folder; say so if that fails."""
    calibration = Calibration.fit(found.scores, found.are_right)
    if calibration is not None:
        calibration.save(folder)
        return
    progress.say(
        f"confidence is not calibrated: of {len(found.scores):,} validation answers {sum(found.are_right):,} are right;"
        f" at least {LEAST_OF_EACH} have to be right, {LEAST_OF_EACH} wrong, and the right ones surer"
    )


def ask(
    method: Method, problems: Sequence[Problem], batch_size: int, label: str, progress: Progress
) -> Iterator[tuple[Sequence[Problem], list[Reply], Seconds]]:
    """Ask a method all problems in batches, in their order; yield each batch with its replies and its time."""
    if isinstance(method, GoldMethod):
        method.show(problems)
    batches = cut(problems, batch_size)
    shared = ranks.share(batches, lambda batch: reply_in_parts(method, [problem.question for problem in batch]))
    with progress.task(label, total=len(problems), unit="problems") as advance:
        for batch, replied in zip(batches, shared, strict=True):
            yield batch, *replied
            advance(len(batch))


def is_right(problem: Problem, reply: Reply) -> bool:
    """Tell whether a reply's answer is that of its problem."""
    return is_correct(reply.answer, problem.answer)
