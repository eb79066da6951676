"""Train a method to compare CCoT with: same base, same data, ψ's steps unless more are asked for, same clock."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

from ccot_cli.config import Settings, stage_config
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.loading import BASELINES
from ccot_cli.models.methods.method import Method
from ccot_cli.models.selection.selector import Selector
from ccot_cli.models.training.recipes.base import Course
from ccot_cli.names import ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score
from ccot_cli.stages.train_phi import load_examples
from ccot_cli.stages.training import take_steps
from ccot_cli.stages.validation import caps, changed_figures, validate
from ccot_cli.workspace import Artifact, Build, Workspace

STAGE = "train-baseline"


@dataclass(frozen=True)
class TrainBaselineResult:
    """How well the baseline does on the validation problems."""

    method: str
    ratio: str
    num_steps: int
    train_loss: float
    """Mean over the last epoch."""
    num_validation: int
    validation_accuracy: float
    mean_tokens: float
    """Tokens between query and answer on validation."""
    decoding: dict[str, Any] = field(default_factory=dict)
    """The caps with which that was measured."""
    was_ready: bool = False


def own_ratio(method: str) -> Decimal | None:
    """The method's own; None where it has as many tokens as CCoT, at any ratio."""
    return BASELINES[method].ratio


def key_of(method: str, ratio: Decimal) -> str:
    """`direct`, or `pause-r0.10` where the method comes in ratios."""
    return f"{method}-{ratio_name(ratio)}" if own_ratio(method) is None else method


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
    """Train one method with the settings of `train_psi`; an interrupted run goes on from its last checkpoint.

    Args:
        ratio: Of CCoT's tokens; a method that has a ratio of its own does not read it.
        variant: Set where the settings are not the workspace's own: the end of the artifact's key.
        selected: For a method that reads gold states, the key of the selected tokens; the ratio's by default.

    Raises:
        MissingError: where `precompute` has not run, or `score` for a method that reads gold states.
    """
    source = workspace.require(precompute.STAGE)
    config = stage_config(settings, STAGE)
    inputs = {precompute.STAGE: source.fingerprint}
    key = key_of(method, ratio) + variant
    reads_gold = BASELINES[method].reads_gold
    scored = workspace.require(score.STAGE, selected or ratio_name(ratio)) if reads_gold else None
    if scored is not None:
        inputs[scored.name] = scored.fingerprint
    if ready := workspace.ready(STAGE, key, config=config, inputs=inputs, overrides=overrides):
        result = TrainBaselineResult(**{**ready.manifest.summary, "was_ready": True})
        return replace(result, **changed_figures(result.decoding, settings, source, ready, progress))
    workspace.refuse_while_busy()
    theta = score.load_matching_theta(settings, source)
    theta.require_whole(f"training {method}")
    with workspace.building(STAGE, key, config=config, inputs=inputs, overrides=overrides) as build:
        result = _train(theta, settings, method, ratio, source, scored, build, progress)
        build.summary.update(asdict(result))
    return result


def _train(
    theta: Theta,
    settings: Settings,
    name: str,
    ratio: Decimal,
    source: Artifact,
    scored: Artifact | None,
    build: Build,
    progress: Progress,
) -> TrainBaselineResult:
    chosen, adapters = settings.train_psi, Adapters(theta)
    adapters.add(PSI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=chosen.seed)
    stored = precompute.read_problems(source)
    baseline = BASELINES[name]()
    ratio = ratio if baseline.ratio is None else baseline.ratio
    problems = theta.encoder.problems([item.problem for item in stored if not item.is_validation])
    course = Course(theta, adapters, problems, ratio, chosen)
    if scored is not None:
        gold = [example.gold_JID for example in load_examples(theta, source, scored)[0]]
        course = replace(course, gold=gold, selector=Selector.load(theta, scored.folder))
    training, label = baseline.training(course), f"{name} at r = {ratio:f}" if baseline.ratio is None else name
    train_loss = take_steps(training, build, label=label, checkpoint_steps=chosen.checkpoint_steps, progress=progress)
    adapters.train_only(())
    adapters.save(PSI, build.folder)
    baseline.save(build.folder)
    Method(baseline.name, f"{ratio:f}", num_tokens=baseline.num_tokens(course)).save(build.folder)
    held_out = [item.problem for item in stored if item.is_validation]
    accuracy, mean_tokens = validate(theta, adapters, build.folder, held_out, settings, progress)
    return TrainBaselineResult(
        method=name,
        ratio=f"{ratio:f}",
        num_steps=training.optimiser.step_count,
        train_loss=train_loss,
        num_validation=len(held_out),
        validation_accuracy=accuracy,
        mean_tokens=mean_tokens,
        decoding=caps(settings),
    )
