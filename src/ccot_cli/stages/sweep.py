"""Run the stages over a grid of settings, and compare the cells on the validation problems.

A cell whose settings are the workspace's own is the workspace's own artifact; every other one lies beside it, under a
key that names what differs. So a sweep uses what is ready, goes on where it was stopped, and leaves nothing to undo.
"""

import statistics
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple

from ccot_cli.config import STAGES, Settings, override, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages import score, train_phi, train_psi
from ccot_cli.stages.evaluate import wilson
from ccot_cli.workspace import Workspace


class Dimension(NamedTuple):
    """What a grid may vary beside r."""

    settings: tuple[str, ...]
    prefix: str
    """How a key says it."""
    stage: str
    """The first stage that it matters to."""


DIMENSIONS = {
    "layer": Dimension(("train_phi.autoregressive_layer",), "l", train_phi.STAGE),
    "selector": Dimension(("score.selector",), "", score.STAGE),
    "schedule": Dimension(("train_phi.schedule",), "", train_phi.STAGE),
    "unfreeze": Dimension(("train_psi.unfreeze",), "unfreeze-", train_psi.STAGE),
    "seed": Dimension(("score.seed", "train_phi.seed", "train_psi.seed"), "s", score.STAGE),
}

# The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; beyond these, the normal's.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
_NORMAL = 1.960


@dataclass(frozen=True)
class Cell:
    """One ratio and one choice of settings."""

    ratio: Decimal
    chosen: dict[str, Any]
    """By dimension."""
    differing: list[str]
    """Dimensions in which it is not the workspace's own settings."""

    @property
    def changes(self) -> dict[str, Any]:
        """Settings that are not the workspace's own."""
        return {setting: self.chosen[name] for name in self.differing for setting in DIMENSIONS[name].settings}

    def variant(self, stage: str) -> str:
        """The end of a stage's key, from what matters up to there; empty for the workspace's own settings."""
        named = [name for name in self.differing if STAGES.index(DIMENSIONS[name].stage) <= STAGES.index(stage)]
        return "".join(f"-{DIMENSIONS[name].prefix}{self.chosen[name]}" for name in named)

    def key(self, stage: str) -> str:
        return ratio_name(self.ratio) + self.variant(stage)


@dataclass(frozen=True)
class Row:
    """Cells that differ in nothing but the seed."""

    ratio: float
    layer: int
    selector: str
    schedule: str
    unfreeze: str
    seeds: list[int]
    accuracies: list[float]
    """On the validation problems, by seed."""
    accuracy: float
    """Their mean."""
    low: float
    """95 % interval: Student's over the seeds, Wilson's over the problems where there is one seed."""
    high: float
    num_validation: int
    mean_tokens: float
    end_accuracy: float
    rollout_error: float
    """Scaled error of φ's rollouts before ψ was trained."""
    numbers_read: float
    """Share of φ's states at L from which the chain's next number can be read."""


def cells(settings: Settings, ratios: Rows[Decimal], grid: Mapping[str, Rows[Any]]) -> Iterator[Cell]:
    """The cells of a grid, seeds fastest.

    Args:
        grid: Values by dimension; a dimension without values keeps the setting.
    """
    own = {name: _get(settings, dimension.settings[0]) for name, dimension in DIMENSIONS.items()}
    values = [grid.get(name) or [own[name]] for name in DIMENSIONS]
    for ratio, *choice in product(ratios, *values):
        chosen = dict(zip(DIMENSIONS, choice, strict=True))
        yield Cell(ratio, chosen, [name for name in DIMENSIONS if chosen[name] != own[name]])


def _get(settings: Settings, dotted: str) -> Any:
    section, name = dotted.split(".")
    return getattr(getattr(settings, section), name)


def run(
    workspace: Workspace,
    settings: Settings,
    ratios: Rows[Decimal],
    grid: Mapping[str, Rows[Any]],
    *,
    overrides: Rows[str] = (),
    progress: Progress,
) -> list[Row]:
    """Run what is not ready of every cell, and return the table.

    Raises:
        MissingError: where `precompute` has not run.
    """
    every = list(cells(settings, ratios, grid))
    results: list[tuple[Cell, train_phi.TrainPhiResult, train_psi.TrainPsiResult]] = []
    for number, cell in enumerate(every, start=1):
        progress.say(f"cell {number} of {len(every)}: {cell.key(train_psi.STAGE)}")
        results.append((cell, *_run(workspace, settings, cell, overrides, progress)))
    return list(_rows(results))


def _run(
    workspace: Workspace, settings: Settings, cell: Cell, overrides: Rows[str], progress: Progress
) -> tuple[train_phi.TrainPhiResult, train_psi.TrainPsiResult]:
    """The stages of one cell; what differs later on only is made once for all cells."""
    changed = override(settings, cell.changes)
    shared: dict[str, Any] = {"overrides": (*overrides, *cell.changes), "progress": progress}
    selected, generator = cell.key(score.STAGE), cell.key(train_phi.STAGE)
    score.run(workspace, changed, cell.ratio, variant=cell.variant(score.STAGE), **shared)
    variant = cell.variant(train_phi.STAGE)
    phi = train_phi.run(workspace, changed, cell.ratio, variant=variant, selected=selected, **shared)
    variant = cell.variant(train_psi.STAGE)
    return phi, train_psi.run(workspace, changed, cell.ratio, variant=variant, generator=generator, **shared)


def _rows(results: list[tuple[Cell, train_phi.TrainPhiResult, train_psi.TrainPsiResult]]) -> Iterator[Row]:
    groups: dict[tuple[Any, ...], list[tuple[Cell, train_phi.TrainPhiResult, train_psi.TrainPsiResult]]] = {}
    for result in results:
        cell = result[0]
        same = (cell.ratio, *(value for name, value in cell.chosen.items() if name != "seed"))
        groups.setdefault(same, []).append(result)
    for group in groups.values():
        cell, phis, psis = group[0][0], [phi for _, phi, _ in group], [psi for _, _, psi in group]
        accuracies = [psi.validation_accuracy for psi in psis]
        low, high = interval(accuracies, psis[0].num_validation)
        yield Row(
            ratio=float(cell.ratio),
            **{name: value for name, value in cell.chosen.items() if name != "seed"},
            seeds=[each.chosen["seed"] for each, _, _ in group],
            accuracies=accuracies,
            accuracy=statistics.fmean(accuracies),
            low=low,
            high=high,
            num_validation=psis[0].num_validation,
            mean_tokens=statistics.fmean(psi.mean_tokens for psi in psis),
            end_accuracy=statistics.fmean(psi.end["accuracy"] for psi in psis),
            rollout_error=statistics.fmean(statistics.fmean(phi.report["losses"]) for phi in phis),
            numbers_read=statistics.fmean(phi.report["generated_read"][1] for phi in phis),
        )


def interval(accuracies: list[float], num_problems: int) -> tuple[float, float]:
    """95 %: over seeds where there are several (Student's t), else over problems (Wilson)."""
    if len(accuracies) == 1:
        share = wilson(round(accuracies[0] * num_problems), num_problems)
        return share.low, share.high
    freedom = len(accuracies) - 1
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
    half = quantile * statistics.stdev(accuracies) / len(accuracies) ** 0.5
    mean = statistics.fmean(accuracies)
    return max(0.0, mean - half), min(1.0, mean + half)
