"""Train a baseline to compare CCoT with, on the same base model, data and settings as ψ."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

from torch import Tensor

from ccot_cli import ranks
from ccot_cli.config import Settings, stage_config
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.methods.loading import fixed_ratio
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.models.selection.selector import Selector
from ccot_cli.models.training.loop import CHECKPOINT_FILE, LOG_FILE, train
from ccot_cli.models.training.recipes.base import RecipeSetup
from ccot_cli.models.training.recipes.registry import RECIPES
from ccot_cli.names import PRECOMPUTE, SCORE, TRAIN_BASELINE, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import building, load_examples, load_matching_theta, ready_result
from ccot_cli.stages.methods import baseline_key
from ccot_cli.stages.problems import read_problems
from ccot_cli.stages.start import attach, find_psi, start_inputs
from ccot_cli.stages.validation import MOST_JUDGED, calibrate, caps, changed_figures, validate
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class TrainBaselineResult:
    """How well the baseline does on the validation problems."""

    method: str
    ratio: float
    num_steps: int
    train_loss: float
    """Mean loss of the last epoch."""
    num_validation: int
    validation_accuracy: float
    mean_tokens: float
    """Mean number of tokens between query and answer on validation problems."""
    decoding: dict[str, Any] = field(default_factory=dict)
    """The caps that accuracy and tokens were measured with."""
    kept_step: int | None = None
    """The step whose weights did best on validation problems, and were kept; None if an older version trained it."""
    was_ready: bool = False


def run(
    workspace: Workspace,
    settings: Settings,
    method: str,
    ratio: Decimal,
    *,
    variant: str = "",
    selected: str | None = None,
    overrides: Sequence[str] = (),
    progress: Progress,
) -> TrainBaselineResult:
    """Train and save a baseline with the settings of `train_psi`; an interrupted run resumes from its last checkpoint.

    Args:
        ratio: Ratio of the CCoT that it is compared with; a method with a fixed ratio ignores it.
        variant: End of the artifact's key; not empty if the settings are not the workspace's own.
        selected: Key of the `score` artifact, for a method that reads gold states; that of the ratio by default.

    Raises:
        MissingError: if `precompute` has not run, or `score` for a method that reads gold states, or there is no
            adapter to start from.
        UsageError: if the adapter to start from has another rank or alpha, or a curriculum has one epoch only.
        ResourceError: if a single problem does not fit into memory.
    """
    RECIPES[method].check(settings.train_psi)
    source = workspace.require(PRECOMPUTE)
    inputs = {PRECOMPUTE: source.fingerprint}
    scored = workspace.require(SCORE, selected or ratio_name(ratio)) if RECIPES[method].reads_gold else None
    if scored is not None:
        inputs[scored.name] = scored.fingerprint
    key = baseline_key(method, ratio) + variant
    start = find_psi(settings.train_psi, workspace.folder(TRAIN_BASELINE, key))
    inputs |= start_inputs(start)
    spec = ArtifactSpec(TRAIN_BASELINE, key, stage_config(settings, TRAIN_BASELINE), inputs, tuple(overrides))
    if ready := ranks.first(lambda: ready_result(workspace, spec, TrainBaselineResult)):
        return replace(ready, **changed_figures(ready.decoding, workspace, settings, spec, progress))
    adapters = Adapters(load_matching_theta(settings, source))
    attach(adapters, PSI, settings.train_psi, start)
    with building(workspace, spec, progress) as build:
        result = _train(adapters, settings, method, ratio, source, scored, build, progress)
        build.summary.update(asdict(result))
    return result


def _train(
    adapters: Adapters,
    settings: Settings,
    name: str,
    ratio: Decimal,
    source: Artifact,
    scored: Artifact | None,
    build: Build,
    progress: Progress,
) -> TrainBaselineResult:
    config, theta = settings.train_psi, adapters.theta
    stored = read_problems(source)
    recipe, fixed = RECIPES[name](), fixed_ratio(name)
    ratio = ratio if fixed is None else fixed
    problems = theta.encoder.problems([item.problem for item in stored if not item.is_validation][: config.limit])
    setup = RecipeSetup(adapters, problems, ratio, config)
    held_out, held_gold = [item.problem for item in stored if item.is_validation], list[Tensor]()
    if scored is not None:
        scored.check()
        gold, held_gold = ([each.gold_JID for each in part] for part in load_examples(theta, source, scored))
        setup = replace(setup, gold=gold[: config.limit], selector=Selector.load(theta, scored.folder))
    training = recipe.training(setup)
    judged = recipe.held_out(setup, theta.encoder.problems(held_out[:MOST_JUDGED]), held_gold[:MOST_JUDGED])
    trained = train(
        training,
        log=build.folder / LOG_FILE,
        checkpoint=build.scratch(CHECKPOINT_FILE),
        label=f"{name} at r = {ratio:f}" if fixed is None else name,
        checkpoint_steps=config.checkpoint_steps,
        progress=progress,
        judge=lambda: training.judge(judged),
    )
    adapters.train_only(())
    training.record()
    adapters.save(PSI, build.folder)
    recipe.save(build.folder)
    MethodInfo(recipe.name, f"{ratio:f}", num_tokens=recipe.num_tokens(setup)).save(build.folder)
    measured = validate(adapters, build.folder, held_out, settings, progress)
    calibrate(measured, build.folder, progress)
    return TrainBaselineResult(
        method=name,
        ratio=float(ratio),
        num_steps=training.optimiser.step_count,
        kept_step=trained.kept_step,
        train_loss=trained.loss,
        num_validation=len(held_out),
        validation_accuracy=measured.accuracy,
        mean_tokens=measured.mean_tokens,
        decoding=caps(settings),
    )
