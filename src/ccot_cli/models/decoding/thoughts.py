"""Read contemplation tokens: which words θ would write next from their states, and how sure END is.

The states at index L go through θ's final norm and head, as those of text tokens do. The states at index l go through
them too, though they were not made for that (the logit lens; nostalgebraist, 2020).

Dimensions: K contemplation tokens of one row, D width, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import Contemplation

NUM_WORDS = 5


@dataclass(frozen=True)
class Word:
    """One entry of the vocabulary."""

    text: str
    """As it stands in a text, with the space before it."""
    probability: float


@dataclass(frozen=True)
class Thought:
    """What one contemplation token says."""

    words: list[Word]
    """Read from its state at index L: the likeliest words, the first one first."""
    lower_words: list[Word]
    """Read from its state at index l."""
    end: float
    """END's probability; above 0.5 no token follows."""
    norm: float
    """Euclidean norm of its state at index l."""


@torch.no_grad()
def read_thoughts(theta: Theta, end: End, tokens: Contemplation) -> list[list[Thought]]:
    """Read the tokens of a batch, each row's in their order; a row's logits are computed at a time.

    Args:
        theta: Its final norm and its head are read with; no adapter changes them.
        end: The classifier that ended the rows.
        tokens: As they were generated.
    """
    rows = []
    for lower_KD, last_KD, count in zip(tokens.lower_BKD, tokens.last_BKD, tokens.num_tokens_B.tolist(), strict=True):
        words = top_words(theta, last_KD[:count])
        lower_words = top_words(theta, lower_KD[:count])
        ends, norms = end.probability(last_KD[:count]).tolist(), lower_KD[:count].float().norm(dim=-1).tolist()
        rows.append([Thought(*each) for each in zip(words, lower_words, ends, norms, strict=True)])
    return rows


def top_words(theta: Theta, states_KD: Tensor) -> list[list[Word]]:
    """Return the likeliest words that θ's final norm and head read from each state."""
    chance_KV = theta.blocks.logits(states_KD).float().softmax(dim=-1)
    best = chance_KV.topk(min(NUM_WORDS, chance_KV.shape[-1]), dim=-1)
    return [
        [Word(theta.encoder.tokenizer.decode([token]), chance) for token, chance in zip(ids, chances, strict=True)]
        for ids, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
