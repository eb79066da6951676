"""Select tokens of every chain, and store their gold states (paper, section 4.1).

Dimensions: J rows of a problem, the last query token's and those of chain tokens, I hidden-state indices, M tokens of
all problems, D width.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from ccot_cli import ranks
from ccot_cli.config import Settings, stage_config
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.shards import Record, read_records
from ccot_cli.files import check_space
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import STORED_DTYPE, following_ids, gold_states, solution_order
from ccot_cli.models.selection.layer import lowest_sufficient, probe_accuracy
from ccot_cli.names import PRECOMPUTE, SCORE, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import building, load_matching_theta, ready_result
from ccot_cli.stages.precompute import make_record
from ccot_cli.stages.problems import read_problems
from ccot_cli.stages.selectors import all_positions, fit_selector, has_sound_selector
from ccot_cli.stages.sharing import write_records, written_bytes
from ccot_cli.tensors.select import even, num_kept, overlap
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.workspace import Workspace

SHARD_BYTES = 256 * 10**6
NUM_EXAMPLES = 3
MOST_PROBED = 2000
"""Training problems, at most, that probes are fitted on."""
_NextNumbers = dict[int, dict[int, int]]
"""By a problem's number, the rows of the selected tokens that a number follows, and the id that follows each."""


@dataclass(frozen=True)
class ScoreResult:
    """What was selected for one ratio."""

    ratio: float
    selector: str
    num_problems: int
    mean_kept: float
    """Mean k."""
    mean_chain: float
    """Mean m."""
    kinds: dict[str, float]
    """Proportion of the selected tokens by kind."""
    overlap_with_even: float
    """Proportion of the selected tokens that even spacing would select too."""
    examples: list[str]
    """The first problems' chains, with the selected tokens in [brackets]."""
    probe: list[float] = field(default_factory=list)
    """Accuracy with which a probe at each index 0..L reads the chain's next number from a selected state; empty if the
    chains write none."""
    autoregressive_layer: int | None = None
    """What `train_phi.autoregressive_layer: auto` stands for; None if the probe does not tell."""
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
    """Select k = ceil(r m) of the m chain tokens of every problem, and store their states at every index.

    Of several ranks the first one selects, and each writes some of the shards.

    Args:
        variant: End of the artifact's key; not empty if the settings are not the workspace's own.

    Raises:
        MissingError: if `precompute` has not run.
        ResourceError: if the states do not fit on the disk.
        CorruptError: if a hidden state or a problem is not the one that was stored.
    """
    source = workspace.require(PRECOMPUTE)
    inputs = {PRECOMPUTE: source.fingerprint}
    spec = ArtifactSpec(SCORE, ratio_name(ratio) + variant, stage_config(settings, SCORE), inputs, tuple(overrides))
    if ready := ranks.first(lambda: ready_result(workspace, spec, ScoreResult)):
        return ready
    theta = load_matching_theta(settings, source)
    problems = theta.encoder.problems([item.problem for item in read_problems(source)])
    num_train = source.manifest.summary["num_train"]
    ranks.first(
        lambda: check_space(
            workspace.root,
            _num_bytes(theta, problems, ratio) - written_bytes(workspace, spec),
            fix="free some space, or choose a smaller --ratio",
        )
    )
    with building(workspace, spec, progress, shares_folder=True) as build:

        def select() -> list[list[int]]:
            source.check()
            build.drop_unknown()
            same_settings = (workspace.matching(replace(spec, key=other)) for other in workspace.finished(SCORE))
            fitted = chain([build.folder], (each.folder for each in same_settings if each and has_sound_selector(each)))
            selector = fit_selector(theta, source, problems[:num_train], ratio, settings, progress, fitted=fitted)
            for path in selector.save(build.folder):
                build.hash_early(path)
            # An interrupted attempt may have selected others, on another device.
            for leftover in build.folder.glob("shard-*"):
                leftover.unlink()
            return all_positions(selector, source, problems)

        def probe() -> list[float]:
            train, held_out = (
                {number: _next_numbers(theta, problems[number], selected[number]) for number in part}
                for part in (range(min(num_train, MOST_PROBED)), range(num_train, len(problems)))
            )
            return _probe(build.folder, train, held_out, theta.num_layers + 1, progress)

        selected = ranks.first(select)
        _write_states(build, theta, source, problems, selected, progress)
        result = _result(theta, settings, ratio, problems, selected, ranks.first(probe))
        build.summary.update(asdict(result))
    return result


def _result(
    theta: Theta,
    settings: Settings,
    ratio: Decimal,
    problems: list[EncodedProblem],
    selected: list[list[int]],
    probe: list[float],
) -> ScoreResult:
    return ScoreResult(
        ratio=float(ratio),
        selector=settings.score.selector,
        num_problems=len(problems),
        mean_kept=sum(map(len, selected)) / len(selected),
        mean_chain=sum(len(problem.chain) for problem in problems) / len(problems),
        kinds=kinds_of(theta, problems, selected),
        overlap_with_even=sum(map(_overlap_with_even, problems, selected)) / len(selected),
        examples=[
            theta.encoder.marked(problem.chain, positions)
            for problem, positions in zip(problems[:NUM_EXAMPLES], selected, strict=False)
        ],
        probe=probe,
        autoregressive_layer=lowest_sufficient(probe),
    )


def _probe(
    folder: Path, train: _NextNumbers, held_out: _NextNumbers, num_indices: int, progress: Progress
) -> list[float]:
    """Compute how well a probe at each index reads the next number from the validation problems' selected states.

    Args:
        folder: Where the selected states are.
        train: Of the problems to fit the probes on.
        held_out: Of the validation problems.

    Returns:
        Accuracies at the indices 0 to L; empty if no number follows a selected token.
    """
    if not all(any(part.values()) for part in (train, held_out)):
        return []
    accuracies = []
    with progress.task("what each layer holds", total=num_indices, unit="indices") as advance:
        for index in range(num_indices):
            parts = (_states_before_numbers(folder, part, index) for part in (train, held_out))
            accuracies.append(probe_accuracy(*parts))
            advance()
    return accuracies


def _next_numbers(theta: Theta, problem: EncodedProblem, positions: list[int]) -> dict[int, int]:
    """Return the rows of the selected tokens that a token with a digit follows, and that token's id."""
    ids = [following_ids(theta, problem)[position] for position in positions]
    return {row: token for row, token in enumerate(ids, start=1) if theta.encoder.has_digit(token)}


def _states_before_numbers(folder: Path, next_numbers: _NextNumbers, index: int) -> tuple[Tensor, Tensor]:
    """Read some problems' states at one index (M, D), and the ids of the numbers that follow (M)."""
    states, ids = list[Tensor](), list[int]()
    for record in read_records(folder, indices=slice(index, index + 1), wanted=next_numbers.keys()):
        found = next_numbers[record.number]
        states.append(record.states_JID[[*found], 0])
        ids += found.values()
    return torch.cat(states), torch.tensor(ids)


def _num_bytes(theta: Theta, problems: list[EncodedProblem], ratio: Decimal) -> int:
    """Count the bytes that will be written: the selected rows and the last query token's, at every index."""
    num_rows = sum(1 + num_kept(ratio, len(problem.chain)) for problem in problems)
    width: int = theta.model.config.hidden_size
    return num_rows * (theta.num_layers + 1) * width * STORED_DTYPE.itemsize


def _overlap_with_even(problem: EncodedProblem, positions: list[int]) -> float:
    return overlap(positions, even(len(problem.chain), len(positions), torch.Generator()))


def _write_states(
    build: Build,
    theta: Theta,
    source: Artifact,
    problems: list[EncodedProblem],
    selected: list[list[int]],
    progress: Progress,
) -> None:
    """Write every problem's row 0, the last query token, and its selected rows, at every index.

    If `precompute` stored one index only, θ runs again over the same batches, so that the states are the same.
    """
    rows = [[0, *(position + 1 for position in positions)] for positions in selected]
    indices = range(theta.num_layers + 1)

    def make(wanted: frozenset[int]) -> Iterator[Record]:
        if source.manifest.summary["is_every_index"]:
            return (record.select(rows[record.number]) for record in read_records(source.folder, wanted=wanted))
        batch_tokens = source.manifest.summary["batch_tokens"]
        states = gold_states(theta, problems, indices=indices, batch_tokens=batch_tokens, wanted=wanted)
        return (make_record(number, problems[number], each_JID).select(rows[number]) for number, each_JID in states)

    write_records(
        build,
        solution_order(theta, problems),
        [len(each) for each in rows],
        make,
        num_indices=len(indices),
        row_bytes=len(indices) * theta.model.config.hidden_size * STORED_DTYPE.itemsize,
        shard_bytes=SHARD_BYTES,
        label="selected states",
        progress=progress,
    )


def kind(text: str) -> str:
    """Classify a token by its text."""
    text = text.strip(" ")
    if not text.strip():
        return "line break" if text else "space"
    if text.strip("$").replace(".", "").replace(",", "").isdigit():
        return "number"
    if text in {"+", "-", "*", "/", "x"}:
        return "operator"
    if text == "=":
        return "="
    return "word" if any(character.isalpha() for character in text) else "punctuation"


def kinds_of(theta: Theta, problems: list[EncodedProblem], selected: list[list[int]]) -> dict[str, float]:
    """Return the proportion of each kind among the selected tokens, most frequent first."""
    ids = Counter(
        problem.chain[position] for problem, positions in zip(problems, selected, strict=True) for position in positions
    )
    kinds: Counter[str] = Counter()
    for token, count in ids.items():
        kinds[kind(theta.encoder.tokenizer.decode([token]))] += count
    return {name: count / kinds.total() for name, count in kinds.most_common()}
