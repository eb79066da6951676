"""Choose which chain tokens to keep, and store their gold states (paper, section 4.1)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import chain
from pathlib import Path

import torch

from ccot_cli.config import ModelConfig, Settings, stage_config
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.shards import Record, ShardWriter, read_records
from ccot_cli.errors import CorruptError
from ccot_cli.files import check_space
from ccot_cli.models.base.theta import Theta, load_theta
from ccot_cli.models.selection.gold import STORED_DTYPE, gold_states
from ccot_cli.names import ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute
from ccot_cli.stages.selectors import all_positions, fit_selector
from ccot_cli.tensors.select import even, num_kept, overlap
from ccot_cli.workspace import Artifact, Workspace, has_moved

STAGE = "score"
SHARD_BYTES = 256 * 10**6
NUM_EXAMPLES = 3


@dataclass(frozen=True)
class ScoreResult:
    """What was selected for one ratio."""

    ratio: str
    selector: str
    num_problems: int
    mean_kept: float
    """Mean k."""
    mean_chain: float
    """Mean m."""
    kinds: dict[str, float]
    """Share of the kept tokens by kind."""
    overlap_with_even: float
    """Share of the kept tokens that even spacing would keep too."""
    examples: list[str]
    """The first problems' chains, kept tokens in [brackets]."""
    was_ready: bool = False


def run(
    workspace: Workspace,
    settings: Settings,
    ratio: Decimal,
    *,
    variant: str = "",
    overrides: Sequence[str] = (),
    progress: Progress,
) -> ScoreResult:
    """Select k = ceil(r m) positions per problem, in reading order.

    Args:
        variant: Set where the settings are not the workspace's own: the end of the artifact's key.

    Raises:
        MissingError: where `precompute` has not run.
    """
    source = workspace.require(precompute.STAGE)
    key = ratio_name(ratio) + variant
    config = stage_config(settings, STAGE)
    inputs = {precompute.STAGE: source.manifest.fingerprint}
    if ready := workspace.ready(STAGE, key, config=config, inputs=inputs, overrides=overrides):
        return ScoreResult(**{**ready.manifest.summary, "was_ready": True})
    workspace.refuse_while_busy()
    theta = load_matching_theta(settings, source)
    problems = theta.encoder.problems([item.problem for item in precompute.read_problems(source)])
    num_train = source.manifest.summary["num_train"]
    check_space(workspace.root, _num_bytes(theta, problems, ratio), fix="free some space, or choose a smaller --ratio")
    with workspace.building(STAGE, key, config=config, inputs=inputs, overrides=overrides) as build:
        alike = (workspace.matching(STAGE, other, config, inputs) for other in workspace.finished(STAGE))
        fitted = chain([build.folder], (artifact.folder for artifact in alike if artifact))
        selector = fit_selector(theta, source, problems[:num_train], ratio, settings, progress, fitted=fitted)
        selector.save(build.folder)
        kept = all_positions(selector, source, problems)
        for leftover in build.folder.glob("shard-*"):
            leftover.unlink()
        with (
            ShardWriter(build.folder, SHARD_BYTES, build.note) as writer,
            progress.task("selected states", total=len(problems), unit="problems") as advance,
        ):
            for record in _records(theta, source, problems, kept):
                writer.add(record)
                advance()
        result = ScoreResult(
            ratio=f"{ratio:f}",
            selector=settings.score.selector,
            num_problems=len(problems),
            mean_kept=sum(map(len, kept)) / len(kept),
            mean_chain=sum(len(problem.chain) for problem in problems) / len(problems),
            kinds=_kinds(theta, problems, kept),
            overlap_with_even=sum(map(_overlap_with_even, problems, kept)) / len(kept),
            examples=[_example(theta, *pair) for pair in zip(problems[:NUM_EXAMPLES], kept, strict=False)],
        )
        build.summary.update(asdict(result))
    return result


def _num_bytes(theta: Theta, problems: list[EncodedProblem], ratio: Decimal) -> int:
    """What will be written: every problem's kept rows and its last query token's, at every index."""
    rows = sum(1 + num_kept(ratio, len(problem.chain)) for problem in problems)
    width: int = theta.model.config.hidden_size
    return rows * (theta.num_layers + 1) * width * STORED_DTYPE.itemsize


def load_matching_theta(settings: Settings, source: Artifact) -> Theta:
    """The model that `precompute` ran, on the device of the settings.

    Raises:
        CorruptError: where the weights, the tokenizer or the template under its name are no longer those.
    """
    made, name = source.manifest.config["model"], settings.model.name
    if has_moved(made["name"], name) and Path(name).exists() and not Path(made["name"]).exists():
        made = {**made, "name": name}
    theta = load_theta(ModelConfig(**made, device=settings.model.device, offload=settings.model.offload))
    if theta.fingerprint() != source.manifest.inputs["model"]:
        raise CorruptError(
            f"{theta.name} has changed since {source.folder} was made from it",
            fix="put the model back, or run 'ccot precompute' again",
        )
    return theta


def _overlap_with_even(problem: EncodedProblem, positions: list[int]) -> float:
    return overlap(positions, even(len(problem.chain), len(positions), torch.Generator()))


def _records(theta: Theta, source: Artifact, problems: list[EncodedProblem], kept: list[list[int]]) -> Iterator[Record]:
    """Every problem's row 0, the last query token, and its kept rows, at every index.

    Where `precompute` stored one index only, the states come from a second pass over the same batches.
    """
    chosen = [[0, *(position + 1 for position in positions)] for positions in kept]
    is_every_index = source.manifest.summary["is_every_index"]
    if is_every_index:
        for record in read_records(source.folder):
            yield record.rows(chosen[record.number])
        return
    states = gold_states(
        theta,
        problems,
        indices=range(theta.num_layers + 1),
        batch_tokens=source.manifest.summary["batch_tokens"],
        dtype=STORED_DTYPE,
    )
    for number, states_JID in states:
        yield precompute.make_record(number, problems[number], states_JID).rows(chosen[number])


def _kind(text: str) -> str:
    text = text.strip(" ")
    if not text.strip():
        return "line break"
    if text.strip("$").replace(".", "").replace(",", "").isdigit():
        return "number"
    if text in {"+", "-", "*", "/", "x"}:
        return "operator"
    if text == "=":
        return "="
    return "word" if any(character.isalpha() for character in text) else "punctuation"


def _kinds(theta: Theta, problems: list[EncodedProblem], kept: list[list[int]]) -> dict[str, float]:
    ids = Counter(
        problem.chain[position] for problem, positions in zip(problems, kept, strict=True) for position in positions
    )
    kinds: Counter[str] = Counter()
    for token, count in ids.items():
        kinds[_kind(theta.encoder.tokenizer.decode([token]))] += count
    return {kind: count / kinds.total() for kind, count in kinds.most_common()}


def _example(theta: Theta, problem: EncodedProblem, positions: list[int]) -> str:
    pieces = [theta.encoder.tokenizer.decode([token]) for token in problem.chain]
    for position in positions:
        bare = pieces[position].strip(" ")
        pieces[position] = pieces[position].replace(bare, f"[{'⏎' if bare == chr(10) else bare}]", 1)
    return "".join(pieces)
