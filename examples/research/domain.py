"""Measure how often the model in the package says that it does not know a question, and whether it is right to.

    python examples/research/domain.py                                  # the generator's questions, and changed ones
    python examples/research/domain.py mawps-asdiv-a.jsonl gsm8k.jsonl  # and questions that people wrote

Each kind of question is answered at r = 0.1. The table says how many of a kind are called outside the model's domain,
and the exact match of both parts if the right answers are known. A changed question may have an answer that nobody
computed; some changes, such as another verb of the same meaning, give a question of the generator again.
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ccot_cli.cli.console import TerminalProgress, print_table
from ccot_cli.config import DataConfig, Settings
from ccot_cli.data.answers import is_correct
from ccot_cli.data.domain import SENTENCE_END, Domain
from ccot_cli.data.problems import load_test
from ccot_cli.data.word_problems import PEOPLE, WIDE, Split, generate
from ccot_cli.files import write_json
from ccot_cli.stages.ask import DOMAIN_FILE, Asker

SEED = 2
"""Of the generator; nothing was chosen on these problems."""
NUM_OWN, NUM_OTHERS = 5000, 2000
NUMBER = re.compile(r"[0-9]+")
WORD = re.compile(r"[A-Za-z]+")
KNOWN = sorted(word for word in Domain.load(DOMAIN_FILE).words if WORD.fullmatch(word))


class Item(NamedTuple):
    """A question, and its answer if that is known."""

    question: str
    answer: str | None = None


def told(split: Split, count: int, **options: Any) -> list[Item]:
    """Take problems of the generator."""
    problems = islice(generate(split, seed=SEED, **options), count)
    return [Item(problem.question, str(problem.numbers[-1])) for problem in problems]


def one_of(found: Iterable[re.Match[str]], question: str, new: str, rng: random.Random) -> str:
    """Replace one of the found places."""
    place = rng.choice(list(found))
    return question[: place.start()] + new + question[place.end() :]


def large_number(question: str, rng: random.Random) -> str:
    """Replace a number by 5,000."""
    return one_of(NUMBER.finditer(question), question, "5000", rng)


def other_start(question: str, rng: random.Random) -> str:
    """Replace the first number by another from 3 to 60, which need not suit the divisions that follow."""
    first = next(NUMBER.finditer(question))
    number = rng.choice([number for number in range(3, 61) if str(number) != first[0]])
    return one_of([first], question, str(number), rng)


def other_word(question: str, rng: random.Random) -> str:
    """Replace a word by another that the model knows."""
    place = rng.choice(list(WORD.finditer(question)))
    word = rng.choice([word for word in KNOWN if word != place[0]])
    return one_of([place], question, word, rng)


def swapped(question: str, rng: random.Random) -> str:
    """Swap the sentence in which somebody takes over from another with the one before it; `""` if nobody does."""
    sentences = SENTENCE_END.split(question)
    first_names = [next((word for word in WORD.findall(text) if word in PEOPLE), "") for text in sentences]
    places = [at for at in range(1, len(sentences) - 1) if first_names[at] != first_names[at - 1]]
    if not places:
        return ""
    at = rng.choice(places)
    sentences[at - 1 : at + 1] = sentences[at], sentences[at - 1]
    return " ".join(sentences)


CHANGES: dict[str, Callable[[str, random.Random], str]] = {
    "a number is 5,000": large_number,
    "another known word": other_word,
    "two sentences swapped": swapped,
    "another first number": other_start,
}


def all_kinds(human: list[Path]) -> Iterator[tuple[str, list[Item]]]:
    """Yield each kind of question by name."""
    yield "validation split", told("validation", NUM_OWN)
    test = told("test", NUM_OWN)
    yield "test split", test
    for steps in (1, 9, 12):
        yield f"{steps} step{'s' * (steps > 1)}", told("test", NUM_OTHERS, min_steps=steps, max_steps=steps)
    yield "larger numbers", told("test", NUM_OTHERS, limits=WIDE)
    yield (
        "line breaks between sentences",
        [Item(SENTENCE_END.sub("\n", item.question), item.answer) for item in test[:NUM_OTHERS]],
    )
    for name, change in CHANGES.items():
        rng = random.Random(SEED)
        changed = (change(item.question, rng) for item in test[:NUM_OTHERS])
        yield name, [Item(question) for question in changed if question]
    for path in human:
        problems = load_test(DataConfig(test_source=str(path)), limit=None, seed=0)
        yield path.stem, [Item(problem.question, problem.answer) for problem in problems]


def measure(asker: Asker, name: str, items: list[Item]) -> dict[str, Any]:
    """Ask all questions of a kind; return how many are outside, and the exact match of those inside and outside."""
    results = asker.ask_all([item.question for item in items])
    marks: dict[bool | None, list[bool]] = {True: [], False: []}
    for item, result in zip(items, results, strict=True):
        if item.answer is not None:
            marks[result.in_domain].append(is_correct(result.answer, item.answer))
    outside = sum(not result.in_domain for result in results)
    inside_match, outside_match = (sum(found) / len(found) if found else None for found in marks.values())
    return {
        "questions": name,
        "n": len(items),
        "outside": outside,
        "share": outside / len(items),
        "inside_match": inside_match,
        "outside_match": outside_match,
    }


def main(
    human: Annotated[
        list[Path] | None, typer.Argument(help="Files of problems that people wrote, as of GSM8K.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measure, and print a table."""
    asker = Asker(None, Settings(), Decimal("0.1"))
    rows = []
    for name, items in all_kinds(human or []):
        rows.append(measure(asker, name, items))
        TerminalProgress().say(json.dumps(rows[-1]))
    forms = {"questions": "{}", "n": "{:,}", "outside": "{:,}", "share": "{:.4f}"}
    forms |= {"inside_match": "{:.3f}", "outside_match": "{:.3f}"}
    cells = [["" if row[key] is None else form.format(row[key]) for key, form in forms.items()] for row in rows]
    print_table([list(forms), *cells], align="<>>>>>")
    if output:
        write_json(output, rows)


if __name__ == "__main__":
    typer.run(main)
