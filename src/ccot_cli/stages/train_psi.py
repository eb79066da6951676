"""Train ψ, the answer decoder, and END, the stop classifier (paper, section 4.2).

At r = 0 there is no φ and ψ learns to answer at once; at r = 1 ψ learns to write the explicit chain.
"""

import json
from collections.abc import Sequence as Rows
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path

from safetensors.torch import save_file

from ccot_cli.config import Settings, ratio_name, stage_config
from ccot_cli.data.answers import is_correct
from ccot_cli.data.problems import Problem
from ccot_cli.files import commit
from ccot_cli.models.adapters import PHI, PSI, Adapters
from ccot_cli.models.end import fit_end
from ccot_cli.models.psi_training import (
    PsiExample,
    PsiTraining,
    Rollouts,
    judge_end,
    last_states,
    roll_out,
)
from ccot_cli.models.reasoner import Reasoner, describe, load_reasoner
from ccot_cli.models.theta import Theta
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score, train_phi
from ccot_cli.tensors.select import num_kept
from ccot_cli.workspace import Build, Workspace

STAGE = "train-psi"
LOG_FILE = "log.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"
LOG_STEPS = 10


@dataclass(frozen=True)
class TrainPsiResult:
    """How well the trained method does on the validation problems."""

    ratio: str
    num_steps: int
    train_loss: float
    """Mean over the last epoch."""
    num_validation: int
    validation_accuracy: float
    mean_tokens: float
    """Contemplation tokens generated on validation, END deciding."""
    target_tokens: float
    """Mean k."""
    end: dict[str, float] | None
    """END's confusion on validation tokens."""
    was_ready: bool = False


def run(
    workspace: Workspace, settings: Settings, ratio: Decimal, *, overrides: Rows[str] = (), progress: Progress
) -> TrainPsiResult:
    """Train one ratio; an interrupted run goes on from its last checkpoint.

    Raises:
        MissingError: where an earlier stage has not run for this ratio.
    """
    key = ratio_name(ratio)
    source = workspace.require(precompute.STAGE)
    has_tokens = 0 < ratio < 1
    phi = workspace.require(train_phi.STAGE, key) if has_tokens else None
    config = stage_config(settings, STAGE)
    inputs = {train_phi.STAGE: phi.manifest.fingerprint} if phi else {precompute.STAGE: source.manifest.fingerprint}
    if ready := workspace.ready(STAGE, key, config=config, inputs=inputs):
        return TrainPsiResult(**{**ready.manifest.summary, "was_ready": True})
    theta = score.load_matching_theta(settings, source)
    layer = phi.manifest.config["train_phi"]["autoregressive_layer"] if phi else theta.num_layers
    adapters = Adapters(theta)
    if phi:
        adapters.load(PHI, phi.folder / PHI)
    chosen = settings.train_psi
    adapters.add(PSI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=chosen.seed)
    stored = precompute.read_problems(source)
    train = [example(theta, item.problem, ratio) for item in stored if not item.is_validation]
    held_out = [item.problem for item in stored if item.is_validation]
    with workspace.building(STAGE, key, config=config, inputs=inputs, overrides=overrides) as build:
        rollouts = _roll_out(theta, adapters, train, layer, settings, progress) if has_tokens else []
        training = PsiTraining(
            theta,
            adapters,
            train,
            rollouts,
            layer=layer,
            trains_above=chosen.unfreeze == "above",
            epochs=chosen.epochs,
            batch_size=chosen.batch_size,
            learning_rate=chosen.learning_rate,
            seed=chosen.seed,
        )
        train_loss = _train(training, build, settings, ratio, progress)
        adapters.train_only(())
        adapters.save(PSI, build.folder)
        method = describe(
            ratio,
            layer=layer,
            cap_tokens=settings.decoding.cap_tokens,
            max_answer_tokens=settings.decoding.max_answer_tokens,
        )
        method.save(build.folder)
        confusion = None
        if has_tokens:
            adapters.save(PHI, build.folder)
            held_examples = [example(theta, problem, ratio) for problem in held_out]
            confusion = _train_end(theta, adapters, train, rollouts, held_examples, layer, settings, build.folder)
        # Read back from disk: what is judged is what was saved.
        reasoner = load_reasoner(theta, adapters, build.folder, max_chain_tokens=settings.decoding.max_chain_tokens)
        accuracy, mean_tokens = _validate(reasoner, held_out, settings.eval.batch_size, progress)
        result = TrainPsiResult(
            ratio=f"{ratio:f}",
            num_steps=training.optimiser.step_count,
            train_loss=train_loss,
            num_validation=len(held_out),
            validation_accuracy=accuracy,
            mean_tokens=mean_tokens,
            target_tokens=sum(_num_tokens(theta, problem, ratio) for problem in held_out) / len(held_out),
            end=confusion,
        )
        build.summary.update(asdict(result))
    return result


def _num_tokens(theta: Theta, problem: Problem, ratio: Decimal) -> int:
    return num_kept(ratio, len(theta.encoder.problem(problem).chain)) if 0 < ratio < 1 else 0


def example(theta: Theta, problem: Problem, ratio: Decimal) -> PsiExample:
    """What ψ learns from a problem at a ratio."""
    encoded = theta.encoder.problem(problem)
    marker = theta.encoder.answer_marker
    if ratio == 1:
        solution = [*encoded.chain, *marker, *encoded.answer]
        return PsiExample(encoded.query[:-1], encoded.query[-1:], solution, 0)
    num_tokens = num_kept(ratio, len(encoded.chain)) if ratio else 0
    return PsiExample(encoded.query, marker, encoded.answer, num_tokens)


def _roll_out(
    theta: Theta, adapters: Adapters, examples: list[PsiExample], layer: int, settings: Settings, progress: Progress
) -> Rollouts:
    rollouts: Rollouts = [None] * len(examples)  # type: ignore[list-item]
    batch_size = 2 * settings.train_psi.batch_size
    with progress.task("contemplation tokens", total=len(examples), unit="problems") as advance:
        for number, inputs_KD in roll_out(theta, adapters, examples, layer=layer, batch_size=batch_size):
            rollouts[number] = inputs_KD
            advance()
    return rollouts


def _train(training: PsiTraining, build: Build, settings: Settings, ratio: Decimal, progress: Progress) -> float:
    checkpoint, log = build.scratch(CHECKPOINT_FILE), build.folder / LOG_FILE
    lines = []
    if checkpoint.exists():
        training.optimiser.resume(checkpoint)
        lines = [
            line for line in log.read_text().splitlines() if json.loads(line)["step"] <= training.optimiser.step_count
        ]
        progress.say(f"resumed after step {training.optimiser.step_count:,}")
    last_epoch: list[float] = []
    total = training.optimiser.num_steps
    with progress.task(f"ψ at r = {ratio}", total=total, unit="steps") as advance:
        advance(training.optimiser.step_count)
        for loss in training.steps():
            step = training.optimiser.step_count
            advance(1, loss=f"{loss:.4f}")
            if step > total - training.steps_per_epoch:
                last_epoch.append(loss)
            if step % LOG_STEPS == 0:
                lines.append(json.dumps({"step": step, "loss": loss}))
            if step % settings.train_psi.checkpoint_steps == 0 and step < total:
                _commit_lines(log, lines)
                with commit(checkpoint) as part:
                    save_file(training.optimiser.state(), part)
    _commit_lines(log, lines)
    return sum(last_epoch) / max(1, len(last_epoch))


def _commit_lines(path: Path, lines: list[str]) -> None:
    with commit(path) as part:
        part.write_text("".join(line + "\n" for line in lines))


def _train_end(
    theta: Theta,
    adapters: Adapters,
    train: list[PsiExample],
    rollouts: Rollouts,
    held_out: list[PsiExample],
    layer: int,
    settings: Settings,
    folder: Path,
) -> dict[str, float]:
    """Fit END on the training rollouts and judge it on others."""
    batch_size = 2 * settings.train_psi.batch_size
    end = fit_end(*last_states(theta, adapters, train, rollouts, layer=layer, batch_size=batch_size))
    end.save(folder)
    fresh = dict(roll_out(theta, adapters, held_out, layer=layer, batch_size=batch_size))
    held_rollouts = [fresh[number] for number in range(len(held_out))]
    report = judge_end(end, *last_states(theta, adapters, held_out, held_rollouts, layer=layer, batch_size=batch_size))
    return {**asdict(report), "accuracy": report.accuracy}


def _validate(reasoner: Reasoner, problems: list[Problem], batch_size: int, progress: Progress) -> tuple[float, float]:
    """Accuracy and mean number of contemplation tokens, decoding freely."""
    num_correct = num_tokens = 0
    with progress.task("validation", total=len(problems), unit="problems") as advance:
        for start in range(0, len(problems), batch_size):
            batch = problems[start : start + batch_size]
            replies, _ = reasoner.reply([problem.question for problem in batch])
            for problem, reply in zip(batch, replies, strict=True):
                num_correct += is_correct(reply.answer, problem.answer)
                num_tokens += reply.num_contemplation
                advance()
    return num_correct / len(problems), num_tokens / len(problems)
