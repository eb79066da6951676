"""Read final answers out of text and grade them.

Everything here takes time linear in the text, whatever a model wrote: an answer is never evaluated.
"""

import re
from decimal import Decimal

from ccot_cli.data.problems import ANSWER_LINE

LEADING_NUMBER = re.compile(r"-?\$?[0-9.,]++(?=\s|$)")
# A minus between digits subtracts and is no sign: the last number of "7-4" is 4.
ANY_NUMBER = re.compile(r"(?:(?<![0-9])-)?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)")
PLAIN_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
MOST_CHARACTERS = 100
"""A longer number is compared as text."""


def read_answer(text: str) -> str | None:
    """What stands after the last `####` on its line, None where nothing does."""
    _, marker, rest = text.rpartition(ANSWER_LINE)
    return read_behind_marker(rest) if marker else None


def read_behind_marker(text: str) -> str | None:
    """The same, from what stands behind the marker; None where its line is empty."""
    return text.partition("\n")[0].strip() or None


def has_whole_answer(text: str) -> bool:
    """Whether something stands after a `####`, and its line has ended."""
    _, marker, rest = text.partition(ANSWER_LINE)
    line, newline, _ = rest.partition("\n")
    return bool(marker and line.strip() and newline)


def read_last_number(text: str) -> str | None:
    """The last number in the text, for models that do not write `####`; None where there is no number."""
    numbers = ANY_NUMBER.findall(text)
    return re.sub(r"[$,]", "", numbers[-1]) if numbers else None


def is_correct(prediction: str, reference: str) -> bool:
    """Whether two answers are the same number, or the same text but for case and white space.

    Dollar signs, commas, a final full stop and trailing zeros do not change a number. Where the reference is one, words
    after the predicted one do not count, as to GSM8K's official reader.
    """
    wanted = _number(reference)
    if wanted is None:
        return _plain(prediction) == _plain(reference)
    leading = LEADING_NUMBER.match(prediction.strip())
    return _number(leading[0] if leading else prediction) == wanted


def _number(text: str) -> Decimal | None:
    text = text.strip()
    if len(text) > MOST_CHARACTERS:
        return None
    plain = re.sub(r"[$,]", "", text).strip().removesuffix(".")
    return Decimal(plain) if PLAIN_NUMBER.fullmatch(plain) else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
