"""Seconds per question of the embedded model: the explicit chain over every other method that is shipped.

    python examples/benchmarks/questions.py                                # minutes on two cores
    python examples/benchmarks/questions.py --batch-size 1 --output questions.json

All methods take turns on every eight of the same test problems, or a batch; the time of loading is left out. Beside the
times, how many tokens a batch's rows would have written had all been as long as the longest, over those that they
wrote: what filling the places of finished rows could save at most. Where CCoT drafts the answer's first token, what it
takes without, and what it takes where END is asked after every token.

Last, questions in random order, as `ccot ask --input` gets them: batches as the lines come, over reading ahead for
batches of like length.
"""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from interleaved import Ratio, Round, ratio, report, take_turns

from ccot_cli.cli.ask import READ_AHEAD
from ccot_cli.config import Settings
from ccot_cli.data.problems import Problem, load_test
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import Method, Reply
from ccot_cli.stages.ask import BATCH_SIZE, Asker
from ccot_cli.stages.methods import find_methods
from ccot_cli.tensors.probes import Logistic

TURN = 8
"""Questions that a method answers before it is another's turn."""
Said = dict[str, list[list[Reply]]]
"""What each method said, by batches."""


def answer_in_turns(
    methods: Mapping[str, Method], problems: list[Problem], batch_size: int, repeats: int
) -> tuple[list[Round], Said]:
    """Seconds of each method for all problems, in rounds; within one, they take turns on every few questions."""
    questions = [problem.question for problem in problems]
    batches = [questions[start : start + batch_size] for start in range(0, len(questions), batch_size)]
    at_once = max(1, TURN // batch_size)
    rounds: list[Round] = []
    for _ in range(1 + repeats):
        said: Said = {name: [] for name in methods}
        turns = []
        for start in range(0, len(batches), at_once):
            part = batches[start : start + at_once]
            works = {name: partial(reply_to, each, part, said[name]) for name, each in methods.items()}
            turns += take_turns(works, repeats=1, warm_ups=0)
        rounds.append({name: sum(turn[name] for turn in turns) for name in methods})
    return rounds[1:], said


def reply_to(method: Method, batches: list[list[str]], said: list[list[Reply]]) -> None:
    """Answer some batches and keep what is said."""
    said += [method.reply(batch)[0] for batch in batches]


def texts(batches: list[list[Reply]]) -> list[str]:
    """What was said."""
    return [reply.text for batch in batches for reply in batch]


def padding(batches: list[list[Reply]], name: str) -> Ratio:
    """Tokens before the answer as if every row of a batch had its longest's, over those there are."""
    counts = [[reply.num_contemplation for reply in batch] for batch in batches]
    shares = [max(batch) * len(batch) / sum(batch) for batch in counts]
    overall = sum(max(batch) * len(batch) for batch in counts) / sum(map(sum, counts))
    return Ratio(f"tokens of padded batches / of their rows, {name}", overall, min(shares), max(shares))


def variants(name: str, method: Method, batch_size: int) -> dict[str, Method]:
    """CCoT without a piece of what makes it fast, by what is missing."""
    if not isinstance(method, CcotMethod):
        return {}
    always = Logistic(torch.zeros_like(method.end.hint.weight_D), torch.tensor(torch.inf))
    found: dict[str, Method] = {
        f"{name}, END asked after every token": replace(method, end=replace(method.end, hint=always))
    }
    if method.draft.pays(batch_size):
        found[f"{name}, no draft"] = replace(method, draft=replace(method.draft, accuracy=0.0))
    return found


def reading_ahead(problems: list[Problem], repeats: int) -> tuple[list[Round], Ratio]:
    """Time `ask` on questions in their random order."""
    asker = Asker(None, Settings(), Decimal("0.1"))
    questions = [problem.question for problem in problems]

    def answer(at_once: int) -> None:
        for start in range(0, len(questions), at_once):
            asker.answer(questions[start : start + at_once])

    one, other = "ask, as the lines come", "ask, reading ahead"
    rounds = take_turns({one: lambda: answer(BATCH_SIZE), other: lambda: answer(READ_AHEAD)}, repeats=repeats)
    return rounds, ratio(rounds, one, other)


def main(
    batch_size: Annotated[list[int] | None, typer.Option(min=1, help="Questions at a time; repeat it.")] = None,
    problems: Annotated[int, typer.Option(min=1, help="Test problems.")] = 64,
    lines: Annotated[int, typer.Option(min=1, help="Questions in random order.")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 5,
    output: Annotated[Path | None, typer.Option(help="Where to write JSON.")] = None,
) -> None:
    """Time the methods."""
    settings, every = Settings(), []
    tests = sorted(load_test(settings.data, limit=problems, seed=0), key=lambda problem: len(problem.question))
    rounds: list[Round] = []
    for size in batch_size or [1, 8, 32]:
        methods: dict[str, Method] = {}
        for number in range(len(find_methods(None, settings).choose())):
            # Each method has a model of its own, for loading one puts the last away.
            loadable = find_methods(None, settings).choose()[number]
            methods[f"{loadable.name} r = {loadable.ratio:f}, {size} at a time"] = loadable.load()
        chain = next(name for name in methods if name.startswith("cot "))
        slower = {name: variants(name, method, size) for name, method in methods.items()}
        works = methods | {name: each for others in slower.values() for name, each in others.items()}
        found, said = answer_in_turns(works, tests, size, repeats)
        every += [ratio(found, chain, name) for name in methods if name != chain]
        every += [padding(said[name], name) for name in methods if name == chain or name.startswith("ccot")]
        for name, others in slower.items():
            every += [ratio(found, other, name) for other in others]
            for other in others:
                if texts(said[other]) != texts(said[name]):
                    typer.echo(f"not all answers are the same: {other}", err=True)
        rounds += found
    in_turns, ahead = reading_ahead(load_test(settings.data, limit=lines, seed=0), repeats)
    rounds += in_turns
    every.append(ahead)
    report(every, rounds, output, problems=problems, lines=lines)


if __name__ == "__main__":
    typer.run(main)
