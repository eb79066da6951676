"""Scores for the predictive selector: how much each kind of word announces (ours).

The paper leaves open which states are easier to emulate. A word *announces* its successor if θ knows the successor and
a local guess does not. `=` before a result does; the result itself and most words do not. Such a word is the same in
every chain, so φ needs to know nothing of its state before it is computed, and its upper layers hold what comes next.
The local guess mixes the bigram of the word with the words that the chain has written already, because repeating one
of those is no news.

Whole words are compared, however many tokens they have: a number may be one token, or one for each digit, and θ's
surprisal at it is the sum over its tokens. What announces it is the last token before it.

The score is a mean over all occurrences of a word, so the same kinds of word are kept in every chain: φ has to know
which one comes next as well as what it holds. Words that begin with the same token share a score.

Dimensions: J and M tokens of one problem with and without z_0, I hidden-state indices (here one), D width,
V vocabulary.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from math import log

import torch
from torch import Tensor

from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import following_ids, gold_states

PRIOR_COUNT = 10.0
"""Occurrences with the overall mean score that are added to those of every word, so that rare words get near it."""
Word = tuple[int, ...]
"""The ids of a word's tokens."""


NumberedStates = Iterable[tuple[int, Tensor]]
"""Numbers of problems with the raw states of their chains' tokens at index L: M, D."""


def last_states(theta: Theta, problems: Sequence[EncodedProblem], *, batch_tokens: int) -> Iterator[tuple[int, Tensor]]:
    """Run θ, and yield each problem's number and its chain's states at index L (M, D), in the precision of shards.

    Args:
        theta: The model, under whatever weights are in use.
        problems: Problems with their chains and answers.
        batch_tokens: Most tokens in a batch, padding included.

    Raises:
        ResourceError: if a single problem does not fit into memory.
    """
    indices = [theta.num_layers]
    for number, states_JID in gold_states(theta, problems, indices=indices, batch_tokens=batch_tokens):
        yield number, states_JID[1:, 0]


@torch.no_grad()
def surprisals(
    theta: Theta, problems: Sequence[EncodedProblem], states: NumberedStates
) -> Iterator[tuple[int, list[float]]]:
    """Compute θ's surprisal, in nats, at the successor of each chain token; the last one's is the answer's marker.

    Args:
        theta: Gives norm and head.
        problems: Problems with their chains.
        states: Which problems to compute, and θ's states.

    Yields:
        A problem's number and its m surprisals.
    """
    for number, states_MD in states:
        log_prob_MV = theta.blocks.logits(states_MD.to(theta.device, theta.dtype)).float().log_softmax(dim=-1)
        following_M = torch.tensor(following_ids(theta, problems[number]), device=theta.device)
        yield number, (-log_prob_MV.gather(1, following_M[:, None])[:, 0]).tolist()


def announcements(
    theta: Theta,
    problems: Sequence[EncodedProblem],
    states: NumberedStates,
    *,
    advance: Callable[[], None] = lambda: None,
) -> Tensor:
    """Score the words that begin with each token: local surprisal minus θ's, in nats, averaged over occurrences.

    Args:
        theta: Gives norm, head and tokenizer.
        problems: Training problems; a thousand are enough.
        states: θ's states of all these problems, in any order.
        advance: Called after each problem.

    Returns:
        scores_V. Tokens that begin no word of the chains get the overall mean.
    """
    pairs, successors = defaultdict[int, Counter[Word]](Counter), Counter[Word]()
    chains = [[*_words(theta, problem), (theta.encoder.answer_marker[0],)] for problem in problems]
    for chain in chains:
        for word, following in pairwise(chain):
            pairs[word[0]][following] += 1
            successors[following] += 1
    num_words, vocabulary = successors.total(), theta.model.config.vocab_size
    # In double precision, so that the order of the problems does not matter.
    sums, counts = torch.zeros(vocabulary, dtype=torch.float64), torch.zeros(vocabulary)
    for number, chain_surprisals in surprisals(theta, problems, states):
        written, end = Counter[Word](), 0
        for word, following in pairwise(chains[number]):
            written[word] += 1
            end += len(word)
            seen = pairs[word[0]]
            unigram = (successors[following] + 1) / (num_words + vocabulary)
            # Leave this occurrence out of the counts, and smooth them with two pseudo-counts of the unigram.
            bigram = (seen[following] - 1 + 2 * unigram) / (seen.total() - 1 + 2)
            guess = 0.5 * bigram + 0.5 * written[following] / written.total()
            # The surprisals are at the successors of the tokens, so that the word's last token has that of the next.
            sums[word[0]] += -log(guess) - sum(chain_surprisals[end - 1 : end - 1 + len(following)])
            counts[word[0]] += 1
        advance()
    overall = sums.sum() / counts.sum()
    return ((sums + PRIOR_COUNT * overall) / (counts + PRIOR_COUNT)).float()


def _words(theta: Theta, problem: EncodedProblem) -> list[Word]:
    """Return the words of a problem's chain."""
    numbered = zip(theta.encoder.words(problem.chain), problem.chain, strict=True)
    return [tuple(token for _, token in group) for _, group in groupby(numbered, key=lambda pair: pair[0])]
