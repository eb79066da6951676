"""Choose test problems that people wrote and that the embedded model should answer, as a file for `ccot eval --data`.

    python examples/research/people.py mawps-asdiv-a.jsonl > people.jsonl
    ccot eval --data people.jsonl --limit 2000

The file has a `question`, and an `answer` with one step a line and a `####` line. Chosen are problems of one or two
steps whose numbers are whole and below 1,000. Only those with an odd hash are written: the others may be read to see
what forms of text the generator lacks.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated

import typer

MOST_STEPS = 2
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
WHOLE = re.compile(r"\d{1,3}")


def is_for_test(question: str) -> bool:
    """Tell whether a question is held out from those who write forms."""
    return hashlib.sha256(question.encode()).digest()[0] % 2 == 1


def is_in_reach(question: str, answer: str) -> bool:
    """Tell whether a problem has at most two steps, and no number but whole ones below 1,000."""
    numbers = [number.rstrip(",") for number in NUMBER.findall(f"{question} {answer}")]
    return answer.count("\n") <= MOST_STEPS and all(map(WHOLE.fullmatch, numbers))


def main(path: Annotated[Path, typer.Argument(help="Problems as JSON lines.")]) -> None:
    """Write the chosen problems to stdout."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if is_for_test(row["question"]) and is_in_reach(row["question"], row["answer"]):
            typer.echo(json.dumps(row))


if __name__ == "__main__":
    typer.run(main)
