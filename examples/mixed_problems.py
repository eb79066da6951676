"""Write problems from which a pretrained model learns to write chains, and to contemplate them.

    python examples/mixed_problems.py problems.jsonl --people gsm8k.jsonl --number 14700

They are generated ones of the training split, problems that people wrote with other numbers where these can be
replaced, and sums to practise on. The chains of problems have the generator's lines. One seed gives the same problems
everywhere, and fewer of them are the beginning of more.
"""

import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from training_texts import Solved, as_typed, read_people, renumbered, sums, write_solved

from ccot_cli.data.word_problems import generate

MOST_STEPS = 5
"""Most reasoning steps of a generated problem."""
LONGER_STEPS, LONGER_PROBABILITY = (3, MOST_STEPS), 0.4
"""Reasoning steps of some of the generated problems, which otherwise have one or two mostly."""
NUM_SUMS = 8
"""Sums in an example that is sums alone."""
SUM = re.compile(r"(\d+ [-+*/] \d+) = (\d+)")
SEED = 50_000_000
"""The embedded model and its methods learned from other generated problems."""


def practice(rng: random.Random) -> Solved:
    """Return sums as a problem: they are the question, each is worked out in a line, the last result is the answer."""
    worked = SUM.findall(sums(rng))[:NUM_SUMS]
    chain = [f"{asked} = {result}" for asked, result in worked]
    return "; ".join(asked for asked, _ in worked), "\n".join([*chain, f"#### {worked[-1][1]}"])


def mix(people: list[Solved], people_share: float, sums_share: float, seed: int) -> Iterator[Solved]:
    """Yield problems of all kinds, no two with the same question."""
    rng = random.Random(f"pretrained {seed}")
    shorter = generate("train", seed=seed, steps=(1, MOST_STEPS))
    longer = generate("train", seed=seed, steps=LONGER_STEPS)
    asked = set[str]()
    while True:
        drawn = rng.random()
        if drawn < sums_share:
            told = practice(rng)
        elif drawn < sums_share + people_share:
            told = as_typed(rng, renumbered(rng, rng.choice(people)))
        else:
            problem = next(longer if rng.random() < LONGER_PROBABILITY else shorter)
            told = as_typed(rng, (problem.question, problem.solution))
        if told[0] not in asked:
            asked.add(told[0])
            yield told


def main(
    path: Annotated[Path, typer.Argument(help="File to write, as JSON lines.")],
    people: Annotated[list[Path], typer.Option(help="Problems that people wrote, in GSM8K's format; give any number.")],
    number: Annotated[int, typer.Option(help="Problems to write.")],
    people_share: Annotated[float, typer.Option(help="Share of people's problems.")] = 0.2,
    sums_share: Annotated[float, typer.Option(help="Share of examples that are sums alone.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = SEED,
) -> None:
    """Write problems with `question` and `answer`, in GSM8K's format."""
    write_solved(islice(mix(read_people(*people), people_share, sums_share, seed), number), path)


if __name__ == "__main__":
    typer.run(main)
