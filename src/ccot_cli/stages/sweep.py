"""Run the stages over a grid of methods and settings, and compare the cells on the same problems.

A cell whose settings are the workspace's own is the workspace's own artifact; every other one lies beside it, under a
key that names what differs. So a sweep uses what is ready, goes on where it was stopped, and leaves nothing to undo.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple

from ccot_cli.config import Settings, override
from ccot_cli.data.problems import Problem
from ccot_cli.errors import UsageError
from ccot_cli.models.methods.loading import fixed_ratio
from ccot_cli.models.training.recipes.registry import RECIPES
from ccot_cli.names import SCORE, STAGES, TRAIN_BASELINE, TRAIN_PHI, TRAIN_PSI, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages import score, train_baseline, train_phi, train_psi
from ccot_cli.stages.evaluate import measure, problems_to_ask
from ccot_cli.stages.methods import CCOT, Methods, baseline_key, find_methods
from ccot_cli.stages.statistics import interval
from ccot_cli.workspace.workspace import Workspace


class Dimension(NamedTuple):
    """A setting that a grid may vary, beside the method and r."""

    settings: tuple[str, ...]
    prefix: str
    """How a key says it."""
    stage: str
    """The first stage that it matters to."""


DIMENSIONS = {
    "layer": Dimension(("train_phi.autoregressive_layer",), "l", TRAIN_PHI),
    "selector": Dimension(("score.selector",), "", SCORE),
    "schedule": Dimension(("train_phi.schedule",), "", TRAIN_PHI),
    "unfreeze": Dimension(("train_psi.unfreeze",), "unfreeze-", TRAIN_PSI),
    "ends": Dimension(("train_psi.ends",), "", TRAIN_PSI),
    "epochs": Dimension(("train_psi.epochs",), "e", TRAIN_PSI),
    "seed": Dimension(("score.seed", "train_phi.seed", "train_psi.seed"), "s", SCORE),
}


@dataclass(frozen=True)
class Cell:
    """One method at one ratio, with one choice of settings."""

    method: str
    ratio: Decimal
    chosen: dict[str, Any]
    """By dimension."""
    differing: tuple[str, ...]
    """Dimensions in which it is not the workspace's own settings."""

    @property
    def changes(self) -> dict[str, Any]:
        """Settings that are not the workspace's own."""
        return {setting: self.chosen[name] for name in self.differing for setting in DIMENSIONS[name].settings}

    @property
    def stage(self) -> str:
        """The stage whose artifact answers."""
        return TRAIN_PSI if self.method == CCOT else TRAIN_BASELINE

    def variant(self, stage: str) -> str:
        """The end of a stage's key, from what matters up to there; empty for the workspace's own settings."""
        named = [name for name in self.differing if STAGES.index(DIMENSIONS[name].stage) <= STAGES.index(stage)]
        return "".join(f"-{DIMENSIONS[name].prefix}{self.chosen[name]}" for name in named)

    def key(self, stage: str) -> str:
        is_baseline = stage == TRAIN_BASELINE
        start = baseline_key(self.method, self.ratio) if is_baseline else ratio_name(self.ratio)
        return start + self.variant(stage)


@dataclass(frozen=True)
class SweepRow:
    """Cells that differ in nothing but the seed."""

    method: str
    ratio: float
    layer: int
    selector: str
    schedule: str
    unfreeze: str
    ends: str
    epochs: int
    seeds: list[int]
    num_steps: int
    """Optimiser steps of ψ, or of the baseline."""
    accuracies: list[float]
    """By seed."""
    accuracy: float
    """Their mean."""
    low: float
    """95 % interval: Student's over the seeds, Wilson's over the problems where there is one seed."""
    high: float
    n: int
    """Problems."""
    split: str
    """`validation` or `test`."""
    mean_tokens: float
    """Tokens between query and answer."""
    seconds: float | None
    """Median per question, in batches; measured on test problems only."""
    end_accuracy: float | None = None
    rollout_error: float | None = None
    """Scaled error of φ's rollouts before ψ was trained."""
    numbers_read: float | None = None
    """Share of φ's states at L from which the chain's next number can be read."""


@dataclass(frozen=True)
class _Result:
    """What came of one cell."""

    num_steps: int
    accuracy: float
    mean_tokens: float
    n: int
    figures: dict[str, Any]
    """Those that only CCoT has."""
    seconds: float | None = None


def cells(
    settings: Settings, ratios: Sequence[Decimal], grid: Mapping[str, Sequence[Any]], methods: Sequence[str] = (CCOT,)
) -> Iterator[Cell]:
    """The cells of a grid, seeds fastest.

    Args:
        grid: Values by dimension; a dimension without values keeps the setting.
        methods: `ccot` and baselines; one with a ratio of its own comes once.
    """
    own = {name: _get(settings, dimension.settings[0]) for name, dimension in DIMENSIONS.items()}
    seen = set()
    for method, ratio in product(methods, ratios):
        values = [grid.get(name) or [own[name]] if _has(method, name) else [own[name]] for name in DIMENSIONS]
        fixed = None if method == CCOT else fixed_ratio(method)
        for choice in product(*values):
            chosen = dict(zip(DIMENSIONS, choice, strict=True))
            differing = tuple(name for name in DIMENSIONS if chosen[name] != own[name])
            cell = Cell(method, ratio if fixed is None else fixed, chosen, differing)
            if (cell.stage, cell.key(cell.stage)) not in seen:
                seen.add((cell.stage, cell.key(cell.stage)))
                yield cell


def _has(method: str, dimension: str) -> bool:
    """Whether a dimension matters to a method: to a baseline, epochs, seeds, and what it reads of the gold states."""
    if method == CCOT or dimension in ("epochs", "seed"):
        return True
    return dimension == "selector" and RECIPES[method].reads_gold


def _get(settings: Settings, dotted: str) -> Any:
    section, name = dotted.split(".")
    return getattr(getattr(settings, section), name)


def run(
    workspace: Workspace,
    settings: Settings,
    ratios: Sequence[Decimal],
    grid: Mapping[str, Sequence[Any]],
    *,
    methods: Sequence[str] = (CCOT,),
    num_test: int | None = None,
    overrides: Sequence[str] = (),
    progress: Progress,
) -> list[SweepRow]:
    """Run what is not ready of every cell, and return the table.

    Args:
        num_test: How many test problems to compare on; without it, the validation problems.

    Raises:
        MissingError: where `precompute` has not run.
        UsageError: where no test problems are named, or settings that a sweep changes together differ.
    """
    _refuse_mixed(settings)
    every = list(cells(settings, ratios, grid, methods))
    results: list[tuple[Cell, _Result]] = []
    for number, cell in enumerate(every, start=1):
        progress.say(f"cell {number} of {len(every)}: {cell.method} {cell.key(cell.stage)}")
        results.append((cell, _train(workspace, settings, cell, overrides, progress)))
    if num_test is not None:
        found = find_methods(workspace, settings, may_have_none=True)
        tests = problems_to_ask(found, settings, num_test, progress)
        results = [(cell, _test(workspace, found, cell, result, tests, progress)) for cell, result in results]
    return list(_rows(results, "validation" if num_test is None else "test"))


def _refuse_mixed(settings: Settings) -> None:
    """A row names one value of each dimension."""
    for name, dimension in DIMENSIONS.items():
        if len({_get(settings, setting) for setting in dimension.settings}) > 1:
            raise UsageError(
                f"{', '.join(dimension.settings)} differ in ccot.yaml, and a sweep has one {name} for all",
                fix="give them one value there",
            )


def _train(
    workspace: Workspace, settings: Settings, cell: Cell, overrides: Sequence[str], progress: Progress
) -> _Result:
    """The stages of one cell; what differs later on only is made once for all cells."""
    changed = override(settings, cell.changes)
    shared: dict[str, Any] = {"overrides": (*overrides, *cell.changes), "progress": progress}
    selected, generator, variant = cell.key(SCORE), cell.key(TRAIN_PHI), cell.variant
    if cell.method == CCOT or RECIPES[cell.method].reads_gold:
        score.run(workspace, changed, cell.ratio, variant=variant(SCORE), **shared)
    if cell.method != CCOT:
        end = variant(TRAIN_BASELINE)
        made = train_baseline.run(workspace, changed, cell.method, cell.ratio, variant=end, selected=selected, **shared)
        return _Result(made.num_steps, made.validation_accuracy, made.mean_tokens, made.num_validation, {})
    phi = train_phi.run(workspace, changed, cell.ratio, variant=variant(TRAIN_PHI), selected=selected, **shared)
    psi = train_psi.run(workspace, changed, cell.ratio, variant=variant(TRAIN_PSI), generator=generator, **shared)
    figures = {
        "end_accuracy": psi.end["accuracy"],
        "rollout_error": statistics.fmean(phi.report["losses"]),
        "numbers_read": phi.report["generated_read"][1],
    }
    return _Result(psi.num_steps, psi.validation_accuracy, psi.mean_tokens, psi.num_validation, figures)


def _test(
    workspace: Workspace, found: Methods, cell: Cell, result: _Result, tests: list[Problem], progress: Progress
) -> _Result:
    """The same cell on test problems."""
    method = found.load_folder(workspace.require(cell.stage, cell.key(cell.stage)).folder)
    row = measure(method, tests, found.settings.eval.batch_size, progress).row
    tokens, seconds = row.contemplation_tokens_mean, row.seconds_mean
    return replace(result, accuracy=row.accuracy, mean_tokens=tokens, n=row.n, seconds=seconds)


def _rows(results: list[tuple[Cell, _Result]], split: str) -> Iterator[SweepRow]:
    groups: dict[tuple[Any, ...], list[tuple[Cell, _Result]]] = {}
    for cell, result in results:
        same = (cell.method, cell.ratio, *(value for name, value in cell.chosen.items() if name != "seed"))
        groups.setdefault(same, []).append((cell, result))
    for group in groups.values():
        cell, every = group[0][0], [result for _, result in group]
        accuracies = [each.accuracy for each in every]
        low, high = interval(accuracies, every[0].n)
        seconds = [each.seconds for each in every if each.seconds is not None]
        figures: dict[str, Any] = {
            name: statistics.fmean(each.figures[name] for each in every) for name in every[0].figures
        }
        yield SweepRow(
            method=cell.method,
            ratio=float(cell.ratio),
            **{name: value for name, value in cell.chosen.items() if name != "seed"},
            seeds=[each.chosen["seed"] for each, _ in group],
            num_steps=every[0].num_steps,
            accuracies=accuracies,
            accuracy=statistics.fmean(accuracies),
            low=low,
            high=high,
            n=every[0].n,
            split=split,
            mean_tokens=statistics.fmean(each.mean_tokens for each in every),
            seconds=statistics.median(seconds) if seconds else None,
            **figures,
        )
