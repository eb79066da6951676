"""The gold ceiling: what ψ reaches when it reads the gold states themselves (paper, section 3.2).

It tells apart two reasons to fail: what lies below it φ could not imitate, what lies above it the selected tokens do
not hold.
"""

from dataclasses import dataclass
from decimal import Decimal

from ccot_cli.config import Settings, ratio_name
from ccot_cli.data.answers import is_correct
from ccot_cli.models.adapters import PSI, Adapters
from ccot_cli.models.psi import decode
from ccot_cli.models.psi_training import GoldContext, PsiTraining
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score, train_psi
from ccot_cli.stages.evaluate import Share, wilson
from ccot_cli.stages.queries import open_queries
from ccot_cli.stages.train_phi import load_examples
from ccot_cli.workspace import Workspace


@dataclass(frozen=True)
class Ceiling:
    """Accuracy on validation problems, decoding from their gold states."""

    ratio: str
    num_steps: int
    share: Share


def gold_ceiling(workspace: Workspace, settings: Settings, ratio: Decimal, *, progress: Progress) -> Ceiling:
    """Train a decoder on gold states and measure it; nothing is kept.

    Raises:
        MissingError: where `score` has not run for this ratio.
    """
    source = workspace.require(precompute.STAGE)
    selected = workspace.require(score.STAGE, ratio_name(ratio))
    theta, chosen = score.load_matching_theta(settings, source), settings.train_psi
    adapters = Adapters(theta)
    adapters.add(PSI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=settings.score.seed)
    stored = precompute.read_problems(source)
    problems = [[item.problem for item in stored if item.is_validation == held] for held in (False, True)]
    gold = [[each.gold_JID for each in examples] for examples in load_examples(theta, source, selected)]
    with workspace.scratch() as folder:
        examples = [[train_psi.example(theta, problem, ratio) for problem in each] for each in problems]
        contexts = [
            GoldContext(theta, adapters, open_queries(theta, adapters, ids, folder / name, progress), states)
            for name, ids, states in zip(
                ("train", "validation"), [[each.query for each in group] for group in examples], gold, strict=True
            )
        ]
        steps_per_epoch = -(-len(examples[0]) // chosen.batch_size)
        training = PsiTraining(
            theta,
            adapters,
            examples[0],
            contexts[0],
            epochs=-(-settings.score.ceiling_steps // steps_per_epoch),
            batch_size=chosen.batch_size,
            learning_rate=chosen.learning_rate,
            optimiser=chosen.optimiser,
            seed=settings.score.seed,
        )
        label = f"gold ceiling at r = {ratio:f}"
        with progress.task(label, total=training.optimiser.num_steps, unit="steps") as advance:
            for loss in training.steps():
                advance(1, loss=f"{loss:.4f}")
        adapters.train_only(())
        num_correct = 0
        for start in range(0, len(problems[1]), chosen.batch_size):
            numbers = range(start, min(start + chosen.batch_size, len(problems[1])))
            sequence = contexts[1].read(numbers).sequence
            opened = [examples[1][number].start for number in numbers]
            text = decode(theta, adapters, sequence, opened, max_tokens=settings.decoding.max_answer_tokens)
            for number, ids in zip(numbers, text.ids, strict=True):
                num_correct += is_correct(theta.encoder.decode(ids).strip(), problems[1][number].answer)
    return Ceiling(f"{ratio:f}", training.optimiser.num_steps, wilson(num_correct, len(problems[1])))
