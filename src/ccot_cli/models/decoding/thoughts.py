"""Read contemplation tokens: which words θ would write next from their states, which gold states they are most alike,
and how sure END is.

The states at index L go through θ's final norm and head, as those of text tokens do. The states at index l go through
them too, though they were not made for that (the logit lens; nostalgebraist, 2020).

Dimensions: K contemplation tokens of one row, M gold states, D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
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
class Likeness:
    """The gold state that a contemplation token is most alike."""

    chain: str
    """The line of a training problem's chain that it is from, with its token in [brackets]."""
    cosine: float
    """Of the angle between both states, the mean of the gold states subtracted."""


class GoldStates:
    """Gold states at index l, to which contemplation tokens are compared.

    Args:
        states_MD: At least one.
        chains: Where each is from.
    """

    def __init__(self, states_MD: Tensor, chains: Sequence[str]) -> None:
        self._mean_D, self._chains = states_MD.float().mean(dim=0), chains
        self._direction_MD = F.normalize(states_MD.float() - self._mean_D, dim=-1)

    def nearest(self, states_KD: Tensor) -> list[Likeness]:
        """Find the gold state at the smallest angle to each state at index l."""
        direction_KD = F.normalize(states_KD.float().to(self._mean_D.device) - self._mean_D, dim=-1)
        best = (direction_KD @ self._direction_MD.T).max(dim=-1)
        return [
            Likeness(self._chains[place], cosine)
            for place, cosine in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


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
    nearest: Likeness | None = field(default=None, kw_only=True)
    """The gold state that its state at index l is most alike; None if there are none to compare it to."""


@torch.no_grad()
def read_thoughts(theta: Theta, end: End, tokens: Contemplation, gold: GoldStates | None = None) -> list[list[Thought]]:
    """Read the tokens of a batch, each row's in their order; a row's logits are computed at a time.

    Args:
        theta: Its final norm and its head are read with; no adapter changes them.
        end: The classifier that ended the rows.
        tokens: As they were generated.
        gold: What they are compared to.
    """
    rows = []
    for lower_KD, last_KD, count in zip(tokens.lower_BKD, tokens.last_BKD, tokens.num_tokens_B.tolist(), strict=True):
        words = top_words(theta, last_KD[:count])
        lower_words = top_words(theta, lower_KD[:count])
        ends, norms = end.probability(last_KD[:count]).tolist(), lower_KD[:count].float().norm(dim=-1).tolist()
        nearest = [None] * count if gold is None else gold.nearest(lower_KD[:count])
        read = zip(words, lower_words, ends, norms, nearest, strict=True)
        rows.append([Thought(*each, nearest=alike) for *each, alike in read])
    return rows


def top_words(theta: Theta, states_KD: Tensor) -> list[list[Word]]:
    """Return the likeliest words that θ's final norm and head read from each state."""
    chance_KV = theta.blocks.logits(states_KD).float().softmax(dim=-1)
    best = chance_KV.topk(min(NUM_WORDS, chance_KV.shape[-1]), dim=-1)
    return [
        [Word(theta.encoder.tokenizer.decode([token]), chance) for token, chance in zip(ids, chances, strict=True)]
        for ids, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
