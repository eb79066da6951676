"""Record how training questions are worded, and tell what of another question lies outside that record.

A question is inside if it has numbers, and none of a kind that training hardly has; if it is no longer than the longest
of training; and if it is worded like a word problem.

The record does not compute: it cannot tell that a problem has no solution, or one that is not a whole number.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import floor
from pathlib import Path
from typing import Any

from ccot_cli.data.questions import TOKEN, Question
from ccot_cli.data.wording import Wording, features
from ccot_cli.files import commit

MOST_QUOTED = 60
"""Characters of a question that a reason quotes."""
NUM_STRANGEST = 5
"""Tokens of a question that a reason quotes as the least like a problem."""


@dataclass(frozen=True)
class Domain:
    """A record of the questions that a model has learned from."""

    wording: Wording
    most_numbers: int
    most_tokens: int
    least_confidence: float | None
    """A reply whose confidence is lower is outside; None: no reply is."""

    @classmethod
    def learn(
        cls, problems: Iterable[str], others: Iterable[str], *, least_confidence: float | None = None
    ) -> "Domain":
        """Record questions.

        Args:
            problems: Questions that the model has learned from.
            others: Texts with numbers that are no word problems.
            least_confidence: Of a reply that is inside.
        """
        texts = list(problems)
        questions = [Question.read(text) for text in texts]
        return cls(
            Wording.learn(texts, others),
            max(each.num_numbers for each in questions),
            max(len(each.tokens) for each in questions),
            least_confidence,
        )

    def outside(self, text: str) -> str:
        """Say what of a question lies outside the record; return an empty text if nothing does."""
        question = Question.read(text)
        return self._unknown_numbers(question) or self._too_long(question) or self._unlike_problems(question)

    def _unknown_numbers(self, question: Question) -> str:
        if not question.num_numbers:
            return "there is no number in it"
        beyond = question.beyond
        return f"numbers of a kind that it has hardly read: {_shorten(', '.join(beyond))}" if beyond else ""

    def _too_long(self, question: Question) -> str:
        if question.num_numbers > self.most_numbers:
            return f"{question.num_numbers:,} numbers, where training had at most {self.most_numbers:,}"
        if (length := len(question.tokens)) > self.most_tokens:
            return f"{length:,} words and signs, where training had at most {self.most_tokens:,}"
        return ""

    def _unlike_problems(self, question: Question) -> str:
        if self.wording.score(features(question)) > 0:
            return ""
        return f"it is not worded like a word problem: {_shorten(self._strangest(question))!r}"

    def _strangest(self, question: Question) -> str:
        """Return the few tokens in a row that are the least like a problem, as they are written."""
        weights, places = self.wording.of_tokens(question), list(TOKEN.finditer(question.text))
        starts = range(max(1, len(places) - NUM_STRANGEST + 1))
        start = min(starts, key=lambda at: sum(weights[at : at + NUM_STRANGEST]))
        return question.text[places[start].start() : places[start : start + NUM_STRANGEST][-1].end()]

    def save(self, path: Path) -> None:
        """Write the record as JSON; equal records give equal bytes."""
        with commit(path) as part:
            text = json.dumps(asdict(self), separators=(",", ":"), sort_keys=True, ensure_ascii=False)
            part.write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Domain":
        """Read what `save` wrote."""
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**value, "wording": Wording(**value["wording"])})


def doubt(confidence: float) -> str:
    """Say that a reply is not sure enough."""
    # Rounded down: what is below a limit must not look as if it were 1.
    return f"the model is not sure of a number (confidence {floor(100 * confidence) / 100:.2f})"


def _shorten(text: str) -> str:
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"
