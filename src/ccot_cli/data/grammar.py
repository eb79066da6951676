"""Write sentences from forms: texts with alternatives, slots and numbers, as in `forms/*.yaml`.

    [x|y|z]           one of the alternatives; they may be empty, and nest
    <buys/bought>     present or past, the same throughout a problem
    {A} {B.his} {he}  a person; a pronoun of B; a pronoun of A
    {xs:food} {x}     the problem's object, in the plural or singular, of a category
    {place} {day2}    a word of the lexicon; a digit makes another one
    {a} {n}           a number

A slot means the same wherever it stands in a problem.
"""

import random
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from ccot_cli.data.numerals import ONES, TENS

FORMS = files("ccot_cli.data") / "forms"
LEXICON_FILE, STORIES_FILE = "lexicon.yaml", "stories.yaml"

ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
TENSES = re.compile(r"<([^<>/]*)/([^<>]*)>")
SLOT = re.compile(r"\$?\{([^{}]+)\}")
CATEGORIES = re.compile(r"\{([xyz])s?:([a-z,]+)\}")
PRONOUNS = {
    "women": {"he": "she", "his": "her", "him": "her", "himself": "herself"},
    "men": {"he": "he", "his": "his", "him": "him", "himself": "himself"},
}
ANY_OBJECT = ("food", "fruit", "toy", "school", "nature", "flower", "clothes", "craft", "collection", "sport", "baked")
"""Categories of portable things."""
SMALL_NUMBERS = [*ONES, TENS[0]]
"""Those from 0 on, in words."""
TITLES = {"women": ("Mrs.", "Ms."), "men": ("Mr.",)}
TITLE_PROBABILITY = 0.06
WORDS_PROBABILITY = 0.12
"""How often a problem writes its small numbers as words."""


@dataclass(frozen=True)
class Lexicon:
    """The words that slots are filled with."""

    names: dict[str, list[str]]
    """First names of `women` and `men`."""
    surnames: list[str]
    objects: dict[str, list[tuple[str, str]]]
    """By category, singular and plural, the commonest first."""
    words: dict[str, list[str]]
    """By slot, such as `place`."""
    pairs: dict[str, list[tuple[str, str]]]
    """By slot, singular and plural, such as `container`."""
    irrelevant: list[str]
    """Forms of sentences that may stand anywhere and change no answer."""
    background: list[str]
    """Forms of sentences that may open any problem."""


def _split(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.replace("\n", " ").split(",") if part.strip()]


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [part.split("/") for part in _split(text)]
    return [(one, many) for one, many in pairs]


def lines(text: str) -> list[str]:
    """Return the lines of a block that are not empty."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_forms(name: str) -> dict[str, Any]:
    """Read one file of forms."""
    loaded: dict[str, Any] = yaml.load(
        (FORMS / name).read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return loaded


@cache
def lexicon() -> Lexicon:
    """Read the words."""
    value = read_forms(LEXICON_FILE)
    words: dict[str, list[str]] = {}
    pairs: dict[str, list[tuple[str, str]]] = {}
    for name in set(value) - {"women", "men", "surnames", "objects", "irrelevant", "background"}:
        if "/" in value[name]:
            pairs[name] = _pairs(value[name])
        else:
            words[name] = _split(value[name])
    return Lexicon(
        names={sex: value[sex].split() for sex in ("women", "men")},
        surnames=value["surnames"].replace(",", " ").split(),
        objects={category: _pairs(text) for category, text in value["objects"].items()},
        words=words,
        pairs=pairs,
        irrelevant=lines(value["irrelevant"]),
        background=lines(value["background"]),
    )


@dataclass
class Telling:
    """The words of one problem: what stands in each slot, and in which tense it is told."""

    rng: random.Random
    numbers: dict[str, int]
    is_past: bool = False
    in_words: bool = False
    """Whether small numbers are written as words."""
    people: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By slot, sex and name."""
    things: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By slot, singular and plural, of objects and of other nouns."""
    used: set[str] = field(default_factory=set)
    """Names and nouns (their last words) that no other slot may have."""

    @classmethod
    def draw(cls, rng: random.Random, numbers: dict[str, int]) -> "Telling":
        """Draw how a problem is told."""
        return cls(rng, numbers, rng.random() < 0.6, rng.random() < WORDS_PROBABILITY)

    def aside(self) -> "Telling":
        """Return the telling of a sentence that has nothing to do with the problem but its tense."""
        numbers = {letter: self.rng.randint(2, 60) for letter in "mn"}
        return Telling(self.rng, numbers, self.is_past, self.in_words, used=self.used)

    def choose(self, form: str) -> str:
        """Choose alternatives and tense; the slots stay."""
        while "[" in form:
            chosen = ALTERNATIVES.sub(lambda found: self.rng.choice(found[1].split("|")), form)
            if chosen == form:
                raise ValueError(f"brackets that do not match: {form!r}")
            form = chosen
        return TENSES.sub(lambda found: found[2 if self.is_past else 1], form)

    def write(self, form: str) -> str:
        """Return the text of a form, as whole sentences.

        Raises:
            ValueError: if a slot is unknown.
        """
        return tidy(self.fill(form))

    def fill(self, form: str) -> str:
        """Return the text of a form that is a part of a sentence.

        Raises:
            ValueError: if a slot is unknown.
        """
        text = self.choose(form)
        for letter, categories in CATEGORIES.findall(text):
            self._object(letter, tuple(categories.split(",")))
        return SLOT.sub(self._fill, text)

    def _fill(self, found: re.Match[str]) -> str:
        slot, dollar = found[1].split(":")[0], "$" if found[0][0] == "$" else ""
        if slot in self.numbers:
            return dollar + self._number(self.numbers[slot], as_digits=bool(dollar))
        if slot in ("xs", "ys", "zs", "x", "y", "z"):
            return dollar + self._object(slot[0], ANY_OBJECT)[len(slot) - 1]
        if slot in ("A", "B", "C", "D"):
            return dollar + self._person(slot)[1]
        person, _, pronoun = slot.rpartition(".")
        if pronoun.lower() in PRONOUNS["men"]:
            word = PRONOUNS[self._person(person or "A")[0]][pronoun.lower()]
            return dollar + (word.capitalize() if pronoun[0].isupper() else word)
        return dollar + self._word(slot)

    def _number(self, number: int, *, as_digits: bool) -> str:
        return SMALL_NUMBERS[number] if self.in_words and not as_digits and number < len(SMALL_NUMBERS) else str(number)

    def _person(self, slot: str) -> tuple[str, str]:
        while slot not in self.people:
            sex = self.rng.choice(["women", "men"])
            if self.rng.random() < TITLE_PROBABILITY:
                name = f"{self.rng.choice(TITLES[sex])} {self.rng.choice(lexicon().surnames)}"
            else:
                name = self.rng.choice(lexicon().names[sex])
            if name not in self.used:
                self.used.add(name)
                self.people[slot] = sex, name
        return self.people[slot]

    def _object(self, letter: str, categories: tuple[str, ...]) -> tuple[str, str]:
        if letter not in self.things:
            nouns = lexicon().objects[self.rng.choice(categories)]
            self.things[letter] = self._unused(nouns)
        return self.things[letter]

    def _word(self, slot: str) -> str:
        name = slot.rstrip("0123456789")
        number = slot[len(name) :]
        words = lexicon().words
        singular = name.removesuffix("s")
        if (pairs := lexicon().pairs.get(singular)) is not None:
            key = singular + number
            if key not in self.things:
                self.things[key] = self._unused(pairs)
            return self.things[key][singular != name]
        if name not in words:
            raise ValueError(f"no slot {slot!r}")
        if slot not in self.things:
            self.things[slot] = self._unused([(word, word) for word in words[name]])
        return self.things[slot][0]

    def _unused(self, pairs: list[tuple[str, str]]) -> tuple[str, str]:
        """Draw a pair that no other slot has; half of the time one of the first dozen.

        Tennis balls are balls, so no two slots have the same last word.
        """
        for _ in range(100):
            pair = self.rng.choice(pairs[:12] if self.rng.random() < 0.5 else pairs)
            last = pair[1].split()[-1]
            if last not in self.used:
                self.used.add(last)
                return pair
        raise ValueError(f"too few words: {pairs}")


def tidy(text: str) -> str:
    """Mend spaces, the article before a vowel, and the capitals of sentences."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r" ([.,?!])", r"\1", text)
    text = re.sub(r"\b([Aa]) (?=[aeio]|u(?!ni|s[ei]))", r"\1n ", text)
    return re.sub(r"(^|(?<![A-Z][rs])(?<!Mrs)[.?!] )([a-z])", lambda found: found[1] + found[2].upper(), text)
