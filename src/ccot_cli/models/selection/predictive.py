"""How much each kind of token announces: ours, for the paper's open question of states that are easier to emulate.

A token *announces* its successor where θ knows it and a local guess does not: `=` before a result does, the result
itself and most words do not. Such a token looks the same in every chain, so nothing of its state has to be known before
it is computed, and its upper layers hold what comes next. The local guess mixes the bigram of the token's identity with
the tokens that the chain has written already; what was written before is no news.

The score is a mean over all occurrences of a token, so that the same kind is kept in every chain: φ has to know which
token comes next as well as what it holds.

Dimensions: B batch, T tokens of a solution, V vocabulary.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import log

import torch
from torch import Tensor

from ccot_cli.data.batches import plan_batches
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.memory import in_parts
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import solution_ids
from ccot_cli.tensors.masks import pad_right

PRIOR_COUNT = 10.0
"""Occurrences at the overall mean that every token is given on top of its own."""


@torch.no_grad()
def surprisals(
    theta: Theta, problems: Sequence[EncodedProblem], *, batch_tokens: int
) -> Iterator[tuple[int, list[float]]]:
    """θ's surprisal, in nats, of what follows each chain token; the last is followed by the answer's marker.

    Yields:
        A problem's number and m numbers.
    """

    def run(batch: Sequence[int]) -> list[tuple[int, list[float]]]:
        rows = [solution_ids(theta, problems[number]) for number in batch]
        ids_BT, mask_BT = pad_right(rows, fill=theta.pad_id, device=theta.device)
        hidden_BTD = theta.blocks.run_ids(ids_BT, mask_BT, CachedSequence.empty(len(batch), theta.device))
        found = []
        for place, number in enumerate(batch):
            start = len(problems[number].query)
            end = start + len(problems[number].chain)
            log_share_MV = theta.blocks.logits(hidden_BTD[place : place + 1, start:end])[0].float().log_softmax(dim=-1)
            following_M = ids_BT[place, start + 1 : end + 1]
            found.append((number, (-log_share_MV.gather(1, following_M[:, None])[:, 0]).tolist()))
        return found

    lengths = [len(solution_ids(theta, problem)) for problem in problems]
    for batch in plan_batches(lengths, batch_tokens=batch_tokens):
        for found in in_parts(batch, run):
            yield from found


def announcements(theta: Theta, problems: Sequence[EncodedProblem], *, batch_tokens: int) -> Tensor:
    """A score for every token of the vocabulary: local surprisal minus θ's, in nats, averaged over the chains.

    Args:
        problems: Training problems; a thousand are enough.

    Returns:
        scores_V: the overall mean at tokens that no chain holds.
    """
    pairs, successors = defaultdict[int, Counter[int]](Counter), Counter[int]()
    chains = [[*problem.chain, theta.encoder.answer_marker[0]] for problem in problems]
    for chain in chains:
        for token, following in pairwise(chain):
            pairs[token][following] += 1
            successors[following] += 1
    num_all, vocabulary = successors.total(), theta.model.config.vocab_size
    sums, counts = torch.zeros(vocabulary), torch.zeros(vocabulary)
    for number, known in surprisals(theta, problems, batch_tokens=batch_tokens):
        chain, written = chains[number], Counter[int]()
        for place, surprisal in enumerate(known):
            token, following = chain[place], chain[place + 1]
            written[token] += 1
            common = (successors[following] + 1) / (num_all + vocabulary)
            # An occurrence does not count as its own example.
            bigram = (pairs[token][following] - 1 + 2 * common) / (pairs[token].total() - 1 + 2)
            guess = 0.5 * bigram + 0.5 * written[following] / written.total()
            sums[token] += -log(guess) - surprisal
            counts[token] += 1
    overall = sums.sum() / counts.sum()
    return (sums + PRIOR_COUNT * overall) / (counts + PRIOR_COUNT)
