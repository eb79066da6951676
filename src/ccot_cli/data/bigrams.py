"""Judge how strange a text is, by which word follows which.

All names are one word to the model, and so are all numbers and all rare words. It knows the language of word problems
rather than their subjects.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import log2

from ccot_cli.data.questions import is_number

NAME, NUMBER, RARE, EDGE = "<name>", "<number>", "<rare>", "<edge>"
DISCOUNT = 0.75
RARE_COST = 2.0
"""What is taken from the log2 probability of a rare word, which does not say which one it is."""


@dataclass(frozen=True)
class Bigrams:
    """Counts of pairs of words, and the probabilities that they give."""

    pairs: dict[str, dict[str, int]]
    """How often one word follows another."""

    @classmethod
    def learn(cls, texts: Iterable[list[str]], *, common: Container[str], least: int) -> "Bigrams":
        """Count.

        Args:
            texts: Tokens of each text.
            common: Lower-case words that are not rare.
            least: Pairs that come less often do not count.
        """
        counts = Counter(pair for text in texts for pair in pairwise([EDGE, *_words(text, common), EDGE]))
        pairs: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for (before, after), count in counts.items():
            if count >= least:
                pairs[before][after] = count
        return cls(dict(pairs))

    def scores(self, text: list[str], *, before: str = EDGE) -> list[float]:
        """Return the log2 probability of each token of a text after the one before it, and that of its end."""
        return [self._score(*pair) for pair in pairwise([before, *_words(text, self._counts), EDGE])]

    def _score(self, before: str, after: str) -> float:
        """Discount every count of a pair, and share what that yields among all words by their own counts."""
        seen = self.pairs.get(before, {})
        # A word that no pair has counts half.
        probability = (self._counts.get(after, 0) + 0.5) / self._total
        if seen:
            kept = max(seen.get(after, 0) - DISCOUNT, 0)
            probability = (kept + DISCOUNT * len(seen) * probability) / self._totals[before]
        return log2(probability) - RARE_COST * (after == RARE)

    @cached_property
    def _counts(self) -> dict[str, int]:
        """How often each word is the second one of a pair."""
        counts: defaultdict[str, int] = defaultdict(int)
        for seen in self.pairs.values():
            for word, count in seen.items():
                counts[word] += count
        return dict(counts)

    @cached_property
    def _totals(self) -> dict[str, int]:
        """How often each word is the first one of a pair."""
        return {before: sum(seen.values()) for before, seen in self.pairs.items()}

    @cached_property
    def _total(self) -> int:
        return sum(self._totals.values())


def _words(tokens: list[str], common: Container[str]) -> Iterator[str]:
    for token in tokens:
        word = token.lower()
        if is_number(token):
            yield NUMBER
        elif word in common:
            yield word
        else:
            yield NAME if token[0].isupper() else RARE
