"""Split a file of problems into training and test problems, the same ones whatever else is in the file.

    python examples/research/split.py mawps-asdiv-a.jsonl train.jsonl test.jsonl

Each line has a `question`. One in four is for testing, chosen by a hash of its question.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer

TEST_ONE_IN = 4


def is_for_test(question: str) -> bool:
    """Tell whether a question is held out from training."""
    return hashlib.sha256(f"people/{question}".encode()).digest()[0] % TEST_ONE_IN == 0


def main(
    path: Annotated[Path, typer.Argument(help="Problems as JSON lines.")],
    train: Annotated[Path, typer.Argument(help="The file of training problems to write.")],
    test: Annotated[Path, typer.Argument(help="The file of test problems to write.")],
) -> None:
    """Write the two files and say how many problems they have."""
    parts: dict[Path, list[str]] = {train: [], test: []}
    for line in path.read_text(encoding="utf-8").splitlines():
        parts[test if is_for_test(json.loads(line)["question"]) else train].append(line)
    for target, lines in parts.items():
        target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    typer.echo(f"{len(parts[train]):,} training and {len(parts[test]):,} test problems")


if __name__ == "__main__":
    typer.run(main)
