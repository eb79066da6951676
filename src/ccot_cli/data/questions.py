"""Read a question in people's own words: its sentences, its words, and which numbers it has. This is for English."""

import re
from dataclasses import dataclass
from functools import cached_property

from ccot_cli.data.numerals import NUMERAL, with_large_in_digits

TOKEN = re.compile(rf"\d+(?:[.,/]\d+)*|(?i:{NUMERAL})|[^\W\d_]+|'[a-z]+|[^\w\s]|_")
"""A number in words is one token."""
SENTENCE_END = re.compile(r"(?<=[.?!])(?<!\bmr\.)(?<!\bms\.)(?<!\bmrs\.)\s+", re.I)
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
    | \b(?:thirty|forty|(?<!-)fifty(?!-fifty)|sixty|seventy|eighty|ninety)\b  # not made digits
    | \btwenty-(?:one|two|three|four|five|six|seven|eight|nine)\b
    | (?!1/[234]\b|2/3\b)\b[1-9]/\d+ | \b\d+\ [1-9]/\d+ | [¼-¾⅐-⅞]   # other fractions
    | \b(?:two|three|four|five)[- ](?:fifth|sixth|seventh|eighth|ninth|tenth)s\b
    | \b(?:a|one)[- ](?:fifth|sixth|seventh|eighth|ninth|tenth)\ (?:of|as)\b
    """,
    re.I | re.X,
)
"""Numbers that training questions lack, or hardly have."""


def is_number(token: str) -> bool:
    """Tell whether a token is a number other than zero, in digits or in words."""
    return token[0].isdigit() or bool(re.fullmatch(NUMERAL, word := token.lower()) and word != "zero")


@dataclass(frozen=True)
class Question:
    """A question, read."""

    text: str

    @classmethod
    def read(cls, text: str) -> "Question":
        """Make straight quotation marks of typographic ones, and drop white space around the text."""
        return cls(text.replace("\u2019", "'").strip())

    @cached_property
    def tokens(self) -> list[str]:
        """Words, numbers and other signs."""
        return TOKEN.findall(self.text)

    @property
    def sentences(self) -> list[str]:
        return SENTENCE_END.split(self.text)

    @property
    def num_numbers(self) -> int:
        return sum(is_number(token) or token.lower() in SHARES for token in self.tokens)

    @property
    def beyond(self) -> list[str]:
        """The numbers that are of a kind that training questions hardly have."""
        return BEYOND.findall(with_large_in_digits(self.text))
