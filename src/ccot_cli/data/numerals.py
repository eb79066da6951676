"""Write and read whole numbers from 0 to 999 in English words."""

import re
from collections.abc import Iterator

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
).split()
"""From 0 to 19."""
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
"""From 20 to 90."""
LARGEST_IN_WORDS = 999

_VALUES = {word: value for value, word in enumerate(ONES)} | {
    word: 10 * value for value, word in enumerate(TENS, start=2)
}
_BELOW_100 = rf"(?:{'|'.join(TENS)})(?:[- ](?:{'|'.join(ONES[1:10])}))?|{'|'.join(reversed(ONES[1:]))}"
_HUNDREDS = rf"(?:(?:{'|'.join(ONES[1:10])}|a)[- ])?hundred(?:[- ](?:and[- ])?(?:{_BELOW_100})(?![- ]hundred))?"
NUMERAL = rf"\b(?:{_HUNDREDS}|{_BELOW_100}|zero)\b"
"""A pattern of numbers in words, in small letters: `seven`, `twenty-five`, `a hundred`, `two hundred and four`."""


def _patterns() -> Iterator[tuple[str, str]]:
    """Yield those of `LARGE_IN_DIGITS`: of hundreds, of tens, and of what then is behind a digit."""
    ones, teens, tens = ("|".join(words) for words in (ONES[1:10], ONES[10:], TENS))
    joint = rf"(?:-(?=(?:{ones})\b)| (?=(?:{ones})\b(?!-)))"
    for digit, word in enumerate(ONES[1:10], 1):
        hundred = rf"(?<![\w-])(?:{_either_case(word)}{'|[Aa]' * (digit == 1)})[- ]hundred"
        yield rf"{hundred}[- ](?:and[- ])?(?=(?:{teens}|{tens})\b)", f"{digit}"
        yield rf"{hundred}(?:[- ]and)?{joint}", f"{digit}0"
        yield rf"{hundred}\b(?![- ]and\b)", f"{digit}00"
    for digit, word in enumerate(TENS, 2):
        yield rf"(?<![A-Za-z-]){_either_case(word)}{joint}", f"{digit}"
        yield rf"(?<![A-Za-z-]){_either_case(word)}\b(?!-{word})" if digit > 2 else rf"(?<=\d){word}\b", f"{digit}0"
    for number, word in enumerate(ONES[1:], 1):
        yield rf"(?<=\d){word}\b", f"{number}"


def _either_case(word: str) -> str:
    return f"[{word[0].upper()}{word[0]}]{word[1:]}"


LARGE_IN_DIGITS = tuple(_patterns())
"""Patterns and what takes their places, one after the other, to write the numbers from 21 to 999 in digits.

`fifty-fifty` stays, and `twenty one-dollar bills` are twenty.
"""


def write_numeral(number: int) -> str:
    """Write a number in words, such as `two hundred four`.

    Args:
        number: From 0 to 999.

    Raises:
        ValueError: if the number is not in this range.
    """
    if not 0 <= number <= LARGEST_IN_WORDS:
        raise ValueError(f"{number} is not from 0 to {LARGEST_IN_WORDS}")
    if number < len(ONES):
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f"-{ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{ONES[hundreds]} hundred" + (f" {write_numeral(rest)}" if rest else "")


def with_large_in_digits(text: str) -> str:
    """Write the numbers in a text that `LARGE_IN_DIGITS` is for in digits."""
    for pattern, digits in LARGE_IN_DIGITS:
        text = re.sub(pattern, digits, text)
    return text


def read_numeral(text: str) -> int:
    """Read a text that `NUMERAL` matches.

    Raises:
        ValueError: if it is none.
    """
    if not re.fullmatch(NUMERAL, text):
        raise ValueError(f"no number in words: {text!r}")
    number = 0
    for word in re.split("[- ]", text):
        if word == "hundred":
            number = 100 * (number or 1)
        elif word not in ("a", "and"):
            number += _VALUES[word]
    return number
