"""Measure how often the model in the package says that it does not know a question, and whether it is right to.

    python examples/research/domain.py                                  # the generator's questions, and other texts
    python examples/research/domain.py mawps-asdiv-a.jsonl gsm8k.jsonl  # and problems that people wrote

The table says how many of a kind of question are called outside the model's domain, and the exact match of both parts
if the right answers are known. Of people, problems in reach are taken (`people.py`), in two halves by their hash.
The record has learned from none of these, but its settings were chosen with all of them in view.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from people import is_for_test, is_in_reach
from record import write_record

from ccot_cli.cli.console import TerminalProgress, print_table
from ccot_cli.cli.options import read_ratio
from ccot_cli.config import Settings
from ccot_cli.data.answers import is_correct
from ccot_cli.data.problems import split_solution
from ccot_cli.data.word_problems import generate
from ccot_cli.stages.ask import Asker

SEED = 2
"""Of the generator."""
RESEARCH = Path(__file__).parent
NOT_PROBLEMS = RESEARCH / "not_problems.txt"
LEAST_ANSWERS = 20
"""Of fewer no exact match is given."""
COLUMNS = {"questions": "{}", "number": "{:,}"}
COLUMNS |= dict.fromkeys(("called outside", "exact match inside", "exact match outside"), "{:.3f}")


class Item(NamedTuple):
    """A question, and its answer if that is known."""

    question: str
    answer: str | None = None


def read_people(path: Path) -> Iterator[Item]:
    """Yield the problems of a file that are in reach."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if is_in_reach(row["question"], row["answer"]):
            yield Item(row["question"], split_solution(row["answer"])[1])


def read_texts() -> Iterator[tuple[str, list[Item]]]:
    """Yield each section of `not_problems.txt` by its heading."""
    for section in NOT_PROBLEMS.read_text(encoding="utf-8").split("# ")[1:]:
        heading, *texts = section.splitlines()
        yield heading, [Item(text) for text in texts if text]


def in_halves(name: str, items: list[Item]) -> Iterator[tuple[str, list[Item]]]:
    """Yield the half that choices may be made on, and that for the report."""
    for half, is_odd in (("even", False), ("odd", True)):
        yield f"{name}, {half} hash", [item for item in items if is_for_test(item.question) == is_odd]


def read_typed() -> Iterator[tuple[str, list[Item]]]:
    """Yield two sets of questions as people type them."""
    for name in ("everyday", "typed"):
        rows = map(json.loads, (RESEARCH / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
        yield name, [Item(row["question"], str(row["answer"])) for row in rows]


def all_kinds(human: list[Path], limit: int) -> Iterator[tuple[str, list[Item]]]:
    """Yield each kind of question by name.

    Args:
        human: Files of problems that people wrote.
        limit: Number of problems of each split of the generator.
    """
    for split in ("validation", "test", "unseen"):
        problems = islice(generate(split, seed=SEED), limit)
        yield split, [Item(problem.question, str(problem.numbers[-1])) for problem in problems]
    for path in human:
        yield from in_halves(path.stem, list(read_people(path)))
    yield from read_typed()
    yield from read_texts()


def measure(asker: Asker, name: str, items: list[Item]) -> list[Any]:
    """Ask all questions of a kind; return a row of the table."""
    results = asker.ask_all([item.question for item in items])
    marks: dict[bool | None, list[bool]] = {True: [], False: []}
    for item, result in zip(items, results, strict=True):
        if item.answer is not None:
            marks[result.in_domain].append(is_correct(result.answer, item.answer))
    outside = sum(not result.in_domain for result in results)
    shares = [sum(found) / len(found) if len(found) >= LEAST_ANSWERS else None for found in marks.values()]
    return [name, len(items), outside / len(items), *shares]


def main(
    human: Annotated[
        list[Path] | None, typer.Argument(help="Files of problems that people wrote, as of GSM8K.")
    ] = None,
    ratio: Annotated[
        Decimal | None,
        typer.Option(parser=read_ratio, help="Compression ratio r of the answers. Default: as `ccot ask` answers."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Number of problems of each split of the generator.")] = 1000,
    output: Annotated[Path | None, typer.Option(help="Folder for the figures as a table in JSON.")] = None,
) -> None:
    """Measure, and print a table."""
    asker = Asker(None, Settings(), ratio)
    rows = []
    for name, items in all_kinds(human or [], limit):
        rows.append(measure(asker, name, items))
        TerminalProgress().say(json.dumps(rows[-1]))
    cells = [
        ["" if value is None else form.format(value) for value, form in zip(row, COLUMNS.values(), strict=True)]
        for row in rows
    ]
    print_table([list(COLUMNS), *cells], align="<>>>>")
    if output:
        note = f"a share of fewer than {LEAST_ANSWERS} answers is left out"
        write_record(output / "domain.json", COLUMNS, rows, seed=SEED, n=limit, note=note)


if __name__ == "__main__":
    typer.run(main)
