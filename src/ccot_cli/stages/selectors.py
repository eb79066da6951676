"""Fit the selector of the settings, and apply it to every problem of a workspace."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

from torch import Tensor

from ccot_cli.config import Settings
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.shards import read_records
from ccot_cli.errors import CorruptError
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.predictive import announcements, last_states
from ccot_cli.models.selection.scorer import Scorer
from ccot_cli.models.selection.selector import NUM_SCORED, Selector, predictive_selector
from ccot_cli.models.training.scorer import ScorerTraining
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import pass_tokens
from ccot_cli.workspace.artifact import Artifact


def fit_selector(
    theta: Theta,
    source: Artifact,
    train: list[EncodedProblem],
    ratio: Decimal,
    settings: Settings,
    progress: Progress,
    *,
    fitted: Iterable[Path] = (),
) -> Selector:
    """Return the selector that the settings name, fitted to the training problems if it learns.

    Args:
        source: The artifact of `precompute`.
        train: Training problems.
        fitted: Folders in which a selector of these settings may have been saved, for any ratio: what one ratio's has
            learned serves all ratios.
    """
    config = settings.score
    if config.selector not in ("predictive", "learned"):
        return Selector(config.selector, ratio, theta.encoder, seed=config.seed)
    known = _first_that_loads(theta, fitted)
    if config.selector == "predictive":
        scores_V = known.scores_V if known else None
        if scores_V is None:
            scores_V = _announcements(theta, source, train[:NUM_SCORED], settings, progress)
        return predictive_selector(theta, train, ratio, scores_V)
    layer = source.manifest.config["precompute"]["scorer_layer"]
    scorer = known.scorer if known else None
    if scorer is None:
        scorer = _train_scorer(theta, train, layer, settings, progress)
    return Selector("learned", ratio, theta.encoder, layer=layer, scorer=scorer)


def all_positions(selector: Selector, source: Artifact, problems: list[EncodedProblem]) -> list[list[int]]:
    """Return the selected positions in every problem's chain, in reading order.

    Args:
        source: The artifact of `precompute`, whose hidden states a learned scorer reads.
    """
    if selector.scorer is None:
        return [selector.positions(problem) for problem in problems]
    # An artifact with one index holds nothing but the scorer's layer.
    index = selector.layer if source.manifest.summary["is_every_index"] else 0
    positions = {
        record.number: selector.positions(problems[record.number], states_MD=record.states_JID[1:, 0])
        for record in read_records(source.folder, indices=slice(index, index + 1))
    }
    return [positions[number] for number in range(len(problems))]


def _announcements(
    theta: Theta, source: Artifact, problems: list[EncodedProblem], settings: Settings, progress: Progress
) -> Tensor:
    states = _last_states(theta, source, problems, pass_tokens(theta, settings))
    with progress.task("tokens that announce what is new", total=len(problems), unit="problems") as advance:
        return announcements(theta, problems, states, advance=advance)


def _last_states(
    theta: Theta, source: Artifact, problems: list[EncodedProblem], batch_tokens: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield the number and the chain's states at index L of each of the first problems: stored ones if there are."""
    if not source.manifest.summary["is_every_index"]:
        yield from last_states(theta, problems, batch_tokens=batch_tokens)
        return
    for record in read_records(source.folder, indices=slice(theta.num_layers, theta.num_layers + 1)):
        if record.number < len(problems):
            yield record.number, record.states_JID[1:, 0]


def has_sound_selector(scored: Artifact) -> bool:
    """Tell whether the files of an artifact of `score`, other than the states, are as they were written."""
    names = [name for name in scored.manifest.files if not name.startswith("shard-")]
    return not any(scored.damaged(*names))


def _first_that_loads(theta: Theta, folders: Iterable[Path]) -> Selector | None:
    for folder in folders:
        with suppress(CorruptError):
            return Selector.load(theta, folder)
    return None


def _train_scorer(
    theta: Theta, train: list[EncodedProblem], layer: int, settings: Settings, progress: Progress
) -> Scorer:
    config, decoder = settings.score, settings.train_psi
    adapters = Adapters(theta)
    adapters.add(PSI, rank=decoder.lora_rank, alpha=decoder.lora_alpha, seed=config.seed)
    scorer = Scorer(theta, config.scorer, config.seed)
    training = ScorerTraining(adapters, scorer, train, layer, config, decoder)
    with progress.task(f"{config.scorer} scorer", total=config.scorer_steps, unit="steps") as advance:
        for loss in training.steps():
            advance(1, loss=f"{loss:.4f}")
    adapters.train_only(())
    adapters.use(None)  # `score` runs θ again if `precompute` did not store every index.
    return scorer.eval()
