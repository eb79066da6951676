"""Gold hidden states: θ over whole solutions (paper, section 4.1).

A problem's gold states are those of its last query token, which z_0 stands for, and of its m chain tokens: 1 + m rows.

Dimensions: B batch, T tokens of a solution, M tokens whose states are kept, I hidden-state indices that are kept, J and
K tokens of one problem with and without z_0, D width.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.data.batches import plan_batches
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.cache import CachedSequence, empty_cache
from ccot_cli.models.base.memory import in_parts
from ccot_cli.models.base.theta import Theta
from ccot_cli.tensors.masks import first_columns, pad_right

STORED_DTYPE = torch.bfloat16
"""Two bytes per number with the range of float32. The rounding error is far below φ's own error."""


@dataclass(frozen=True)
class GoldExample:
    """One problem's selected gold states, which φ learns to generate."""

    query: list[int]
    gold_JID: Tensor
    """z_0 .. z_k at every index: 1 + k, L + 1, D."""
    next_K: Tensor
    """Id of the token that follows each kept one in the chain."""


def solution_ids(theta: Theta, problem: EncodedProblem) -> list[int]:
    """Return the token ids of a whole solution: query, chain, the answer's marker, answer."""
    return [*problem.query, *problem.chain, *theta.encoder.answer_marker, *problem.answer]


def fits(theta: Theta, problem: EncodedProblem) -> bool:
    """Tell whether the model was made for texts as long as the whole solution."""
    longest: int | None = getattr(theta.model.config, "max_position_embeddings", None)
    return longest is None or len(solution_ids(theta, problem)) <= longest


def solution_order(theta: Theta, problems: Sequence[EncodedProblem]) -> list[int]:
    """Return the numbers of the problems in the order in which `gold_states` yields them."""
    lengths = [len(solution_ids(theta, problem)) for problem in problems]
    return [number for batch in plan_batches(lengths, batch_tokens=1) for number in batch]


def following_ids(theta: Theta, problem: EncodedProblem) -> list[int]:
    """Return the token id that follows each chain token; the first of the answer's marker follows the last one."""
    return [*problem.chain[1:], theta.encoder.answer_marker[0]]


@torch.no_grad()
def gold_states(
    theta: Theta,
    problems: Sequence[EncodedProblem],
    *,
    indices: Sequence[int],
    batch_tokens: int,
    dtype: torch.dtype = STORED_DTYPE,
    wanted: Set[int] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield each problem's number and its gold states (1 + m, I, D), longest problems first.

    The batches depend on the problems and `batch_tokens` alone, so two passes that fit into memory give the same bits.

    Args:
        theta: The model, under whatever weights are in use.
        problems: Training problems with their chains and answers.
        indices: Hidden-state indices to keep, 0 to L.
        batch_tokens: Most tokens in a batch, padding included.
        dtype: Precision of the states that are yielded.
        wanted: Numbers of the problems whose states are yielded; all by default.

    Raises:
        ResourceError: if a single problem does not fit into memory.
    """
    lengths = [len(solution_ids(theta, problem)) for problem in problems]
    for batch in plan_batches(lengths, batch_tokens=batch_tokens):
        if wanted is not None and wanted.isdisjoint(batch):
            continue

        def run(part: Sequence[int]) -> list[Tensor]:
            return _run(theta, [problems[number] for number in part], indices=indices, dtype=dtype)

        states = (each for part in in_parts(batch, run) for each in part)
        found = zip(batch, states, strict=True)
        yield from ((number, each) for number, each in found if wanted is None or number in wanted)


def place_gold(adapters: Adapters, sequence: CachedSequence, gold: Sequence[Tensor]) -> None:
    """Append gold states in place of contemplation tokens, with keys and values made under θ.

    Args:
        adapters: θ with its adapters.
        sequence: What comes before; extended by as many columns as the longest row needs.
        gold: Each row's states at the indices from 0: K, I, D.
    """
    theta = adapters.theta
    gold_BKID = pad_sequence(list(gold), batch_first=True).to(theta.device, theta.dtype)
    sequence.extend(first_columns([len(states_KID) for states_KID in gold], device=theta.device))
    adapters.use(None)
    theta.blocks.place(gold_BKID.transpose(1, 2), sequence)


def _run(
    theta: Theta, problems: Sequence[EncodedProblem], *, indices: Sequence[int], dtype: torch.dtype
) -> list[Tensor]:
    """Compute the gold states of one batch, each (1 + m, I, D)."""
    ids_BT, mask_BT = pad_right(
        [solution_ids(theta, each) for each in problems], fill=theta.pad_id, device=theta.device
    )
    sequence = CachedSequence.empty(len(problems), theta.device)
    sequence.extend(mask_BT)
    counts = [1 + len(each.chain) for each in problems]
    wanted_BT = torch.zeros_like(mask_BT)
    for row, (each, count) in enumerate(zip(problems, counts, strict=True)):
        wanted_BT[row, len(each.query) - 1 :][:count] = True
    flat_M = wanted_BT.flatten().nonzero()[:, 0]
    hidden_BTD = theta.blocks.enter(theta.blocks.embed(ids_BT), sequence)
    kept_MID = torch.empty(len(flat_M), len(indices), hidden_BTD.shape[2], dtype=dtype, device=theta.device)
    for index in range(max(indices) + 1):
        if index:
            hidden_BTD = theta.blocks.run(hidden_BTD, index - 1, index, sequence)
            # All tokens ran at once, so no later one needs the keys and values.
            sequence.cache = empty_cache()
        if index in indices:
            kept_MID[:, indices.index(index)] = hidden_BTD.flatten(0, 1).index_select(0, flat_M)
    return list(torch.split(kept_MID.cpu(), counts))
