"""Measure a server: many clients against one, and `ccot ask --server` as a whole process.

    python examples/benchmarks/serving.py
    python examples/benchmarks/serving.py --method cot --clients 50 --repeats 5 --output serving.json

A server of the embedded model answers the same questions twice in each round, once for one client that waits for every
answer, once for many clients at a time; then one process asks one question, and another one is an empty Python.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from interleaved import ratio, report, take_turns
from startup import process

from ccot_cli.client import RemoteAsker
from ccot_cli.data.word_problems import generate

ONE, ALONE, EMPTY = "1 client", "ccot ask --server", "python"


@contextmanager
def server() -> Iterator[str]:
    """Run `ccot serve` on a free port; yield its address."""
    command = [sys.executable, "-m", "ccot_cli", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def main(
    method: Annotated[str, typer.Option(help="Method that answers.")] = "ccot",
    clients: Annotated[int, typer.Option(min=2, help="Clients that ask at a time.")] = 50,
    questions: Annotated[int, typer.Option(min=2, help="Questions to answer.")] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 5,
    output: Annotated[Path | None, typer.Option(help="File for the results as JSON.")] = None,
) -> None:
    """Time the clients."""
    texts = [problem.question for problem in islice(generate("test"), questions)]
    with server() as address:
        asker = RemoteAsker(address, Decimal("0.1") if method == "ccot" else None, method)
        answers: list[list[str]] = []

        def one_by_one() -> None:
            answers.append([asker.ask(text).answer for text in texts])

        def at_a_time() -> None:
            with ThreadPoolExecutor(clients) as threads:
                answers.append([reply.answer for reply in threads.map(asker.ask, texts)])

        many = f"{clients} clients"
        works = {
            ONE: one_by_one,
            many: at_a_time,
            ALONE: process("/", "-m", "ccot_cli", "ask", "--server", address, texts[0]),
            EMPTY: process("/", "-c", "pass"),
        }
        rounds = take_turns(works, repeats=repeats)
    for name, count in ((ONE, questions), (many, questions), (ALONE, 1), (EMPTY, 1)):
        typer.echo(f"{name:18}  {statistics.median(seconds[name] for seconds in rounds) / count:7.4f} s a question")
    same = sum(all(replies[number] == answers[0][number] for replies in answers) for number in range(questions))
    typer.echo(f"{same} of {questions} questions have the same answer every time")
    report([ratio(rounds, ONE, many), ratio(rounds, ALONE, EMPTY)], rounds, output, same=same, questions=questions)


if __name__ == "__main__":
    typer.run(main)
