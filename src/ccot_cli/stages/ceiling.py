"""The gold ceiling: what ψ reaches on validation when it reads the gold states themselves (paper, section 3.2).

`gold` among the baselines is the same, trained as long as the others and kept; this is a quick look at what a selector
has chosen.
"""

from dataclasses import dataclass
from decimal import Decimal

from ccot_cli.config import Settings
from ccot_cli.models.adapters import PSI, Adapters
from ccot_cli.models.baselines.base import Course
from ccot_cli.models.baselines.gold import Gold, GoldReasoner
from ccot_cli.models.reasoner import Method
from ccot_cli.models.selectors import Selector
from ccot_cli.names import ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score
from ccot_cli.stages.evaluate import Share, wilson
from ccot_cli.stages.train_phi import load_examples
from ccot_cli.stages.validation import accuracy_of
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
    theta.require_whole("the gold ceiling")
    adapters = Adapters(theta)
    adapters.add(PSI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=settings.score.seed)
    stored = precompute.read_problems(source)
    train = theta.encoder.problems([item.problem for item in stored if not item.is_validation])
    steps_per_epoch = -(-len(train) // chosen.batch_size)
    wanted = {"epochs": -(-settings.score.ceiling_steps // steps_per_epoch), "seed": settings.score.seed}
    gold = [example.gold_JID for example in load_examples(theta, source, selected)[0]]
    selector = Selector.load(theta, selected.folder)
    training = Gold().training(
        Course(theta, adapters, train, ratio, chosen.model_copy(update=wanted), gold=gold, selector=selector)
    )
    label = f"gold ceiling at r = {ratio:f}"
    with progress.task(label, total=training.optimiser.num_steps, unit="steps") as advance:
        for loss in training.steps():
            advance(1, loss=f"{loss:.4f}")
    adapters.train_only(())
    reasoner = GoldReasoner(theta, adapters, Method("gold", f"{ratio:f}"), settings.decoding, selector)
    held_out = [item.problem for item in stored if item.is_validation]
    accuracy, _ = accuracy_of(reasoner, held_out, settings.eval.batch_size, progress)
    share = wilson(round(accuracy * len(held_out)), len(held_out))
    return Ceiling(f"{ratio:f}", training.optimiser.num_steps, share)
