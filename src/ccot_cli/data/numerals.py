"""Write and read whole numbers from 0 to 999 in English words."""

import re

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


def write_numeral(number: int, *, conjunction: bool = False) -> str:
    """Write a number in words.

    Args:
        number: From 0 to 999.
        conjunction: Whether `and` follows the hundreds, as in `two hundred and four`.

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
    joint = " and " if conjunction else " "
    return f"{ONES[hundreds]} hundred" + (joint + write_numeral(rest) if rest else "")


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
