"""Record how training questions are worded, and tell what of another question lies outside that record.

A question is inside if it passes these rules. It has numbers, and none of a kind that training lacks. It asks for an
amount, of something that it speaks of or that training knows. It is no longer than the longest of training. If it
could be one of general knowledge, it ends in words that training knows. And it is not too strange to a bigram model.

The record does not compute: it cannot tell that a problem has no solution, or one that is not a whole number.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import floor
from pathlib import Path
from typing import Any

from ccot_cli.data.bigrams import Bigrams
from ccot_cli.data.questions import TOKEN, Question
from ccot_cli.files import commit

LEAST_KNOWN, LEAST_COMMON, LEAST_PAIR = 3, 100, 4
"""How often training has a word that is known, one that is not rare, and a pair that counts."""
LEAST_SCORE, LEAST_SCORE_OF_ONE_NUMBER, LEAST_SCORE_OF_BARE = -7.5, -6.0, -5.5
"""Least mean log2 probability of a question's tokens.

It is higher for those that could be questions of general knowledge: they have one number, or only ask and give no
condition. `examples/research/domain.py` says what these values and the lists of words were chosen on.
"""
MOST_QUOTED = 60
"""Characters of a question that a reason quotes."""
NUM_STRANGEST = 5
"""Tokens of a question that a reason quotes as the strangest ones."""


@dataclass(frozen=True)
class Domain:
    """A record of the questions that a model has learned from."""

    bigrams: Bigrams
    known: frozenset[str]
    """Words of training; names are only where it writes them without a capital."""
    most_numbers: int
    most_tokens: int
    least_confidence: float | None
    """A reply whose confidence is lower is outside; None: no reply is."""

    @classmethod
    def learn(cls, texts: Iterable[str], *, least_confidence: float | None = None) -> "Domain":
        """Record questions."""
        questions = [Question.read(text) for text in texts]
        counts = Counter(token for each in questions for token in each.tokens if not token[0].isupper())
        return cls(
            Bigrams.learn(
                (each.tokens for each in questions),
                common={word for word, count in counts.items() if count >= LEAST_COMMON},
                least=LEAST_PAIR,
            ),
            frozenset(word for word, count in counts.items() if count >= LEAST_KNOWN and word[0].isalpha()),
            max(each.num_numbers for each in questions),
            max(len(each.tokens) for each in questions),
            least_confidence,
        )

    def outside(self, text: str) -> str:
        """Say what of a question lies outside the record; return an empty text if nothing does."""
        question = Question.read(text)
        return (
            self._unknown_numbers(question)
            or self._nothing_asked(question)
            or self._too_long(question)
            or self._unknown_words(question)
            or self._strange_language(question)
        )

    def _unknown_numbers(self, question: Question) -> str:
        if not question.num_numbers:
            return "there is no number in it"
        beyond = question.beyond
        return f"numbers of a kind never seen: {_shorten(', '.join(beyond))}" if beyond else ""

    def _nothing_asked(self, question: Question) -> str:
        if not question.asks_amount:
            return "it asks for no amount"
        for nouns in question.unspoken():
            if self.known.isdisjoint(TOKEN.findall(" ".join(nouns))):
                return f"it does not speak of what it asks for: {_shorten(' '.join(nouns))}"
        return ""

    def _too_long(self, question: Question) -> str:
        if question.num_numbers > self.most_numbers:
            return f"{question.num_numbers:,} numbers, where training had at most {self.most_numbers:,}"
        if (length := len(question.tokens)) > self.most_tokens:
            return f"{length:,} words and signs, where training had at most {self.most_tokens:,}"
        return ""

    def _unknown_words(self, question: Question) -> str:
        if question.asks_how and question.num_numbers > 1 and not question.is_one_question:
            return ""
        *told, last = question.sentences
        known = self.known.union(TOKEN.findall(" ".join(told).lower()))
        unknown = [word for word in TOKEN.findall(last) if word[0].islower() and word not in known]
        return f"unknown words: {_shorten(', '.join(dict.fromkeys(unknown)))}" if unknown else ""

    def _strange_language(self, question: Question) -> str:
        """Judge the whole question and its last sentence, which mostly asks, by their mean."""
        last = TOKEN.findall(question.sentences[-1])
        scores = self.bigrams.scores(question.tokens)
        last_scores = scores if len(question.sentences) == 1 else self.bigrams.scores(last, before=".")
        score = (sum(scores) / len(scores) + sum(last_scores) / len(last_scores)) / 2
        if score >= _least_score(question):
            return ""
        return f"unusual language: {_shorten(self._strangest(question, scores))!r}"

    def _strangest(self, question: Question, scores: list[float]) -> str:
        """Return the few tokens in a row that are the least probable, as they are written."""
        places = list(TOKEN.finditer(question.text))
        starts = range(max(1, len(places) - NUM_STRANGEST + 1))
        start = min(starts, key=lambda at: sum(scores[at : at + NUM_STRANGEST]))
        return question.text[places[start].start() : places[start : start + NUM_STRANGEST][-1].end()]

    def save(self, path: Path) -> None:
        """Write the record as JSON; equal records give equal bytes."""
        value = {**asdict(self), "known": sorted(self.known)}
        with commit(path) as part:
            text = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
            part.write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Domain":
        """Read what `save` wrote."""
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**value, "bigrams": Bigrams(**value["bigrams"]), "known": frozenset(value["known"])})


def doubt(confidence: float) -> str:
    """Say that a reply is not sure enough."""
    # Rounded down: what is below a limit must not look as if it were 1.
    return f"the model is not sure of a number (confidence {floor(100 * confidence) / 100:.2f})"


def _least_score(question: Question) -> float:
    if question.num_numbers == 1:
        return LEAST_SCORE_OF_ONE_NUMBER
    is_bare = question.is_one_question and not question.has_condition
    return LEAST_SCORE_OF_BARE if is_bare else LEAST_SCORE


def _shorten(text: str) -> str:
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"
