"""How well a trained method does on the validation problems."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ccot_cli.config import Settings
from ccot_cli.data.answers import is_correct
from ccot_cli.data.problems import Problem
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.methods.gold import GoldMethod
from ccot_cli.models.methods.loading import load_method
from ccot_cli.models.methods.method import Method, Reply, Seconds, reply_in_parts
from ccot_cli.names import PRECOMPUTE
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import load_matching_theta, read_problems
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.workspace import Workspace


def caps(settings: Settings) -> dict[str, Any]:
    """What of decoding bears on the figures."""
    return settings.decoding.model_dump(exclude={"engine"})


def changed_figures(
    measured_with: dict[str, Any], workspace: Workspace, settings: Settings, spec: ArtifactSpec, progress: Progress
) -> dict[str, Any]:
    """Measure a finished method again if the caps have changed; empty if they have not.

    Args:
        measured_with: The caps of its figures; empty if they are not known.
        spec: The finished method's.
    """
    if measured_with in ({}, caps(settings)):
        return {}
    source, ready = workspace.require(PRECOMPUTE), workspace.require(spec.stage, spec.key)
    adapters = Adapters(load_matching_theta(settings, source))
    held_out = [item.problem for item in read_problems(source) if item.is_validation]
    accuracy, mean_tokens = validate(adapters, ready.folder, held_out, settings, progress)
    return {"validation_accuracy": accuracy, "mean_tokens": mean_tokens, "decoding": caps(settings)}


def validate(
    adapters: Adapters, folder: Path, problems: Sequence[Problem], settings: Settings, progress: Progress
) -> tuple[float, float]:
    """Accuracy of a trained folder, and its mean number of tokens before the answer, decoding freely."""
    method = load_method(adapters, folder, settings.decoding)
    return accuracy_of(method, problems, settings.eval.batch_size, progress)


def accuracy_of(
    method: Method, problems: Sequence[Problem], batch_size: int, progress: Progress
) -> tuple[float, float]:
    """Accuracy of a method, and its mean number of tokens before the answer."""
    marks: list[bool] = []
    num_tokens = 0
    for batch, replies, _ in ask(method, problems, batch_size, "validation", progress):
        marks += map(is_right, batch, replies)
        num_tokens += sum(reply.num_contemplation for reply in replies)
    return fmean(marks), num_tokens / len(problems)


def ask(
    method: Method, problems: Sequence[Problem], batch_size: int, label: str, progress: Progress
) -> Iterator[tuple[Sequence[Problem], list[Reply], Seconds]]:
    """Ask a method everything, in batches as the problems come; what it replies, and how long that took."""
    if isinstance(method, GoldMethod):
        method.show(problems)
    with progress.task(label, total=len(problems), unit="problems") as advance:
        for start in range(0, len(problems), batch_size):
            batch = problems[start : start + batch_size]
            yield batch, *reply_in_parts(method, [problem.question for problem in batch])
            advance(len(batch))


def is_right(problem: Problem, reply: Reply) -> bool:
    return is_correct(reply.answer, problem.answer)
