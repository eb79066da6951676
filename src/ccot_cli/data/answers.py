"""Read final answers from text, and grade them.

Everything here takes time linear in the text, whatever a model wrote. An answer is compared, never evaluated as an
expression.
"""

import re
from decimal import Decimal

from ccot_cli.data.problems import ANSWER_LINE

# A unit may follow at once, but no exponent: "1e1" is not read as 1.
LEADING_NUMBER = re.compile(r"[-+\u2212]?(?:\$\s?)?[0-9.,]++(?=[\s%;!?)]|[A-Za-z\u00b0\u20ac\u00a3](?![-+0-9])|$)")
# A minus sign between digits is a subtraction: the last number of "7-4" is 4.
ANY_NUMBER = re.compile(r"(?:(?<![0-9])[-\u2212])?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)")
PLAIN_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
MOST_CHARACTERS = 100
"""Longest text that is read as a number; a longer one is compared as text."""


def read_answer(text: str) -> str | None:
    """Return what follows the last `####` on its line; None if there is no `####`, or nothing follows it."""
    _, marker, rest = text.rpartition(ANSWER_LINE)
    return read_after_marker(rest) if marker else None


def read_after_marker(text: str) -> str | None:
    """Return the answer at the start of the text that follows a marker: the first line; None if that is empty."""
    return text.partition("\n")[0].strip() or None


def has_whole_answer(text: str) -> bool:
    """Tell whether an answer follows the first `####`, and its line has ended."""
    _, marker, rest = text.partition(ANSWER_LINE)
    line, newline, _ = rest.partition("\n")
    return bool(marker and line.strip() and newline)


def read_last_number(text: str) -> str | None:
    """Return the last number in the text, for models that do not write `####`; None if there is none."""
    numbers = ANY_NUMBER.findall(text)
    return re.sub(r"[$,]", "", numbers[-1]) if numbers else None


def is_correct(prediction: str, reference: str) -> bool:
    """Tell whether two answers are the same number, or the same text up to case and white space.

    Dollar signs, commas, a final full stop and trailing zeros do not change a number. If the reference is a number,
    words and units after the predicted number are ignored, as GSM8K's own answer extraction does.
    """
    expected = _number(reference)
    if expected is None:
        return _plain(prediction) == _plain(reference)
    leading = LEADING_NUMBER.match(prediction.strip())
    return _number(leading[0] if leading else prediction) == expected


def _number(text: str) -> Decimal | None:
    text = text.strip()
    if len(text) > MOST_CHARACTERS:
        return None
    plain = re.sub(r"[$,]", "", text).strip().removesuffix(".").replace("\u2212", "-")
    return Decimal(plain) if PLAIN_NUMBER.fullmatch(plain) else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
