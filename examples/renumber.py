"""Tell training problems again with other numbers, so that there are several times as many to learn arithmetic from.

    python examples/renumber.py train.jsonl more.jsonl validation.jsonl --tellings 4

Each line has a `question`, and an `answer` with one operation a line (`56 * 9 = 504`) and a `####` line. The validation
problems are those that `ccot` would hold out (`data.validation_limit`); they are written as they are, and none of them
is told again. A problem is told again if its chain shows what each number is for: all are whole, no two are equal, and
none is also said in words. New numbers have as many digits as the old ones.
"""

import json
import random
import re
from pathlib import Path
from typing import Annotated

import typer

from ccot_cli.config import DataConfig
from ccot_cli.data.problems import load_training

LINE = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
NUMBER = re.compile(r"(?:\d[\d,.]*\d|\d)(?!\d| ?%| ?per ?cent)")
"""A number that another may replace. A percentage stays: a chain may divide by 5 instead of taking 20 % of a number."""
IN_WORDS = {
    "2": "half|twice|doubl|couple|pair|both|other|each of them|two|50 ?%|(50|fifty) per ?cent",
    "3": "thrice|tripl|third|three",
    "4": "quarter|fourth|four|25 ?%|(25|twenty-five) per ?cent",
    "5": "fifth|nickel|five|20 ?%|(20|twenty) per ?cent",
    "7": "week",
    "10": "dime|ten|10 ?%|10 per ?cent",
    "12": "dozen|year|month|foot|feet",
    "24": "day",
    "60": "hour|minute",
    "100": "percent|%|dollar|cent|meter",
}
"""Beginnings of words that stand for a number. If that is given in digits too, a chain does not show which it means."""
ATTEMPTS = 400
"""Draws of numbers, of which the first one with whole, positive results is used."""


def calculate(left: int, operator: str, right: int) -> int | None:
    """Return the result of an operation; None if it is not a whole positive number."""
    if operator == "/":
        return left // right if right and left % right == 0 else None
    result = {"+": left + right, "-": left - right, "*": left * right}[operator]
    return result if result > 0 else None


def redraw(number: str, rng: random.Random) -> str:
    """Return another number of as many digits; one stays one, because its noun is singular."""
    if int(number) < 2:
        return number
    return str(rng.randint(max(2, 10 ** (len(number) - 1)), 10 ** len(number) - 1))


def is_ambiguous(question: str, given: list[str]) -> bool:
    """Tell whether a number is given both in digits and in words."""
    words = (IN_WORDS[number] for number in given if number in IN_WORDS)
    return any(re.search(rf"\b({each})", question, re.IGNORECASE) for each in words)


def retell(question: str, chain: str, rng: random.Random) -> tuple[str, str, str] | None:
    """Return a question with other numbers, its chain and its answer; None if that cannot be done.

    An operand of the chain is an earlier result, a number of the question, or a constant such as 12, which stays.
    """
    steps = [step.groups() for step in map(LINE.fullmatch, chain.split("\n")) if step]
    given = NUMBER.findall(question)
    numbers = [*given, *(step[-1] for step in steps)]
    is_plain = all(map(str.isdigit, numbers)) and len(set(numbers)) == len(numbers)
    if not is_plain or not given or len(steps) < chain.count("\n") + 1 or is_ambiguous(question, given):
        return None
    for _ in range(ATTEMPTS):
        new = {number: redraw(number, rng) for number in given}
        lines = recalculate(steps, new)
        if lines:
            told = "".join(new.get(piece, piece) for piece in re.split(f"({NUMBER.pattern})", question))
            return (told, "\n".join(lines), lines[-1].split()[-1]) if told != question else None
    return None


def recalculate(steps: list[tuple[str, ...]], new: dict[str, str]) -> list[str]:
    """Return the chain's lines with new numbers, which gain the new results; none if a result does not fit."""
    lines: list[str] = []
    for left, operator, right, old in steps:
        left, right = new.get(left, left), new.get(right, right)
        result = calculate(int(left), operator, int(right))
        if result is None or len(str(result)) > len(old) + 1:
            return []
        new[old] = str(result)
        lines.append(f"{left} {operator} {right} = {result}")
    return lines


def main(
    path: Annotated[Path, typer.Argument(help="Training problems as JSON lines.")],
    train: Annotated[Path, typer.Argument(help="The file of training problems to write.")],
    validation: Annotated[Path, typer.Argument(help="The file of validation problems to write.")],
    tellings: Annotated[int, typer.Option(min=1, help="How often to tell a problem again.")] = 4,
    limit: Annotated[int, typer.Option(min=1, help="Most validation problems.")] = 200,
) -> None:
    """Write the two files and say how many problems they have."""
    loaded = load_training(DataConfig(source=str(path), validation_limit=limit, limit=None))
    rng = random.Random("renumber")
    rows = [(each.question, each.chain, each.answer) for each in loaded.train]
    for question, chain, _ in list(rows):
        told = (retell(question, chain, rng) for _ in range(tellings))
        rows += filter(None, told)
    rows = list(dict.fromkeys(rows))
    rng.shuffle(rows)
    held_out = [(each.question, each.chain, each.answer) for each in loaded.validation]
    for target, each_rows in ((train, rows), (validation, held_out)):
        lines = [json.dumps({"question": q, "answer": f"{chain}\n#### {a}"}) + "\n" for q, chain, a in each_rows]
        target.write_text("".join(lines), encoding="utf-8")
    typer.echo(f"{len(rows):,} training and {len(held_out):,} validation problems")


if __name__ == "__main__":
    typer.run(main)
