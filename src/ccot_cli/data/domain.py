"""Record the questions that a model has learned from, and tell what of another question lies outside that record.

A question is read sentence by sentence. A sentence's pattern is its text with people, objects and numbers replaced by
slots: after "Mia has 12 pens.", the pattern of "Ben has 7 more pens than Mia." is "{other person} has {number} more
{same objects} than {same person}." The record holds the patterns of all training questions, the numbers in each slot,
which pattern may follow which, and for each pattern that ends a question the fewest and the most sentences.

The record does not compute: it cannot tell that the amounts of a question become too large or do not divide.
"""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ccot_cli.files import commit

TOKEN = re.compile(r"(?P<number>[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?)|\w+(?:['\u2019]\w+)*")
SLOT = re.compile(r"\{[a-z ]+\}")
SENTENCE_END = re.compile(r"(?<=[.?!]) ")
EDGE = ""
"""The pattern before the first sentence of a question and after the last one."""
MOST_QUOTED = 60
"""Characters of a question that a reason quotes."""


class Sentence(NamedTuple):
    """One sentence of a question."""

    text: str
    pattern: str
    numbers: list[str]
    """As they are written."""


def read_sentences(question: str, *, people: Collection[str], objects: Collection[str]) -> list[Sentence]:
    """Split a question into sentences and find their patterns.

    The same person is the one whom the sentence before named first; the same objects are those that it named first.
    Any other person who comes first in a sentence is `{other person}`. One who comes later is `{known person}` if an
    earlier sentence named them, else `{stranger}`.

    Args:
        people: All names.
        objects: All nouns, in the plural.
    """
    sentences: list[Sentence] = []
    known: set[str] = set()
    same_person = same_objects = None
    for text in SENTENCE_END.split(question):
        numbers: list[str] = []
        names: list[str] = []
        nouns: list[str] = []
        pattern, end = "", 0
        for token in TOKEN.finditer(text):
            word = slot = token[0]
            if token["number"]:
                slot = "{number}"
                numbers.append(word)
            elif word in people:
                slot = "{known person}" if word in known else "{stranger}"
                slot = slot if names else "{other person}"
                slot = "{same person}" if word == same_person else slot
                names.append(word)
            elif word in objects:
                slot = "{same objects}" if word == same_objects else "{other objects}"
                nouns.append(word)
            pattern += text[end : token.start()] + slot
            end = token.end()
        sentences.append(Sentence(text, pattern + text[end:], numbers))
        known.update(names)
        same_person, same_objects = next(iter(names), None), next(iter(nouns), None)
    return sentences


@dataclass(frozen=True)
class Pattern:
    """What the training questions had at one pattern."""

    numbers: list[set[str]]
    """The numbers in each slot."""
    followers: set[str] = field(default_factory=set)
    """The patterns that came next."""


@dataclass(frozen=True)
class Domain:
    """A record of the questions that a model has learned from."""

    people: frozenset[str]
    objects: frozenset[str]
    patterns: dict[str, Pattern]
    """By text; the edge is one of them."""
    lengths: dict[str, tuple[int, int]]
    """By a question's last pattern, the fewest and the most sentences."""

    @classmethod
    def learn(cls, questions: Iterable[str], *, people: Collection[str], objects: Collection[str]) -> "Domain":
        """Record questions.

        Args:
            people: All names.
            objects: All nouns, in the plural.
        """
        patterns = {EDGE: Pattern([])}
        lengths: dict[str, tuple[int, int]] = {}
        for question in questions:
            sentences = read_sentences(question, people=people, objects=objects)
            last, length = sentences[-1].pattern, len(sentences)
            fewest, most = lengths.get(last, (length, length))
            lengths[last] = min(fewest, length), max(most, length)
            for sentence in sentences:
                if sentence.pattern not in patterns:
                    patterns[sentence.pattern] = Pattern([set() for _ in sentence.numbers])
                for slot, number in zip(patterns[sentence.pattern].numbers, sentence.numbers, strict=True):
                    slot.add(number)
            for before, after in _pairs(sentences):
                patterns[before].followers.add(after)
        return cls(frozenset(people), frozenset(objects), patterns, lengths)

    @cached_property
    def words(self) -> frozenset[str]:
        """All words of the training questions."""
        fixed = " ".join(SLOT.sub(" ", pattern) for pattern in self.patterns)
        return frozenset(token[0] for token in TOKEN.finditer(fixed)) | self.people | self.objects

    def outside(self, question: str) -> str:
        """Say what of a question lies outside the record; return an empty text if nothing does."""
        sentences = read_sentences(question, people=self.people, objects=self.objects)
        return (
            self._unknown_words(question)
            or self._unknown_sentence(sentences)
            or self._unknown_numbers(sentences)
            or self._unknown_order(sentences)
            or self._unknown_length(sentences)
        )

    def _unknown_words(self, question: str) -> str:
        words = [token[0] for token in TOKEN.finditer(question) if not token["number"]]
        unknown = dict.fromkeys(word for word in words if word not in self.words)
        return f"unknown words: {_shorten(', '.join(unknown))}" if unknown else ""

    def _unknown_sentence(self, sentences: list[Sentence]) -> str:
        unknown = [sentence.text for sentence in sentences if sentence.pattern not in self.patterns]
        return f"unknown sentence: {_shorten(unknown[0])!r}" if unknown else ""

    def _unknown_numbers(self, sentences: list[Sentence]) -> str:
        unknown = [
            number
            for sentence in sentences
            for number, known in zip(sentence.numbers, self.patterns[sentence.pattern].numbers, strict=True)
            if number not in known
        ]
        return f"numbers never seen there: {_shorten(', '.join(unknown))}" if unknown else ""

    def _unknown_order(self, sentences: list[Sentence]) -> str:
        for number, (before, after) in enumerate(_pairs(sentences)):
            if after not in self.patterns[before].followers:
                # If the question may not end where it does, it is the last sentence that is in a wrong place.
                place = min(number, len(sentences) - 1)
                return f"a sentence in an unknown place: {_shorten(sentences[place].text)!r}"
        return ""

    def _unknown_length(self, sentences: list[Sentence]) -> str:
        fewest, most = self.lengths[sentences[-1].pattern]
        return "" if fewest <= len(sentences) <= most else f"{len(sentences):,} sentences instead of {fewest} to {most}"

    def save(self, path: Path) -> None:
        """Write the record as JSON; equal records give equal bytes."""
        texts = sorted(self.patterns)
        patterns = [
            {
                "text": text,
                "numbers": [sorted(slot, key=lambda number: (len(number), number)) for slot in pattern.numbers],
                "followers": sorted(texts.index(follower) for follower in pattern.followers),
                "lengths": self.lengths.get(text),
            }
            for text in texts
            for pattern in [self.patterns[text]]
        ]
        value = {"people": sorted(self.people), "objects": sorted(self.objects), "patterns": patterns}
        with commit(path) as part:
            part.write_text(json.dumps(value, separators=(",", ":")) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Domain":
        """Read what `save` wrote."""
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = value["patterns"]
        patterns = {
            each["text"]: Pattern(
                [set(slot) for slot in each["numbers"]], {found[number]["text"] for number in each["followers"]}
            )
            for each in found
        }
        lengths = {each["text"]: (each["lengths"][0], each["lengths"][1]) for each in found if each["lengths"]}
        return cls(frozenset(value["people"]), frozenset(value["objects"]), patterns, lengths)


def _pairs(sentences: list[Sentence]) -> Iterable[tuple[str, str]]:
    """Yield each pattern with the next, from the edge to the edge."""
    return pairwise([EDGE, *(sentence.pattern for sentence in sentences), EDGE])


def _shorten(text: str) -> str:
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"
