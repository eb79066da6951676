"""Check that results follow from a question's numbers, one operation each; no model takes part.

A forward check, as in arXiv 2604.04902: from the numbers that are known, a result follows if one operation on two of
them gives it; then it is known too.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from fractions import Fraction

from ccot_cli.data.answers import is_correct
from ccot_cli.data.numerals import NUMERAL, read_numeral

CONSTANTS = {
    **dict.fromkeys("twice double doubles doubled half halves halve halved halfway couple pair".split(), 2),
    **dict.fromkeys("thrice triple triples tripled third thirds".split(), 3),
    **dict.fromkeys("fourth fourths quarter quarters".split(), 4),
    **dict.fromkeys("week weeks".split(), 7),
    **dict.fromkeys("dozen dozens".split(), 12),
    **dict.fromkeys("percent %".split(), 100),
}
"""Numbers that a question gives by a word. No other constant is known."""

_DIGITS = r"(?:(?<![\w.])[-\u2212]\$?)?(?:[0-9]++(?:,[0-9]{3})*+(?:\.[0-9]++)?+|(?<![\w.])\.[0-9]++)"
_NUMBER = re.compile(rf"(?P<digits>{_DIGITS})|(?P<words>{NUMERAL})|%|[a-z]+")
_WHOLE = re.compile(_DIGITS)
_RESULT = re.compile(rf"=\s*\$?\s*({_DIGITS})(?! *[-\u2212+*/x×] *[\d$(.])")
_EQUATION = re.compile(rf"({_DIGITS})\s*([-+*/])\s*\$?({_DIGITS})\s*=\s*\$?({_DIGITS})")
_BEFORE = re.compile(r"(?:[-\u2212+*/x×^,.:)]|\d|\band) *\$?\Z")
_AFTER = re.compile(r"[.,]?\d|[a-zA-Z%(]| *[-\u2212+*/x×^] *[\w$(.]")
"""What shows, before and behind it, that an equation is a part of something longer."""
_PLAIN = str.maketrans("\u2212", "-", "$,")
MOST_CHARACTERS = 30
"""Longest number in digits; longer ones are skipped."""
_EXACT = Context(prec=100, traps=[Inexact])


def read_number(text: str) -> Fraction | None:
    """Return the number that a text consists of, white space apart; None if it is anything else."""
    text = text.strip()
    if len(text) > MOST_CHARACTERS or not _WHOLE.fullmatch(text):
        return None
    return Fraction(text.translate(_PLAIN))


def write_number(number: Fraction) -> str:
    """Write a number exactly if a decimal can be, another one with six places."""
    if number.denominator == 1:
        return str(number)
    try:
        return f"{_EXACT.divide(Decimal(number.numerator), Decimal(number.denominator)):f}"
    except Inexact:
        return f"{float(number):.6f}".rstrip("0").removesuffix(".")


def numbers_in(question: str) -> list[Fraction]:
    """Read the numbers of a question in their order: digits, number words, and `CONSTANTS`."""
    found: list[Fraction | None] = []
    for match in _NUMBER.finditer(question.lower()):
        if match["digits"]:
            found.append(read_number(match["digits"]))
        elif match["words"]:
            found.append(Fraction(read_numeral(match["words"])))
        elif match[0] in CONSTANTS:
            found.append(Fraction(CONSTANTS[match[0]]))
    return [number for number in found if number is not None]


@dataclass(frozen=True)
class Check:
    """Which results follow."""

    equations: list[str]
    """How each result follows, such as `12 + 7 = 19`; empty if it does not."""
    is_answer_verified: bool
    """Whether the answer is the last result that follows."""


def check(question: str, results: Sequence[Fraction | None], answer: str) -> Check:
    """Go forward from a question's numbers: a result that follows is verified, and the next ones may use it.

    A number is used once in an operation, unless it is known twice. Operations that change nothing do not count, such
    as adding 0 or multiplying by 1.

    Args:
        results: In the order in which they were computed; None stands for a text that is no number.
    """
    known = Counter(numbers_in(question))
    equations: list[str] = []
    last: Fraction | None = None
    for result in results:
        equation = "" if result is None else _derive(result, known)
        equations.append(equation)
        if result is not None and equation:
            known[result] += 1
            last = result
    return Check(equations, last is not None and is_correct(answer, write_number(last)))


def _derive(result: Fraction, known: Counter[Fraction]) -> str:
    """Return the first equation of two known numbers that has this result; empty if there is none."""
    for one in known:
        others: dict[str, Fraction | None] = {
            "+": result - one,
            "-": one - result,
            "*": result / one if one else None,
            "/": one / result if one and result else None,
        }
        for sign, other in others.items():
            if other is None or result == one or (sign in "+*" and result == other):
                continue
            if known[other] > (one == other):
                return f"{write_number(one)} {sign} {write_number(other)} = {write_number(result)}"
    return ""


@dataclass(frozen=True)
class Equation:
    """One step of a written chain."""

    first: Fraction
    sign: str
    second: Fraction
    result: Fraction

    def compute(self, first: Fraction, second: Fraction) -> Fraction | None:
        """Apply the operation to other numbers; None if it divides by zero."""
        if self.sign == "/":
            return first / second if second else None
        return {"+": first + second, "-": first - second, "*": first * second}[self.sign]


def equations_in(chain: str) -> list[Equation]:
    """Read the true steps `a op b = c` of a chain, with + - * or /; other text is skipped.

    A false one is the end of a longer step, such as `20 + 30 = 60` in `10 + 20 + 30 = 60`.
    """
    found = []
    for first, sign, second, result in _EQUATION.findall(chain):
        a, b, c = map(read_number, (first, second, result))
        if a is not None and b is not None and c is not None and (step := Equation(a, sign, b, c)).compute(a, b) == c:
            found.append(step)
    return found


def false_step(chain: str) -> str:
    """Return the first step `a op b = c` of a chain that is false, such as `47 - 66 = 81`; empty if there is none.

    Numbers may be rounded, and a quotient may be cut off. A part of a longer step is skipped.
    """
    for match in _EQUATION.finditer(chain):
        is_part = _BEFORE.search(chain, max(0, match.start() - 10), match.start()) or _AFTER.match(chain, match.end())
        a, b, c = (read_number(match[group]) for group in (1, 3, 4))
        if is_part or a is None or b is None or c is None:
            continue
        right = Equation(a, match[2], b, c).compute(a, b)
        unit = Fraction(1, 10 ** len(match[4].partition(".")[2]))
        error = None if right is None else abs(right - c)
        if error is None or (error > unit / 2 and not (match[2] == "/" and error < unit)):
            return match[0]
    return ""


def results_in(chain: str) -> list[Fraction]:
    """Read the results of a chain in their order: the numbers after `=` that no operator follows."""
    found = (read_number(text) for text in _RESULT.findall(chain))
    return [number for number in found if number is not None]


def recompute(equations: Sequence[Equation], step: int, result: Fraction) -> Fraction | None:
    """Compute what a chain ends in if one of its steps had another result.

    A number of a later step that equals an earlier step's result is taken for that result.

    Args:
        step: Which step, from 0.
        result: Its other result.

    Returns:
        The last step's result; None if a step divides by zero.
    """
    changed = {equations[step].result: result}
    for each in equations[step + 1 :]:
        computed = each.compute(changed.get(each.first, each.first), changed.get(each.second, each.second))
        if computed is None:
            return None
        changed[each.result] = computed
    return changed[equations[-1].result]
