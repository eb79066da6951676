"""Measure how long a command takes before it does anything.

    python examples/benchmarks/startup.py
    python examples/benchmarks/startup.py --repeats 9 --output startup.json

Whole processes are timed, from start to end: `ccot --help` and `ccot status` against an empty Python, and `ccot ask`
with the embedded model against importing torch, transformers and peft.
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from interleaved import ratio, report, take_turns

QUESTION = "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?"


def process(folder: str, *arguments: str) -> Callable[[], object]:
    """Return a function that runs Python with these arguments in a folder."""
    return lambda: subprocess.run([sys.executable, *arguments], cwd=folder, check=True, capture_output=True)


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 5,
    output: Annotated[Path | None, typer.Option(help="File for the results as JSON.")] = None,
) -> None:
    """Time the processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = ("-m", "ccot_cli")
        subprocess.run([sys.executable, *command, "init", "."], cwd=folder, check=True, capture_output=True)
        works = {
            "python": process(folder, "-c", "pass"),
            "ccot --help": process(folder, *command, "--help"),
            "ccot status": process(folder, *command, "status"),
            "import": process(folder, "-c", "import torch, transformers, peft"),
            "ccot ask": process("/", *command, "ask", QUESTION),
        }
        rounds = take_turns(works, repeats=repeats)
    for name in works:
        typer.echo(f"{name:12}  {statistics.median(seconds[name] for seconds in rounds):6.2f} s")
    pairs = (("ccot --help", "python"), ("ccot status", "python"), ("ccot ask", "import"))
    report([ratio(rounds, *pair) for pair in pairs], rounds, output)


if __name__ == "__main__":
    typer.run(main)
