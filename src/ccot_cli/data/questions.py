"""Read a question in people's own words: which numbers it has, and what it asks for.

This is done by lists of words, and so for English only.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ccot_cli.data.numerals import ONES, TENS

TOKEN = re.compile(r"\d+(?:[.,/]\d+)*|[^\W\d_]+|'[a-z]+|[^\w\s]|_")
SENTENCE_END = re.compile(r"(?<=[.?!])(?<!\bmr\.)(?<!\bms\.)(?<!\bmrs\.)\s+", re.I)

GIVEN_WORDS = frozenset([*ONES[1:], *TENS, "hundred"])
"""Those that give a number of a problem."""
SHARES = frozenset(
    "half halve halves halved twice double doubles doubled triple triples tripled third thirds fourth quarter quarters"
    " dozen dozens pair pairs".split()
)
"""Words that stand for a number, but not where a number does."""
BEYOND = re.compile(
    r"""
      (?<![\d)?]\ )(?<![\w)?])-\$?\d+ | (?<!\d\ )\u2212\$?\d+           # negative
    | \d+\ ?% | \d+\ percent\b                                       # shares of a hundred
    | \d+(?:[.,:]\d+)+ | (?<![\d.,])\.\d+                            # decimals, times, thousands
    | \b\d{4,} | \b\d{1,3}\ \d{3}\b | \d(?:k|M)\b                     # large, in digits
    | \b(?:hundred|thousand|million|billion)s?\b                     # large, in words
    | \b(?:thirty|forty|(?<!-)fifty(?!-fifty)|sixty|seventy|eighty|ninety)\b
    | \btwenty[- ](?:one|two|three|four|five|six|seven|eight|nine)\b
    | (?!1/[234]\b|2/3\b)\b[1-9]/\d+ | \b\d+\ [1-9]/\d+ | [¼-¾⅐-⅞]   # other fractions
    | \b(?:two|three|four|five)[- ](?:fifth|sixth|seventh|eighth|ninth|tenth)s\b
    | \b(?:a|one)[- ](?:fifth|sixth|seventh|eighth|ninth|tenth)\ (?:of|as)\b
    """,
    re.I | re.X,
)
"""Numbers that no training question has."""

HOW = re.compile(
    r"\bhow (many|much|big|deep|far|fast|heavy|high|large|long|old|tall|warm|wide)\b((?: [a-z]+(?:[-'][a-z]+)*)*)"
)
UNITS = re.compile(
    r"\b(?:second|minute|hour|day|week|month|year|old|age|inch|foot|feet|yard|mile|meter|kilometer|km|cm|m|gram|kg|ounce"
    r"|pound|ton|degree|block|time|tall|long|high|deep|wide)(?:s|es)?\b"
)
SUM = re.compile(
    rf"(?:[\d)]|\b(?:{'|'.join(sorted(GIVEN_WORDS))})) *[-+*/x=] *[\w(?]|[?nx_] *[-+*/] *\d"
    r"|\b(?:plus|minus|times|divided by)\b"
)
ASK = re.compile(
    r"\b(?:what|which|where|find|count|write|say|tell|add|subtract|multiply|divide|double|halve|calculate|compute"
    r"|convert|take|sum|solve|evaluate|determine|figure|work|total|quick|change|difference|give|in)\b"
)
"""How a sentence asks without `how`."""
QUANTITIES = frozenset(
    "add age all amount area average back before bill calculate cents change comes convert cost count decreased"
    " difference distance divide dollars double dozen earn feet final floor gain get half height hours inches"
    " increased keep land left length make minutes money multiply now number other owe own pay perimeter price product"
    " profit quarter quotient record reduced remain remains result salary score sell share show speed spend start"
    " subtract sum take temperature third time total twice value weeks weigh weight width worth".split()
)
"""What such a sentence names: an amount, or what is done to get it."""
OPINION = re.compile(r"\b(?:what|which)(?:'s| is| are) the best\b")
"""How a sentence asks for an opinion, whatever amounts it names."""
CONDITION = re.compile(r"\b(?:if|when|after|who)\b")
VERBS = frozenset("am are can could did do does had has have is might must shall should was were will would".split())
FILLERS = frozenset(
    "a after again all altogether an at both each fewer first for he her his if in into it just left less more my now"
    " of on other out she than the their them then they total with you".split()
)
MOST_NOUNS = 4
"""Words after `how many` that may be what is asked for."""
WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
PLURAL = re.compile(r"(?:ies|ves|es|s|y|fe|f|e)$")


def is_number(token: str) -> bool:
    """Tell whether a token is a number, in digits or as a word."""
    return token[0].isdigit() or token.lower() in GIVEN_WORDS


@dataclass(frozen=True)
class Question:
    """A question, read."""

    text: str

    @classmethod
    def read(cls, text: str) -> "Question":
        """Make straight quotation marks of typographic ones, and drop white space around the text."""
        return cls(text.replace("\u2019", "'").strip())

    @cached_property
    def lower(self) -> str:
        return self.text.lower()

    @cached_property
    def tokens(self) -> list[str]:
        """Words, numbers and other signs."""
        return TOKEN.findall(self.text)

    @cached_property
    def sentences(self) -> list[str]:
        return SENTENCE_END.split(self.text)

    @property
    def num_numbers(self) -> int:
        return sum(is_number(token) or token.lower() in SHARES for token in self.tokens)

    @property
    def beyond(self) -> list[str]:
        """The numbers that are of a kind that no training question has."""
        return BEYOND.findall(self.text)

    @property
    def asks_how(self) -> bool:
        """Whether it asks how many, how much, how old and so on."""
        return bool(HOW.search(self.lower))

    @property
    def asks_amount(self) -> bool:
        """Whether it asks for an amount, in any way."""
        sentences = map(str.lower, self.sentences)
        return (
            self.asks_how
            or bool(SUM.search(self.lower))
            or any(
                ASK.search(each) and not OPINION.search(each) and not QUANTITIES.isdisjoint(TOKEN.findall(each))
                for each in sentences
            )
        )

    @property
    def is_one_question(self) -> bool:
        """Whether it is one sentence that begins by asking."""
        return len(self.sentences) == 1 and self.lower.startswith(("how ", "what ", "which "))

    @property
    def has_condition(self) -> bool:
        return bool(CONDITION.search(self.lower))

    def unspoken(self) -> Iterator[list[str]]:
        """Yield what is asked for, as the words that may name it, wherever the rest of the question has none of them.

        If it is asked how old or how far something is, the rest has to have a unit of measurement.
        """
        for found in HOW.finditer(self.lower):
            before, after = self.lower[: found.start()], self.lower[found.end() :]
            if found[1] not in ("many", "much"):
                if not UNITS.search(f"{before} {found[2]} {after}"):
                    yield [found[1]]
                continue
            words = found[2].split()
            end = next((at for at, word in enumerate(words) if word in VERBS), len(words))
            nouns = [word for word in words[: min(end, MOST_NOUNS)] if word not in FILLERS]
            stems = {PLURAL.sub("", word) for word in WORD.findall(f"{before} {' '.join(words[end:])} {after}")}
            if nouns and stems.isdisjoint(PLURAL.sub("", noun) for noun in nouns):
                yield nouns
