"""Look into a trained CCoT: which chain tokens it imitates, what its contemplation tokens hold, what depends on them.

Dimensions: B batch, J rows of a problem with z_0, I hidden-state indices 0..L, K contemplation tokens of one problem,
N problems, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from math import ceil
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.config import Settings
from ccot_cli.data.arithmetic import equations_in
from ccot_cli.data.batches import cut, group_alike
from ccot_cli.data.problems import Problem, load_training
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.selection.gold import STORED_DTYPE, GoldExample, following_ids, gold_states
from ccot_cli.models.selection.predictive import announcements, last_states
from ccot_cli.models.selection.selector import NUM_SCORED, Selector, predictive_selector
from ccot_cli.models.training.phi_joint import generate
from ccot_cli.models.training.queries import FreshQueries
from ccot_cli.names import CCOT, SCORE, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages.evaluate import problems_to_ask
from ccot_cli.stages.inputs import pass_tokens, short_enough
from ccot_cli.stages.methods import find_methods
from ccot_cli.stages.patching import Moves, Solved, count_moves, replace_each
from ccot_cli.stages.score import kinds_of
from ccot_cli.stages.thoughts import CheckedThought, check_thoughts
from ccot_cli.stages.validation import ask, is_right
from ccot_cli.tensors.probes import fit_probe
from ccot_cli.workspace.workspace import Workspace

MOST_FITTED = 2000
"""Training problems, at most, that probes and the selector are fitted on."""
BATCH_SIZE = 32
MOST_RESULTS = 3
"""Results of a chain, from the first one on, that probes look for."""
LEAST_CASES = 20
"""Test problems without which a probe's accuracy says nothing."""
NUM_PLACES = 5
"""Equal parts of a line of a chain."""
NUM_EXAMPLES = 6


@dataclass(frozen=True)
class ResultMap:
    """How often a linear probe reads one result of the chain from contemplation tokens of test problems.

    For each index and token there is a probe of its own, fitted on the generated states of training problems.
    """

    result: int
    """Which result of the chain, from 1."""
    accuracy_IK: list[list[float]]
    """By index, from 0 to L, and by token, as far as there are `LEAST_CASES` problems."""
    cases_K: list[int]
    """Test problems that have this result and this token."""
    guess_K: list[float]
    """How often the most frequent result of training is right."""


@dataclass(frozen=True)
class Example:
    """One test question and what CCoT made of it."""

    question: str
    marked_chain: str
    """The given chain, with the tokens that φ learned to imitate in [brackets]."""
    reference: str
    answer: str
    thoughts: list[CheckedThought]


@dataclass(frozen=True)
class Inspection:
    """What was seen."""

    model: str
    ratio: float
    autoregressive_layer: int
    num_layers: int
    num_fitted: int
    """Training problems that probes were fitted on."""
    num_problems: int
    """Test problems."""
    num_right: int
    mean_chain: float
    """Mean m of the test problems."""
    mean_kept: float
    """Mean k of the test problems, as selected."""
    mean_tokens: float
    """Mean number of contemplation tokens, as END let them pass."""
    kinds_kept: dict[str, float]
    """Proportion of the kept tokens by kind."""
    kinds_chain: dict[str, float]
    """Proportion of all chain tokens by kind."""
    kept_by_place: list[float]
    """Proportion of tokens that are kept, in each fifth of a line of a chain."""
    error_IK: list[list[float]]
    """φ's mean scaled error on its own rollouts, by index from l to L, and by token, as far as there are `LEAST_CASES`
    problems: 0 is perfect, 1 no better than a mean."""
    error_cases_K: list[int]
    """Test problems with so many kept tokens."""
    results: list[ResultMap]
    moves: Moves
    """Where answers moved when one token was replaced by another question's."""
    moves_by_place: list[Moves]
    """The same for each place of the token."""
    examples: list[Example]


def run(
    workspace: Workspace | None, settings: Settings, ratio: Decimal | None, *, limit: int | None, progress: Progress
) -> Inspection:
    """Inspect CCoT at one ratio on test problems.

    Args:
        workspace: None inspects the embedded model.
        ratio: The usual one by default.
        limit: Most test problems; None for all.

    Raises:
        MissingError: if the ratio was not trained.
        UsageError: if the ratio has no contemplation tokens, or no test problems are named or left.
    """
    methods = find_methods(workspace, settings)
    method = methods.find(CCOT, ratio).load()
    if not isinstance(method, CcotMethod):
        raise UsageError(f"{method.name} has no contemplation tokens", fix="a ratio between 0 and 1")
    theta, layer = methods.theta, method.info.autoregressive_layer
    problems = problems_to_ask(methods, settings, limit, progress, needs_chains=True)
    fitted = short_enough(theta, load_training(methods.data).train[:MOST_FITTED])
    train = sorted(fitted, key=lambda problem: len(problem.question))
    encoded = theta.encoder.problems(problems)
    method.adapters.use(None)
    batch_tokens = pass_tokens(theta, settings)
    selector = _selector(workspace, theta, theta.encoder.problems(fitted), method.ratio, settings)
    examples, positions = _select(theta, encoded, selector, batch_tokens)
    error_IK, error_cases_K = _errors(method, examples, progress)
    states = _states(method, problems, "contemplation tokens", progress)
    train_states = _states(method, train, "contemplation tokens to fit probes on", progress)
    reading = replace(method, reads_thoughts=True)
    replies = [reply for _, batch, _ in ask(reading, problems, BATCH_SIZE, "answers", progress) for reply in batch]
    solved = [Solved(*pair) for pair in zip(problems, replies, strict=True) if is_right(*pair)]
    shown = [
        Example(
            problems[number].question,
            theta.encoder.marked(encoded[number].chain, positions[number]),
            problems[number].answer,
            replies[number].answer,
            check_thoughts(problems[number].question, replies[number]).thoughts,
        )
        for number in range(0, len(problems), ceil(len(problems) / NUM_EXAMPLES))
    ]
    pairable = group_alike(solved, lambda each: each.kind, batch_size=BATCH_SIZE)
    cases = [case for batch in pairable for case in replace_each(method, batch)]
    places = sorted({case.place for case in cases})
    return Inspection(
        model=theta.name,
        ratio=float(method.ratio),
        autoregressive_layer=layer,
        num_layers=theta.num_layers,
        num_fitted=len(train),
        num_problems=len(problems),
        num_right=len(solved),
        mean_chain=fmean(len(each.chain) for each in encoded),
        mean_kept=fmean(map(len, positions)),
        mean_tokens=fmean(each.shape[1] for each in states),
        kinds_kept=kinds_of(theta, encoded, positions),
        kinds_chain=kinds_of(theta, encoded, [list(range(len(each.chain))) for each in encoded]),
        kept_by_place=_kept_by_place(theta, encoded, positions),
        error_IK=error_IK,
        error_cases_K=error_cases_K,
        results=_result_maps(train, train_states, problems, states),
        moves=count_moves(cases),
        moves_by_place=[count_moves([case for case in cases if case.place == place]) for place in places],
        examples=shown,
    )


def _selector(
    workspace: Workspace | None, theta: Theta, train: list[EncodedProblem], ratio: Decimal, settings: Settings
) -> Selector:
    """Load the selector that φ was trained with; if it is not kept, as in the package, make it anew.

    Raises:
        MissingError: if it was the learned one, and is not kept.
    """
    if workspace is not None:
        config = settings.score
        if scored := workspace.artifact(SCORE, ratio_name(ratio)):
            return Selector.load(theta, scored.folder)
        if config.selector == "learned":
            raise MissingError(
                f"the learned scorer of r = {ratio:f} is not kept",
                fix=f"{workspace.command('precompute')}, then {workspace.command('score', f'--ratio={ratio:f}')}",
            )
        if config.selector != "predictive":
            return Selector(config.selector, ratio, theta.encoder, seed=config.seed)
    scored_problems = train[:NUM_SCORED]
    states = last_states(theta, scored_problems, batch_tokens=pass_tokens(theta, settings))
    return predictive_selector(theta, train, ratio, announcements(theta, scored_problems, states))


def _select(
    theta: Theta, problems: Sequence[EncodedProblem], selector: Selector, batch_tokens: int
) -> tuple[list[GoldExample], list[list[int]]]:
    """Return each problem's gold states at the selected tokens, and the tokens' positions in its chain."""
    examples, positions = dict[int, GoldExample](), dict[int, list[int]]()
    indices = range(theta.num_layers + 1)
    for number, states_JID in gold_states(theta, problems, indices=indices, batch_tokens=batch_tokens):
        problem = problems[number]
        kept = selector.positions(problem, states_MD=states_JID[1:, selector.layer])
        following = following_ids(theta, problem)
        next_K = torch.tensor([following[position] for position in kept])
        rows = [0, *(position + 1 for position in kept)]
        examples[number], positions[number] = GoldExample(problem.query, states_JID[rows], next_K), kept
    return [examples[number] for number in range(len(problems))], [positions[n] for n in range(len(problems))]


@torch.no_grad()
def _errors(
    method: CcotMethod, examples: Sequence[GoldExample], progress: Progress
) -> tuple[list[list[float]], list[int]]:
    """Compute φ's mean scaled error on its own rollouts by index and token, and how many problems have each token."""
    layer = method.info.autoregressive_layer
    queries = FreshQueries(method.adapters, [example.query for example in examples], layer, reader=method.reader)
    sums, counts = list[Tensor](), list[Tensor]()
    with progress.task("φ's errors", total=len(examples), unit="problems") as advance:
        for numbers in cut(range(len(examples)), BATCH_SIZE):
            rollout = generate(method.adapters, examples, queries, numbers, layer=layer)
            sums.append(rollout.errors().sum(dim=0).float().cpu().T)
            counts.append(rollout.mask_BK.sum(dim=0).cpu())
            advance(len(numbers))
    sum_IK, count_K = pad_sequence(sums).sum(dim=1).T, pad_sequence(counts).sum(dim=1)
    shown = max(1, int((count_K >= LEAST_CASES).sum()))
    return (sum_IK / count_K)[:, :shown].tolist(), count_K[:shown].tolist()


@torch.no_grad()
def _states(method: CcotMethod, problems: Sequence[Problem], label: str, progress: Progress) -> list[Tensor]:
    """Generate each problem's contemplation tokens until END; return their states at every index: I, K, D."""
    found = list[Tensor]()
    with progress.task(label, total=len(problems), unit="problems") as advance:
        for numbers in cut(range(len(problems)), BATCH_SIZE):
            queries = [method.theta.encoder.query(problems[number].question) for number in numbers]
            tokens = method.generate(*method.read(queries))
            # The layers above l have run already, but only l's and L's states were kept.
            states_BIKD = method.token_states(queries, tokens).to("cpu", STORED_DTYPE)
            counts = tokens.num_tokens_B.tolist()
            found += [states_IKD[:, :count] for states_IKD, count in zip(states_BIKD, counts, strict=True)]
            advance(len(numbers))
    return found


def _kept_by_place(theta: Theta, problems: Sequence[EncodedProblem], positions: Sequence[list[int]]) -> list[float]:
    """Return the proportion of kept tokens in each fifth of a line."""
    kept, total = [0] * NUM_PLACES, [0] * NUM_PLACES
    for problem, chosen in zip(problems, positions, strict=True):
        lines = theta.encoder.lines(problem.chain)
        for position, line in enumerate(lines):
            first, length = lines.index(line), lines.count(line)
            place = (position - first) * NUM_PLACES // length
            total[place] += 1
            kept[place] += position in chosen
    return [count / max(1, among) for count, among in zip(kept, total, strict=True)]


def _results(problem: Problem) -> list[Fraction]:
    return [equation.result for equation in equations_in(problem.chain)]


def _result_maps(
    train: Sequence[Problem], train_states: Sequence[Tensor], test: Sequence[Problem], test_states: Sequence[Tensor]
) -> list[ResultMap]:
    """Fit a probe for every result, index and token, and measure it on the test problems."""
    train_results, test_results = ([_results(problem) for problem in problems] for problems in (train, test))
    labels = {result: label for label, result in enumerate({*chain(*train_results), *chain(*test_results)})}

    def labelled(
        states: Sequence[Tensor], results: Sequence[list[Fraction]], which: int, token: int
    ) -> tuple[list[Tensor], list[int]]:
        """Return the states of a token, and the labels of a result, of the problems that have both."""
        both = [
            (states_IKD[:, token].float(), labels[found[which]])
            for states_IKD, found in zip(states, results, strict=True)
            if states_IKD.shape[1] > token and len(found) > which
        ]
        return [states_ID for states_ID, _ in both], [label for _, label in both]

    maps = []
    for which in range(MOST_RESULTS):
        columns, cases_K, guess_K = list[list[float]](), list[int](), list[float]()
        for token in range(max(each.shape[1] for each in test_states)):
            states, known = labelled(train_states, train_results, which, token)
            test_of_token, asked = labelled(test_states, test_results, which, token)
            if min(len(known), len(asked)) < LEAST_CASES:
                break
            known_NID, known_N = torch.stack(states), torch.tensor(known)
            asked_NID, asked_N = torch.stack(test_of_token), torch.tensor(asked)
            probes = [fit_probe(known_NID[:, index], known_N) for index in range(known_NID.shape[1])]
            columns.append(
                [
                    float(probe.is_right(asked_NID[:, index], asked_N).float().mean())
                    for index, probe in enumerate(probes)
                ]
            )
            cases_K.append(len(asked))
            guess_K.append(float((asked_N == known_N.mode().values).float().mean()))
        if columns:
            maps.append(ResultMap(which + 1, [list(row) for row in zip(*columns, strict=True)], cases_K, guess_K))
    return maps
