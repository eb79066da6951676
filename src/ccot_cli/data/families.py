"""Tell word problems whose whole text is one form, from the families in `forms/*.yaml`.

A family is a kind of problem, with its arithmetic. A form is one line of text for it.
"""

import hashlib
import random
import re
from dataclasses import dataclass
from functools import cache
from operator import add, floordiv, mul, sub
from typing import Any

from ccot_cli.data.grammar import FORMS, LEXICON_FILE, STORIES_FILE, Telling, lexicon, lines, read_forms

LARGEST = 999
LARGEST_FACTOR = 12
"""Of two factors, or of divisor and quotient, one is at most this."""
CEILINGS, CEILING_WEIGHTS = (10, 20, 50, 100, 300, LARGEST), (2, 4, 5, 5, 1, 1)
"""Largest given number of a problem, and how often; people mostly write small ones."""
TRIES = 3000
IRRELEVANT_PROBABILITY = 0.15
BACKGROUND_PROBABILITY = 0.06
LOWER_CASE_PROBABILITY = 0.03

STEP = re.compile(r"([a-z]) = ([a-z]|\d+) ([-+*/]) ([a-z]|\d+)")
COMPUTE = {"+": add, "-": sub, "*": mul, "/": floordiv}
SAYINGS = {
    "+": "Adding {left} and {right} gives",
    "-": "Taking {right} from {left} leaves",
    "*": "{left} times {right} makes",
    "/": "Dividing {left} by {right} gives",
}
"""How a line of the chain begins. A model that learns these few reads new wordings of a question better than one that
learns a line for every kind of problem."""


def is_held_out(form: str) -> bool:
    """Tell whether training never sees a form; one in ten is."""
    return hashlib.sha256(form.encode()).digest()[0] < 26


@dataclass(frozen=True)
class Step:
    """One operation: `result = left sign right`; the operands are letters or constants."""

    result: str
    left: str
    sign: str
    right: str

    @classmethod
    def parse(cls, text: str) -> "Step":
        """Read a step such as `p = a + b`.

        Raises:
            ValueError: if it is none.
        """
        found = STEP.fullmatch(text.strip())
        if not found:
            raise ValueError(f"no step: {text!r}")
        return cls(*found.groups())

    def compute(self, numbers: dict[str, int]) -> int | None:
        """Return the result; None if it is not a whole number from 1 to 999, or too hard to work out in one line."""
        left, right = (int(each) if each.isdigit() else numbers[each] for each in (self.left, self.right))
        if self.sign == "/" and left % right:
            return None
        result: int = COMPUTE[self.sign](left, right)
        hard = {"*": min(left, right), "/": min(right, result)}.get(self.sign, 0)
        return result if 1 <= result <= LARGEST and hard <= LARGEST_FACTOR else None

    def write(self, numbers: dict[str, int]) -> str:
        """Return the line of the chain.

        Args:
            numbers: The operands and the result.
        """
        left, right = (int(each) if each.isdigit() else numbers[each] for each in (self.left, self.right))
        saying = SAYINGS[self.sign].format(left=left, right=right)
        return f"{saying} {left} {self.sign} {right} = {numbers[self.result]}."


@dataclass(frozen=True)
class Family:
    """A kind of problem."""

    name: str
    subset: str
    """Name of its file, without the suffix."""
    steps: tuple[Step, ...]
    lowest: dict[str, int]
    highest: dict[str, int]
    where: tuple[str, ...]
    """Conditions on the numbers."""
    forms: tuple[str, ...]
    """Those that training sees."""
    unseen: tuple[str, ...]
    """Those that are held out."""

    @classmethod
    def parse(cls, name: str, subset: str, value: dict[str, Any]) -> "Family":
        """Read an entry of a file.

        Raises:
            ValueError: if it does not fit together.
        """
        steps = tuple(Step.parse(each) for each in value["steps"])
        forms = lines(value["forms"])
        held_out = [form for form in forms if is_held_out(form)]
        return cls(
            name,
            subset,
            steps,
            value.get("min") or {},
            value.get("max") or {},
            tuple(value.get("where") or ()),
            tuple(form for form in forms if form not in held_out),
            tuple(held_out),
        )

    @property
    def given(self) -> list[str]:
        """Letters of the given numbers."""
        operands = [each for step in self.steps for each in (step.left, step.right) if not each.isdigit()]
        return sorted(set(operands) - {step.result for step in self.steps})

    def draw(self, rng: random.Random) -> dict[str, int]:
        """Draw the numbers.

        Raises:
            ValueError: if no numbers were found that fit.
        """
        factors = {each for step in self.steps if step.sign in "*/" for each in (step.left, step.right)}
        for _ in range(TRIES):
            ceiling = rng.choices(CEILINGS, CEILING_WEIGHTS)[0]
            numbers: dict[str, int] = {}
            for letter in self.given:
                low = self.lowest.get(letter, 2)
                high = min(ceiling, self.highest.get(letter, LARGEST))
                if letter in factors and rng.random() < 0.5:
                    high = min(high, LARGEST_FACTOR)
                numbers[letter] = rng.randint(low, max(low, high))
            first = self.steps[0]
            if first.sign == "/" and first.left in numbers:
                # Few dividends divide: draw the quotient instead.
                divisor = int(first.right) if first.right.isdigit() else numbers.get(first.right, 2)
                numbers[first.left] = divisor * rng.randint(2, max(2, min(ceiling, LARGEST // divisor)))
            if self._fits(numbers):
                return numbers
        raise ValueError(f"{self.name}: no numbers fit")

    def _fits(self, numbers: dict[str, int]) -> bool:
        """Add the results to the numbers; return False if a limit or condition is broken."""
        if any(not self.lowest.get(each, 2) <= numbers[each] <= self.highest.get(each, LARGEST) for each in numbers):
            return False
        for step in self.steps:
            result = step.compute(numbers)
            if result is None or not self.lowest.get(step.result, 1) <= result <= self.highest.get(
                step.result, LARGEST
            ):
                return False
            numbers[step.result] = result
        # The conditions are the package's own.
        return all(eval(condition, {"__builtins__": {}}, numbers) for condition in self.where)


@dataclass(frozen=True)
class WordProblem:
    """One problem."""

    question: str
    solution: str
    """Chain, and a `#### answer` line as in GSM8K."""
    family: str
    form: str
    numbers: tuple[int, ...]
    """The given numbers and the results, the answer last."""

    @property
    def split(self) -> str:
        """The only split in which this problem may appear; of `test`, `unseen` takes those with held-out forms."""
        bucket = hashlib.sha256(f"{self.family}{self.numbers}".encode()).digest()[0]
        return "test" if bucket < 16 else "validation" if bucket < 32 else "train"


@cache
def families() -> tuple[Family, ...]:
    """Read all families.

    Raises:
        ValueError: if one does not fit together, or two have the same name.
    """
    names = sorted(
        each.name
        for each in FORMS.iterdir()
        if each.name.endswith(".yaml") and each.name not in (LEXICON_FILE, STORIES_FILE)
    )
    found = [
        Family.parse(name, file.removesuffix(".yaml"), value)
        for file in names
        for name, value in read_forms(file).items()
    ]
    if len({each.name for each in found}) < len(found):
        raise ValueError("two families have the same name")
    return tuple(found)


def tell(rng: random.Random, family: Family, form: str) -> WordProblem:
    """Tell one problem of a family in one of its forms."""
    numbers = family.draw(rng)
    signature = tuple(numbers.values())
    extra = {letter: rng.randint(2, max(9, *signature)) for letter in "mn" if letter not in numbers}
    telling = Telling.draw(rng, numbers | extra)
    before, *rest = telling.choose(form).split("~")
    parts = [before]
    for part in rest:
        if rng.random() < IRRELEVANT_PROBABILITY:
            parts.append(telling.aside().write(rng.choice(lexicon().irrelevant)))
        parts.append(part)
    question = telling.write(" ".join(parts))
    if rng.random() < BACKGROUND_PROBABILITY:
        question = f"{telling.aside().write(rng.choice(lexicon().background))} {question}"
    chain = [step.write(numbers) for step in family.steps]
    answer = numbers[family.steps[-1].result]
    if rng.random() < LOWER_CASE_PROBABILITY:
        question = question.lower()
    return WordProblem(question, "\n".join([*chain, f"#### {answer}"]), family.name, form, signature)
