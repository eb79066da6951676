"""Compare two evaluations problem by problem."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccot_cli.errors import CorruptError, MissingError, UsageError
from ccot_cli.names import EVAL, PREDICTIONS_FILE
from ccot_cli.stages.statistics import mcnemar, paired_difference
from ccot_cli.workspace.workspace import Workspace

Answered = dict[str, bool]
"""Whether the answer is right, by question."""


@dataclass(frozen=True)
class Comparison:
    """A method's answers in two evaluations, on the problems that both asked."""

    method: str
    ratio: float
    n: int
    """Different questions in both."""
    accuracy: float
    """In the first evaluation, as all that follows is the first against the second."""
    other_accuracy: float
    low: float
    """95 % interval of the difference of the accuracies."""
    high: float
    wins: int
    """Problems that only the first answers correctly."""
    losses: int
    """Problems that only the second answers correctly."""
    p: float
    """p value of McNemar's exact test, two-sided."""


def compare(workspace: Workspace | None, runs: tuple[str, str]) -> list[Comparison]:
    """Compare two evaluations, method by method; if both have a single method, these two, whatever they are.

    Args:
        runs: Each the name of an evaluation in the workspace, such as 2026-01-31-1, or the path of its folder.

    Raises:
        MissingError: if there is no such evaluation.
        CorruptError: if its predictions cannot be read.
        UsageError: if the two have no method or no problem in common.
    """
    first, second = (_predictions(workspace, run) for run in runs)
    common = {method: method for method in first if method in second}
    if not common and len(first) == len(second) == 1:
        common = {next(iter(first)): next(iter(second))}
    if not common:
        has = " and ".join(", ".join(f"{name} at r = {ratio:g}" for name, ratio in each) for each in (first, second))
        raise UsageError(f"the two evaluations have no method in common: {has}", fix="choose two that have")
    return [_compare(*method, first[method], second[other]) for method, other in common.items()]


def _predictions(workspace: Workspace | None, run: str) -> dict[tuple[str, float], Answered]:
    """Read which problems each method of an evaluation answered correctly."""
    folder = Path(run)
    if not (folder / PREDICTIONS_FILE).is_file() and workspace is not None and run in workspace.finished(EVAL):
        folder = workspace.folder(EVAL, run)
    path = folder / PREDICTIONS_FILE
    if not path.is_file():
        there = [key for key in workspace.finished(EVAL) if key] if workspace else []
        fix = f"one of {', '.join(there)}" if there else "name its folder, which ccot eval prints"
        raise MissingError(f"there is no evaluation {run}", fix=fix)
    found: dict[tuple[str, float], Answered] = {}
    try:
        for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n"):
            row: dict[str, Any] = json.loads(line)
            found.setdefault((row["method"], row["ratio"]), {})[row["question"]] = row["is_correct"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path} cannot be read: {error}", fix="run ccot eval again") from error
    return found


def _compare(method: str, ratio: float, first: Answered, second: Answered) -> Comparison:
    questions = first.keys() & second.keys()
    if not questions:
        raise UsageError(f"the two evaluations of {method} have no problem in common", fix="choose two that have")
    n = len(questions)
    wins = sum(first[each] and not second[each] for each in questions)
    losses = sum(second[each] and not first[each] for each in questions)
    low, high = paired_difference(wins, losses, n)
    return Comparison(
        method,
        ratio,
        n,
        sum(first[each] for each in questions) / n,
        sum(second[each] for each in questions) / n,
        low,
        high,
        wins,
        losses,
        mcnemar(wins, losses),
    )
