"""How well a trained method does on the validation problems."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ccot_cli.config import Settings
from ccot_cli.data.answers import is_correct
from ccot_cli.data.problems import Problem
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.loading import load_reasoner
from ccot_cli.models.methods.method import Reasoner, Reply, Seconds, reply_in_parts
from ccot_cli.models.training.recipes.gold import GoldReasoner
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score
from ccot_cli.workspace import Artifact


def caps(settings: Settings) -> dict[str, Any]:
    """What of decoding bears on the figures."""
    return settings.decoding.model_dump(exclude={"engine"})


def changed_figures(
    measured_with: dict[str, Any], settings: Settings, source: Artifact, ready: Artifact, progress: Progress
) -> dict[str, Any]:
    """The figures of a ready method that are others under the present caps; nothing where the caps are the same.

    Args:
        measured_with: The caps of its figures; empty where they are not known.
        source: The hidden states, and the validation problems.
    """
    if measured_with in ({}, caps(settings)):
        return {}
    theta = score.load_matching_theta(settings, source)
    held_out = [item.problem for item in precompute.read_problems(source) if item.is_validation]
    accuracy, mean_tokens = validate(theta, Adapters(theta), ready.folder, held_out, settings, progress)
    return {"validation_accuracy": accuracy, "mean_tokens": mean_tokens, "decoding": caps(settings)}


def validate(
    theta: Theta, adapters: Adapters, folder: Path, problems: Sequence[Problem], settings: Settings, progress: Progress
) -> tuple[float, float]:
    """Accuracy of a trained folder, and its mean number of tokens before the answer, decoding freely."""
    reasoner = load_reasoner(theta, adapters, folder, decoding=settings.decoding)
    return accuracy_of(reasoner, problems, settings.eval.batch_size, progress)


def accuracy_of(
    reasoner: Reasoner, problems: Sequence[Problem], batch_size: int, progress: Progress
) -> tuple[float, float]:
    """Accuracy of a method, and its mean number of tokens before the answer."""
    marks: list[bool] = []
    num_tokens = 0
    for batch, replies, _ in ask(reasoner, problems, batch_size, "validation", progress):
        marks += map(is_right, batch, replies)
        num_tokens += sum(reply.num_contemplation for reply in replies)
    return fmean(marks), num_tokens / len(problems)


def ask(
    reasoner: Reasoner, problems: Sequence[Problem], batch_size: int, label: str, progress: Progress
) -> Iterator[tuple[Sequence[Problem], list[Reply], Seconds]]:
    """Ask a method everything, in batches as the problems come; what it replies, and how long that took."""
    if isinstance(reasoner, GoldReasoner):
        reasoner.show(problems)
    with progress.task(label, total=len(problems), unit="problems") as advance:
        for start in range(0, len(problems), batch_size):
            batch = problems[start : start + batch_size]
            yield batch, *reply_in_parts(reasoner, [problem.question for problem in batch])
            advance(len(batch))


def is_right(problem: Problem, reply: Reply) -> bool:
    return is_correct(reply.answer, problem.answer)
