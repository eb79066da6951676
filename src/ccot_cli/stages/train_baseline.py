"""Train a method to compare CCoT with: same base, same data, same steps, same clock."""

from collections.abc import Sequence as Rows
from dataclasses import asdict, dataclass
from decimal import Decimal

from ccot_cli.config import BaselineName, Settings, ratio_name, stage_config
from ccot_cli.models.adapters import PSI, Adapters
from ccot_cli.models.pause import PauseContext, fresh_pause, save_pause
from ccot_cli.models.psi_training import PsiExample, PsiTraining
from ccot_cli.models.reasoner import Method
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score, train_psi
from ccot_cli.stages.training import take_steps
from ccot_cli.tensors.select import num_kept
from ccot_cli.workspace import Workspace

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
    num_tokens: int
    """Tokens between query and answer."""
    was_ready: bool = False


def run(
    workspace: Workspace,
    settings: Settings,
    method: BaselineName,
    ratio: Decimal,
    *,
    overrides: Rows[str] = (),
    progress: Progress,
) -> TrainBaselineResult:
    """Train one method with the settings of `train_psi`; an interrupted run goes on from its last checkpoint.

    PAUSE gets as many tokens as CCoT has on average, k = ceil(r m) of the mean chain, for every problem: how long a
    chain would have been is not known when a question is asked.

    Raises:
        MissingError: where `precompute` has not run.
    """
    key = f"{method}-{ratio_name(ratio)}"
    source = workspace.require(precompute.STAGE)
    config = stage_config(settings, STAGE)
    inputs = {precompute.STAGE: source.fingerprint}
    if ready := workspace.ready(STAGE, key, config=config, inputs=inputs):
        return TrainBaselineResult(**{**ready.manifest.summary, "was_ready": True})
    theta, chosen = score.load_matching_theta(settings, source), settings.train_psi
    adapters = Adapters(theta)
    adapters.add(PSI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=chosen.seed)
    stored = precompute.read_problems(source)
    encoded = [theta.encoder.problem(item.problem) for item in stored if not item.is_validation]
    held_out = [item.problem for item in stored if item.is_validation]
    count = num_kept(ratio, round(sum(len(each.chain) for each in encoded) / len(encoded)))
    examples = [PsiExample(each.query, theta.encoder.answer_marker, each.answer, count) for each in encoded]
    with workspace.building(STAGE, key, config=config, inputs=inputs, overrides=overrides) as build:
        pause_1D = fresh_pause(theta)
        training = PsiTraining(
            theta,
            adapters,
            examples,
            PauseContext(theta, adapters, examples, pause_1D),
            epochs=chosen.epochs,
            batch_size=chosen.batch_size,
            learning_rate=chosen.learning_rate,
            optimiser=chosen.optimiser,
            seed=chosen.seed,
        )
        label = f"{method} at r = {ratio:f}"
        train_loss = take_steps(
            training, build, label=label, checkpoint_steps=chosen.checkpoint_steps, progress=progress
        )
        adapters.train_only(())
        adapters.save(PSI, build.folder)
        save_pause(pause_1D, build.folder)
        Method(method, f"{ratio:f}", num_tokens=count).save(build.folder)
        accuracy, _ = train_psi.validate(theta, adapters, build.folder, held_out, settings, progress)
        result = TrainBaselineResult(
            method=method,
            ratio=f"{ratio:f}",
            num_steps=training.optimiser.step_count,
            train_loss=train_loss,
            num_validation=len(held_out),
            validation_accuracy=accuracy,
            num_tokens=count,
        )
        build.summary.update(asdict(result))
    return result
