"""Scores for the predictive selector: how much each kind of token announces (ours).

The paper leaves open which states are easier to emulate. A token *announces* its successor if θ knows the successor and
a local guess does not. `=` before a result does; the result itself and most words do not. Such a token is the same in
every chain, so φ needs to know nothing of its state before it is computed, and its upper layers hold what comes next.
The local guess mixes the bigram of the token with the tokens that the chain has written already, because repeating one
of those is no news.

The score is a mean over all occurrences of a token, so the same kinds of token are kept in every chain: φ has to know
which token comes next as well as what it holds.

Dimensions: B batch, T tokens of a solution, V vocabulary.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
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
"""Occurrences with the overall mean score that are added to those of every token, so that rare tokens get near it."""


@torch.no_grad()
def surprisals(
    theta: Theta, problems: Sequence[EncodedProblem], *, batch_tokens: int
) -> Iterator[tuple[int, list[float]]]:
    """Compute θ's surprisal, in nats, at the successor of each chain token; the last one's is the answer's marker.

    Args:
        theta: The model, under whatever weights are in use.
        problems: Problems with their chains and answers.
        batch_tokens: Most tokens in a batch, padding included.

    Yields:
        A problem's number and its m surprisals.

    Raises:
        ResourceError: if a single problem does not fit into memory.
    """

    def run(batch: Sequence[int]) -> list[tuple[int, list[float]]]:
        solutions = [solution_ids(theta, problems[number]) for number in batch]
        ids_BT, mask_BT = pad_right(solutions, fill=theta.pad_id, device=theta.device)
        hidden_BTD = theta.blocks.run_ids(ids_BT, mask_BT, CachedSequence.empty(len(batch), theta.device))
        results = []
        for row, number in enumerate(batch):
            start = len(problems[number].query)
            end = start + len(problems[number].chain)
            log_prob_MV = theta.blocks.logits(hidden_BTD[row : row + 1, start:end])[0].float().log_softmax(dim=-1)
            following_M = ids_BT[row, start + 1 : end + 1]
            results.append((number, (-log_prob_MV.gather(1, following_M[:, None])[:, 0]).tolist()))
        return results

    lengths = [len(solution_ids(theta, problem)) for problem in problems]
    for batch in plan_batches(lengths, batch_tokens=batch_tokens):
        for results in in_parts(batch, run):
            yield from results


def announcements(
    theta: Theta,
    problems: Sequence[EncodedProblem],
    *,
    batch_tokens: int,
    advance: Callable[[], None] = lambda: None,
) -> Tensor:
    """Score every token of the vocabulary: local surprisal minus θ's, in nats, averaged over its occurrences.

    Args:
        theta: The model, under whatever weights are in use.
        problems: Training problems; a thousand are enough.
        batch_tokens: Most tokens in a batch, padding included.
        advance: Called after each problem.

    Returns:
        scores_V. Tokens that are in no chain get the overall mean.
    """
    pairs, successors = defaultdict[int, Counter[int]](Counter), Counter[int]()
    chains = [[*problem.chain, theta.encoder.answer_marker[0]] for problem in problems]
    for chain in chains:
        for token, following in pairwise(chain):
            pairs[token][following] += 1
            successors[following] += 1
    num_tokens, vocabulary = successors.total(), theta.model.config.vocab_size
    sums, counts = torch.zeros(vocabulary), torch.zeros(vocabulary)
    for number, chain_surprisals in surprisals(theta, problems, batch_tokens=batch_tokens):
        chain, written = chains[number], Counter[int]()
        for position, surprisal in enumerate(chain_surprisals):
            token, following = chain[position], chain[position + 1]
            written[token] += 1
            unigram = (successors[following] + 1) / (num_tokens + vocabulary)
            # Leave this occurrence out of the counts, and smooth them with two pseudo-counts of the unigram.
            bigram = (pairs[token][following] - 1 + 2 * unigram) / (pairs[token].total() - 1 + 2)
            guess = 0.5 * bigram + 0.5 * written[following] / written.total()
            sums[token] += -log(guess) - surprisal
            counts[token] += 1
        advance()
    overall = sums.sum() / counts.sum()
    return (sums + PRIOR_COUNT * overall) / (counts + PRIOR_COUNT)
