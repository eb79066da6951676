"""What the embedded model learns from, beside generated problems: people's, others with new words, and sums."""

import json
import random
import re
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from renumber import LINE, retell

from ccot_cli.data.families import LARGEST, LARGEST_FACTOR, Step, is_held_out
from ccot_cli.data.grammar import lexicon
from ccot_cli.data.numerals import write_numeral
from ccot_cli.files import commit

NEW_WORDS_PROBABILITY, REPLACED = 0.15, 0.7
"""How often a problem has words that do not exist, and how many of its nouns and names then are such."""
TYPED_PROBABILITY = 0.15
"""How often a question lacks some of its commas, apostrophes, capitals, and the mark at its end, as people type."""
NUMERALS_PROBABILITY, LARGEST_NUMERAL = 0.1, 20
"""How often a question has numbers in words, and the largest of these; the tokenizer makes digits of larger ones."""
NUM_SUMS = 10
"""Sums in an example that is sums alone."""
NOTHING_PROBABILITY = 0.05
"""How often a difference in these leaves nothing."""
NUMBER = re.compile(r"(?<![\w$£€.,:/-])\d{1,3}(?![\w.,:/%-]*\d|[%:/])\b")
"""A whole number that may be written in words: no part of a time, a price, a decimal, a share."""
ANNOTATED = re.compile(r"<<(\d+)([-+*/])(\d+)=(\d+)>>")
"""A step of GSM8K's chains."""

Solved = tuple[str, str]
"""Question and solution, as in GSM8K."""


def read_people(*paths: Path, held_out: bool = False) -> list[Solved]:
    """Read the problems of files in GSM8K's format whose every step is one operation on whole numbers to 999.

    One in ten is left out, because training never sees it; `held_out` reads these instead of the others.

    The chain becomes that of the generator, as the wording of people is too varied for so small a model.
    """
    chosen = []
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    for row in map(json.loads, lines):
        *chain, answer = row["answer"].split("\n")
        steps = [found[0] for line in chain if len(found := ANNOTATED.findall(line)) == line.count("<<") == 1]
        numbers = [int(each) for left, _, right, result in steps for each in (left, right, result)]
        answer = answer.removeprefix("####").strip()
        if len(steps) == len(chain) > 0 and answer.isdigit() and max(*numbers, int(answer)) <= LARGEST:
            solution = [*(write_step(*step) for step in steps), f"#### {answer}"]
            chosen.append((" ".join(row["question"].split()), "\n".join(solution)))
    return [each for each in chosen if is_held_out(each[0]) == held_out]


def write_solved(problems: Iterable[Solved], path: Path) -> None:
    """Write problems as JSON lines, in GSM8K's format; an interrupted call leaves the file as it was."""
    lines = [json.dumps({"question": question, "answer": solution}) + "\n" for question, solution in problems]
    with commit(path) as part:
        part.write_text("".join(lines), encoding="utf-8")


def renumbered(rng: random.Random, told: Solved) -> Solved:
    """Return a problem with other numbers; with its own if these cannot be replaced."""
    question, solution = told
    new = retell(question, "\n".join(found[0] for found in LINE.finditer(solution)), rng)
    if new is None:
        return told
    new_question, chain, answer = new
    steps = [found.groups() for found in LINE.finditer(chain)]
    if max(int(number) for left, _, right, result in steps for number in (left, right, result)) > LARGEST:
        return told
    return new_question, "\n".join([*(write_step(*step) for step in steps), f"#### {answer}"])


def replaceable_stems() -> list[str]:
    """Return the lexicon's nouns and first names in lower case, without a plural's s."""
    nouns = {pair[1].split()[-1] for pairs in lexicon().objects.values() for pair in pairs}
    names = {name for each in lexicon().names.values() for name in each}
    return sorted({word.lower().removesuffix("s") for word in nouns | names if len(word) >= 4 and word.isalpha()})


def varied(rng: random.Random, stems: list[str], told: Solved) -> Solved:
    """Put new words into some problems, write the numbers of some in words, and some as people type them."""
    return as_typed(rng, with_numerals(rng, with_new_words(rng, stems, told)))


def with_new_words(rng: random.Random, stems: list[str], told: Solved) -> Solved:
    """Put words that do not exist, made of two that do, in the place of some problems' nouns and names.

    So θ learns what to do with words that it does not know.

    Args:
        stems: Of nouns and names, as `replaceable_stems` returns them.
    """
    if rng.random() > NEW_WORDS_PROBABILITY:
        return told
    question, solution = told
    of_question = dict.fromkeys(each.lower().removesuffix("s") for each in re.findall(r"[A-Za-z]{4,}", question))
    for stem in of_question:
        index = bisect_left(stems, stem)
        if stems[index : index + 1] != [stem] or rng.random() > REPLACED:
            continue
        new = rng.choice(stems)[: rng.randint(2, 4)] + rng.choice(stems)[-rng.randint(2, 4) :]

        def replace(found: re.Match[str], new: str = new) -> str:
            return (new.capitalize() if found[1][0].isupper() else new) + found[2]

        pattern = re.compile(rf"\b({stem})(s?)\b", re.IGNORECASE)
        question, solution = pattern.sub(replace, question), pattern.sub(replace, solution)
    return question, solution


def with_numerals(rng: random.Random, told: Solved) -> Solved:
    """Write the small numbers of some questions in words; the chains keep digits."""
    if rng.random() > NUMERALS_PROBABILITY:
        return told
    question, solution = told

    def replace(found: re.Match[str]) -> str:
        if int(found[0]) > LARGEST_NUMERAL:
            return found[0]
        words = write_numeral(int(found[0]))
        is_first = not found.start() or question[: found.start()].endswith((". ", "? ", "! "))
        return words.capitalize() if is_first else words

    return NUMBER.sub(replace, question), solution


def as_typed(rng: random.Random, told: Solved) -> Solved:
    """Write some questions as people type them: without commas, apostrophes, capitals, or the mark at the end."""
    if rng.random() > TYPED_PROBABILITY:
        return told
    question, solution = told
    for mark, probability in ((",", 0.7), ("'", 0.3)):
        if rng.random() < probability:
            question = question.replace(mark, "")
    if rng.random() < 0.5:
        question = question.lower()
    if rng.random() < 0.3:
        question = question.rstrip("?.")
    return question, solution


def sums(rng: random.Random) -> str:
    """Write sums to practise on; the generated problems alone have too few."""
    written: list[str] = []
    while len(written) < NUM_SUMS:
        sign = rng.choice("++--*/")
        most = rng.choice((20, 100, 100, LARGEST))
        left, right = rng.randint(1, most), rng.randint(1, rng.choice((LARGEST_FACTOR, most)))
        if sign == "-" and rng.random() < NOTHING_PROBABILITY:
            written.append(write_step(left, "-", left, 0))
            continue
        if sign == "/":
            left *= right
        if rng.random() < 0.5 and sign in "+*":
            left, right = right, left
        result = Step("p", "a", sign, "b").compute({"a": left, "b": right}) if left <= LARGEST else None
        if result is not None:
            written.append(write_step(left, sign, right, result))
    return " ".join(written)


def write_step(left: int | str, sign: str, right: int | str, result: int | str) -> str:
    """Write a line of a chain as the generator does."""
    return Step("p", "a", sign, "b").write({"a": int(left), "b": int(right), "p": int(result)})
