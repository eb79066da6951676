"""Tell word problems from other texts that have numbers, by their words: a logistic regression.

All numbers are one word to it, and so are all names. Beside the words of a text and its pairs of words, those of the
last sentence count, which mostly asks.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from math import exp, sqrt

from ccot_cli.data.questions import Question, is_number

NAME, NUMBER, EDGE = "NAME", "NUM", "END"
"""What stands for all names, all numbers, and either end of a text; other words are in small letters."""
OF_LAST = ">"
"""Begins the features of the last sentence."""
LEAST_TEXTS = 5
"""A feature of fewer texts is not learned."""
LEAST_WEIGHT = 0.95
"""A feature whose weight is closer to zero is dropped."""
EPOCHS, RATE, DAMPING = 12, 0.5, 0.1
"""Of AdaGrad (Duchi et al., 2011): a feature's rate falls as the squares of its gradients add up."""


@dataclass(frozen=True)
class Wording:
    """What words and pairs of words speak for a word problem."""

    weights: dict[str, float]
    """By feature, in whole tenths; those below zero speak against it."""

    @classmethod
    def learn(cls, problems: Iterable[str], others: Iterable[str]) -> "Wording":
        """Learn the weights. Neither the order of the texts matters nor how many of either kind there are."""
        kinds = [sorted(problems), sorted(others)]
        examples = [(features(Question.read(text)), kind == 0) for kind, texts in enumerate(kinds) for text in texts]
        counts = Counter(feature for found, _ in examples for feature in found)
        known = {feature for feature, count in counts.items() if count >= LEAST_TEXTS}
        learned = [(sorted(known.intersection(found)), is_problem) for found, is_problem in examples]
        balance = {True: 1.0, False: len(kinds[0]) / max(1, len(kinds[1]))}
        rng, weights, squares = random.Random(0), defaultdict[str, float](float), defaultdict[str, float](float)
        for _ in range(EPOCHS):
            rng.shuffle(learned)
            for found, is_problem in learned:
                error = is_problem - 1 / (1 + exp(-cls(weights).score(found)))
                gradient = balance[is_problem] * error / sqrt(max(1, len(found)))
                for feature in found:
                    squares[feature] += gradient**2
                    weights[feature] += RATE * gradient / (DAMPING + sqrt(squares[feature]))
        return cls({feature: round(10 * each) for feature, each in weights.items() if abs(each) >= LEAST_WEIGHT})

    def score(self, found: Iterable[str]) -> float:
        """Return the logarithm of the odds that a text with these features is a word problem, in units of weights."""
        weights = [self.weights[feature] for feature in found if feature in self.weights]
        return sum(weights) / sqrt(max(1, len(weights)))

    def of_tokens(self, question: Question) -> list[float]:
        """Return what each token of a question adds to the sum of its weights."""
        return [sum(self.weights.get(feature, 0) for feature in pair) for pair in _pieces(question.tokens)][:-1]


def features(question: Question) -> set[str]:
    """Return the words and the pairs of words of a question and of its last sentence."""
    last = Question(question.sentences[-1])
    return set(chain(*_pieces(question.tokens), *_pieces(last.tokens, OF_LAST)))


def _pieces(tokens: list[str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each word, and last the end of the text, with the pair of it and the word before."""
    for before, word in pairwise([EDGE, *_words(tokens), EDGE]):
        yield f"{prefix}{word}", f"{prefix}{before} {word}"


def _words(tokens: list[str]) -> Iterator[str]:
    """Yield what is the same for all numbers, and for all names, which have a capital within a sentence."""
    for before, token in pairwise([".", *tokens]):
        if is_number(token):
            yield NUMBER
        elif token[0].isupper() and before not in ".?!:" and token != "I":
            yield NAME
        else:
            yield token.lower()
