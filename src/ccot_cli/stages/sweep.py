"""Run the stages over a grid of methods and settings, and compare the cells on the same problems.

A cell with the workspace's own settings is the workspace's own artifact. Every other cell lies beside it, under a key
that names what differs. So a sweep reuses what is ready, resumes if it was stopped, and changes no setting.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import sha256
from itertools import product
from typing import Any, NamedTuple

from ccot_cli.config import WITHOUT_EFFECT, Settings, stage_config
from ccot_cli.data.problems import Problem
from ccot_cli.errors import UsageError
from ccot_cli.models.methods.loading import fixed_ratio
from ccot_cli.models.training.recipes.registry import RECIPES
from ccot_cli.names import CCOT, GOLD, PRECOMPUTE, SCORE, STAGES, TRAIN_BASELINE, TRAIN_PHI, TRAIN_PSI, ratio_name
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import score, train_baseline, train_phi, train_psi
from ccot_cli.stages.evaluate import measure, problems_to_ask
from ccot_cli.stages.inputs import load_matching_theta
from ccot_cli.stages.methods import Methods, baseline_key, find_methods
from ccot_cli.stages.statistics import interval
from ccot_cli.workspace.workspace import Workspace


class Dimension(NamedTuple):
    """A dimension of the grid, beside the method and the ratio."""

    settings: tuple[str, ...]
    """The settings that it changes together, as `section.setting`."""
    prefix: str
    """Text before its value in a key, as in `l4` and `s1`."""


DIMENSIONS = {
    "layer": Dimension(("train_phi.autoregressive_layer",), "l"),
    "selector": Dimension(("score.selector",), ""),
    "schedule": Dimension(("train_phi.schedule",), ""),
    "unfreeze": Dimension(("train_psi.unfreeze",), "unfreeze-"),
    "ends": Dimension(("train_psi.ends",), ""),
    "epochs": Dimension(("train_psi.epochs",), "e"),
    "problems": Dimension(("train_psi.limit", "train_phi.limit"), "n"),
    "seed": Dimension(("score.seed", "train_phi.seed", "train_psi.seed"), "s"),
}
"""Dimensions with a name of their own. Any other one is a single setting, by its name."""
SECTIONS = ("score", "train_phi", "train_psi")
"""Sections whose settings may be varied."""


def _dimension(name: str) -> Dimension:
    if name in DIMENSIONS:
        return DIMENSIONS[name]
    return Dimension((name,), re.sub(r"[._]", "-", name.removeprefix("train_")) + "-")


def _in_key(value: Any) -> str:
    """Write a value as a part of a folder's name; a text that is no plain word, such as a path, ends in its hash."""
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    if re.fullmatch("[a-z]{1,16}", value) and value != "null":
        return value
    readable = re.sub("[^a-z0-9.]+", "-", value.lower())[-32:].strip("-")
    return f"{readable}-{sha256(ascii(value).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Cell:
    """One method at one ratio, with one choice of settings."""

    method: str
    ratio: Decimal
    values: dict[str, Any]
    """By dimension."""
    differing: dict[str, str]
    """Dimensions whose values are not those of the workspace's own settings, each with the first stage it changes."""

    @property
    def changes(self) -> dict[str, Any]:
        """Settings that differ from the workspace's own, as `section.setting`."""
        return _changes({name: self.values[name] for name in self.differing})

    @property
    def stage(self) -> str:
        """The stage that makes the method."""
        return TRAIN_PSI if self.method == CCOT else TRAIN_BASELINE

    def variant(self, stage: str) -> str:
        """Return the end of a stage's key: the differing values that matter up to that stage."""
        names = [name for name, first in self.differing.items() if STAGES.index(first) <= STAGES.index(stage)]
        return "".join(f"-{_dimension(name).prefix}{_in_key(self.values[name])}" for name in names)

    def key(self, stage: str) -> str:
        """Return the key of the stage's artifact for this cell."""
        is_baseline = stage == TRAIN_BASELINE
        start = baseline_key(self.method, self.ratio) if is_baseline else ratio_name(self.ratio)
        return start + self.variant(stage)


def _changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that dimensions with these values change."""
    return {setting: value for name, value in values.items() for setting in _dimension(name).settings}


@dataclass(frozen=True)
class SweepRow:
    """Cells that differ in nothing but the seed."""

    method: str
    ratio: float
    layer: int | str
    """`auto` if the setting is that."""
    selector: str
    schedule: str
    unfreeze: str
    ends: str
    epochs: int
    problems: int | None
    """Most training problems of ψ, or of the baseline; None: all."""
    settings: dict[str, Any]
    """Values of other settings that the sweep varies, such as `train_phi.learning_rate`."""
    seeds: list[int]
    num_steps: int
    """Optimiser steps of ψ, or of the baseline."""
    accuracies: list[float]
    """By seed."""
    accuracy: float
    """Mean over the seeds."""
    low: float
    """Lower end of the 95 % interval, over problems (Wilson) and over seeds (Student's t)."""
    high: float
    n: int
    """Number of problems."""
    split: str
    """`validation` or `test`."""
    mean_tokens: float
    """Mean number of tokens between query and answer."""
    seconds: float | None
    """Mean time per question in batches, as the median over the seeds; None on validation problems."""
    end_accuracy: float | None = None
    """Proportion of validation tokens that END is right about; None for baselines, like the figures below."""
    rollout_error: float | None = None
    """Scaled error of φ's rollouts before ψ was trained."""
    numbers_read: float | None = None
    """Proportion of φ's states at L from which the chain's next number can be read."""


@dataclass(frozen=True)
class _CellResult:
    """Figures of one cell."""

    num_steps: int
    accuracy: float
    mean_tokens: float
    n: int
    ccot_figures: dict[str, Any]
    """Figures of CCoT alone, named as in `SweepRow`; empty for baselines."""
    seconds: float | None = None


def cells(
    settings: Settings, ratios: Sequence[Decimal], grid: Mapping[str, Sequence[Any]], methods: Sequence[str] = (CCOT,)
) -> Iterator[Cell]:
    """Yield the cells of a grid; seeds vary fastest.

    Args:
        settings: The workspace's own.
        grid: Values by dimension; one without values keeps its setting, as does one on which a method does not depend.
        methods: `ccot` and baselines; a method with a fixed ratio appears once.

    Raises:
        UsageError: if a value is refused.
    """
    names = [*sorted(grid.keys() - DIMENSIONS.keys()), *DIMENSIONS]
    own = {name: _get(settings, _dimension(name).settings[0]) for name in names}
    seen = set()
    for method, ratio in product(methods, ratios):
        fixed = None if method == CCOT else fixed_ratio(method)
        for choice in product(*(grid.get(name) or [own[name]] for name in names)):
            asked = {name: value for name, value in zip(names, choice, strict=True) if value != own[name]}
            differing = _differing(settings, own, asked, method)
            values = {name: asked[name] if name in differing else own[name] for name in names}
            cell = Cell(method, ratio if fixed is None else fixed, values, differing)
            if (cell.stage, cell.key(cell.stage)) not in seen:
                seen.add((cell.stage, cell.key(cell.stage)))
                yield cell


def _differing(settings: Settings, own: Mapping[str, Any], asked: Mapping[str, Any], method: str) -> dict[str, str]:
    """Return the dimensions on which a method's result depends, each with the first stage that it changes.

    Args:
        own: The workspace's own values, by dimension.
        asked: Other values.
    """
    changed, differing = override(settings, _changes(asked)), dict[str, str]()
    for name in asked:
        without = override(changed, _changes({name: own[name]}))
        for stage in _stages_of(method):
            if stage_config(changed, stage) != stage_config(without, stage):
                differing.setdefault(name, stage)
    return differing


def _stages_of(method: str) -> tuple[str, ...]:
    """Return the stages that make a method after `precompute`, in order."""
    if method == CCOT:
        return (SCORE, TRAIN_PHI, TRAIN_PSI)
    return (SCORE, TRAIN_BASELINE) if RECIPES[method].reads_gold else (TRAIN_BASELINE,)


def with_varied(
    settings: Settings, grid: Mapping[str, Sequence[Any]], varied: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """Add values of any settings to a grid; a setting with a dimension of its own is varied as that one.

    Args:
        settings: The workspace's own.
        grid: Values by dimension.
        varied: Values by setting, as `section.setting`.

    Raises:
        UsageError: if no such setting may be varied, it is varied already, or a value is refused.
    """
    own_dimension = {dimension.settings: name for name, dimension in DIMENSIONS.items()}
    found = dict(grid)
    for setting, values in varied.items():
        section = setting.partition(".")[0]
        if section in Settings.model_fields and section not in SECTIONS:
            raise UsageError(
                f"{setting} cannot be varied: all cells share the model, problems and decoding of their workspace",
                fix=f"vary settings of {', '.join(SECTIONS)}, or sweep another workspace too, with its own {setting}",
            )
        if taken := [name for name in grid if setting in _dimension(name).settings]:
            raise UsageError(f"{setting} is varied twice", fix=f"leave out --vary {setting}=…, or --{taken[0]}")
        name = own_dimension.get((setting,), setting)
        found[name] = [_get(override(settings, {setting: value}), setting) for value in values]
    return found


def _may_vary(setting: str) -> bool:
    section, _, name = setting.partition(".")
    return section in SECTIONS and name not in WITHOUT_EFFECT.get(section, ())


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
    """Run the stages of every cell that are not ready, and return the table: a row for each group of seeds.

    Args:
        settings: The workspace's own, changed by what the command line gave for every cell.
        num_test: How many test problems to compare on; None compares on the validation problems.
        overrides: Settings, as `section.setting`, that the command line gave.

    Raises:
        MissingError: if `precompute` has not run.
        UsageError: if no test problems are named, a value is refused or has no effect, settings that a dimension
            changes together differ, or a cell cannot be trained.
        BusyError: if another process works on this workspace, and a cell is not made yet.
    """
    # What the command line sets for all cells is in their keys, too: none of them replaces the workspace's own.
    given = [name for name in overrides if _may_vary(name)]
    own = override(settings, {name: _get(workspace.settings, name) for name in given})
    in_grid = {setting for name in grid for setting in _dimension(name).settings}
    fixed = {name: [_get(settings, name)] for name in given if name not in in_grid}
    _refuse_mixed(own, ("seed", *grid))
    grid_cells = list(cells(own, ratios, with_varied(own, grid, fixed), methods))
    _refuse_useless(own, grid, grid_cells)
    if any(workspace.artifact(cell.stage, cell.key(cell.stage)) is None for cell in grid_cells):
        workspace.refuse_while_busy()
        _refuse_impossible(workspace, settings, grid_cells)
    results: list[tuple[Cell, _CellResult]] = []
    for number, cell in enumerate(grid_cells, start=1):
        progress.say(f"cell {number} of {len(grid_cells)}: {cell.method} {cell.key(cell.stage)}")
        results.append((cell, _train(workspace, settings, cell, overrides, progress)))
    if num_test is not None:
        available = find_methods(workspace, settings, may_have_none=True)
        problems = problems_to_ask(available, settings, num_test, progress, needs_chains=GOLD in methods)
        results = [(cell, _test(workspace, available, cell, result, problems, progress)) for cell, result in results]
    return list(_rows(results, "validation" if num_test is None else "test"))


def _refuse_mixed(settings: Settings, names: Sequence[str]) -> None:
    """Refuse settings that give one of these dimensions several values, because a row of the table names only one."""
    for together in (_dimension(name).settings for name in names):
        if len({_get(settings, setting) for setting in together}) > 1:
            raise UsageError(
                f"{', '.join(together)} differ in ccot.yaml, but a sweep has one value for all of them",
                fix="give them the same value in ccot.yaml",
            )


def _refuse_useless(settings: Settings, grid: Mapping[str, Sequence[Any]], grid_cells: Sequence[Cell]) -> None:
    """Refuse to vary a setting on which no cell depends, such as how much memory a stage takes."""
    for name, values in grid.items():
        has_effect = any(name in cell.differing for cell in grid_cells)
        if values and not has_effect and {*values} != {_get(settings, _dimension(name).settings[0])}:
            option = f"--{name}" if name in DIMENSIONS else f"--vary {name}=…"
            raise UsageError(f"{name} changes no result of this sweep", fix=f"leave out {option}")


def _refuse_impossible(workspace: Workspace, settings: Settings, grid_cells: Sequence[Cell]) -> None:
    """Refuse a grid of which any cell cannot be trained, before the first one is."""
    for cell in grid_cells:
        if cell.method != CCOT:
            RECIPES[cell.method].check(override(settings, cell.changes).train_psi)
    if ours := [cell for cell in grid_cells if cell.method == CCOT]:
        theta = load_matching_theta(settings, workspace.require(PRECOMPUTE))
        for cell in ours:
            train_phi.check(override(settings, cell.changes).train_phi, theta)


def _train(
    workspace: Workspace, settings: Settings, cell: Cell, overrides: Sequence[str], progress: Progress
) -> _CellResult:
    """Run the stages of one cell. Cells that differ only in later stages share the artifacts of the earlier ones."""
    changed = override(settings, cell.changes)
    common: dict[str, Any] = {"overrides": (*overrides, *cell.changes), "progress": progress}
    selected, generator, variant = cell.key(SCORE), cell.key(TRAIN_PHI), cell.variant
    if SCORE in _stages_of(cell.method):
        score.run(workspace, changed, cell.ratio, variant=variant(SCORE), **common)
    if cell.method != CCOT:
        end = variant(TRAIN_BASELINE)
        base = train_baseline.run(workspace, changed, cell.method, cell.ratio, variant=end, selected=selected, **common)
        return _CellResult(base.num_steps, base.validation_accuracy, base.mean_tokens, base.num_validation, {})
    phi = train_phi.run(workspace, changed, cell.ratio, variant=variant(TRAIN_PHI), selected=selected, **common)
    psi = train_psi.run(workspace, changed, cell.ratio, variant=variant(TRAIN_PSI), generator=generator, **common)
    figures = {
        "end_accuracy": psi.end["accuracy"],
        "rollout_error": statistics.fmean(phi.report["losses"]),
        "numbers_read": phi.report["generated_read"][1],
    }
    return _CellResult(psi.num_steps, psi.validation_accuracy, psi.mean_tokens, psi.num_validation, figures)


def _test(
    workspace: Workspace,
    available: Methods,
    cell: Cell,
    result: _CellResult,
    problems: list[Problem],
    progress: Progress,
) -> _CellResult:
    """Measure a trained cell on test problems, and return its result with the new figures."""
    workspace.require(cell.stage, cell.key(cell.stage))
    method = available.load_folder(workspace.folder(cell.stage, cell.key(cell.stage)))
    row = measure(method, problems, available.settings.eval.batch_size, progress).row
    tokens, seconds = row.contemplation_tokens_mean, row.seconds_mean
    return replace(result, accuracy=row.accuracy, mean_tokens=tokens, n=row.n, seconds=seconds)


def _rows(results: list[tuple[Cell, _CellResult]], split: str) -> Iterator[SweepRow]:
    """Yield a row for each group of cells that differ only in the seed."""
    groups: dict[tuple[Any, ...], list[tuple[Cell, _CellResult]]] = {}
    for cell, result in results:
        group_key = (cell.method, cell.ratio, *(value for name, value in cell.values.items() if name != "seed"))
        groups.setdefault(group_key, []).append((cell, result))
    for group in groups.values():
        cell, by_seed = group[0][0], [result for _, result in group]
        accuracies = [each.accuracy for each in by_seed]
        low, high = interval(accuracies, by_seed[0].n)
        seconds = [each.seconds for each in by_seed if each.seconds is not None]
        figures: dict[str, Any] = {
            name: statistics.fmean(each.ccot_figures[name] for each in by_seed) for name in by_seed[0].ccot_figures
        }
        yield SweepRow(
            method=cell.method,
            ratio=float(cell.ratio),
            **{name: cell.values[name] for name in DIMENSIONS if name != "seed"},
            settings={name: value for name, value in cell.values.items() if name not in DIMENSIONS},
            seeds=[each.values["seed"] for each, _ in group],
            num_steps=by_seed[0].num_steps,
            accuracies=accuracies,
            accuracy=statistics.fmean(accuracies),
            low=low,
            high=high,
            n=by_seed[0].n,
            split=split,
            mean_tokens=statistics.fmean(each.mean_tokens for each in by_seed),
            seconds=statistics.median(seconds) if seconds else None,
            **figures,
        )
