"""Compare seconds per question of the embedded model: the explicit chain against every other shipped method.

    python examples/benchmarks/questions.py                                # minutes on two cores
    python examples/benchmarks/questions.py --batch-size 1 --output questions.json

All methods take turns on every eight of the same test problems, or on every batch if that is larger. Loading is not
timed. Four kinds of ratios are printed:

- the chain's seconds over those of each other method;
- tokens of padded batches over those that were needed: refilling the rows of finished questions could save no more;
- CCoT without its draft of the answer's first token, and with END asked after every token, over CCoT as it is;
- questions in random order, as `ccot ask --input` gets them: batches in that order, over reading ahead for batches of
  like length.
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
from ccot_cli.data.batches import cut
from ccot_cli.data.problems import Problem, load_test
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import Method, Reply
from ccot_cli.stages.ask import BATCH_SIZE, Asker
from ccot_cli.stages.methods import find_methods
from ccot_cli.tensors.probes import Logistic

TURN = 8
"""Questions that a method answers before the next method takes its turn."""
Replies = dict[str, list[list[Reply]]]
"""The replies of each method, by batch."""


def answer_in_turns(
    methods: Mapping[str, Method], problems: list[Problem], batch_size: int, repeats: int
) -> tuple[list[Round], Replies]:
    """Time each method on all problems, in rounds; within a round, the methods take turns on every few questions."""
    questions = [problem.question for problem in problems]
    batches = cut(questions, batch_size)
    batches_per_turn = max(1, TURN // batch_size)
    rounds: list[Round] = []
    for _ in range(1 + repeats):
        replies: Replies = {name: [] for name in methods}
        turns = []
        for start in range(0, len(batches), batches_per_turn):
            part = batches[start : start + batches_per_turn]
            works = {name: partial(reply_to, method, part, replies[name]) for name, method in methods.items()}
            turns += take_turns(works, repeats=1, warm_ups=0)
        rounds.append({name: sum(turn[name] for turn in turns) for name in methods})
    return rounds[1:], replies


def reply_to(method: Method, batches: list[list[str]], replies: list[list[Reply]]) -> None:
    """Answer some batches and append the replies."""
    replies += [method.reply(batch)[0] for batch in batches]


def texts(batches: list[list[Reply]]) -> list[str]:
    """List the texts of all replies."""
    return [reply.text for batch in batches for reply in batch]


def padding(batches: list[list[Reply]], name: str) -> Ratio:
    """Compare the tokens before the answer, padded to the longest row of each batch, with those that were needed."""
    counts = [[reply.num_contemplation for reply in batch] for batch in batches]
    by_batch = [max(batch) * len(batch) / sum(batch) for batch in counts]
    overall = sum(max(batch) * len(batch) for batch in counts) / sum(map(sum, counts))
    return Ratio(f"tokens of padded batches / of their rows, {name}", overall, min(by_batch), max(by_batch))


def variants(name: str, method: Method, batch_size: int) -> dict[str, Method]:
    """Make slower variants of CCoT, each without one of its optimisations, by name; none of another method."""
    if not isinstance(method, CcotMethod):
        return {}
    always = Logistic(torch.zeros_like(method.end.hint.weight_D), torch.tensor(torch.inf))
    slower: dict[str, Method] = {
        f"{name}, END asked after every token": replace(method, end=replace(method.end, hint=always))
    }
    if method.draft.pays(batch_size):
        slower[f"{name}, no draft"] = replace(method, draft=replace(method.draft, accuracy=0.0))
    return slower


def reading_ahead(problems: list[Problem], repeats: int) -> tuple[list[Round], Ratio]:
    """Time `ccot ask` on questions in random order, with and without reading ahead."""
    asker = Asker(None, Settings(), Decimal("0.1"))
    questions = [problem.question for problem in problems]

    def answer(num_read: int) -> None:
        for start in range(0, len(questions), num_read):
            asker.answer(questions[start : start + num_read])

    in_order, ahead = "ask, as the lines come", "ask, reading ahead"
    rounds = take_turns({in_order: lambda: answer(BATCH_SIZE), ahead: lambda: answer(READ_AHEAD)}, repeats=repeats)
    return rounds, ratio(rounds, in_order, ahead)


def main(
    batch_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Questions at a time; repeat it for several.")
    ] = None,
    problems: Annotated[int, typer.Option(min=1, help="Number of test problems.")] = 64,
    lines: Annotated[int, typer.Option(min=1, help="Number of questions in random order.")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 5,
    output: Annotated[Path | None, typer.Option(help="File for the results as JSON.")] = None,
) -> None:
    """Time the methods."""
    settings, ratios = Settings(), []
    tests = sorted(load_test(settings.data, limit=problems, seed=0), key=lambda problem: len(problem.question))
    rounds: list[Round] = []
    for size in batch_size or [1, 8, 32]:
        methods: dict[str, Method] = {}
        for number in range(len(find_methods(None, settings).choose())):
            # Each method has a model of its own, because loading a method replaces the one loaded before.
            loadable = find_methods(None, settings).choose()[number]
            methods[f"{loadable.name} r = {loadable.ratio:f}, {size} at a time"] = loadable.load()
        chain = next(name for name in methods if name.startswith("cot "))
        slower = {name: variants(name, method, size) for name, method in methods.items()}
        works = methods | {name: each for others in slower.values() for name, each in others.items()}
        size_rounds, replies = answer_in_turns(works, tests, size, repeats)
        rounds += size_rounds
        ratios += [ratio(size_rounds, chain, name) for name in methods if name != chain]
        ratios += [padding(replies[name], name) for name in methods if name == chain or name.startswith("ccot")]
        for name, others in slower.items():
            ratios += [ratio(size_rounds, other, name) for other in others]
            for other in others:
                if texts(replies[other]) != texts(replies[name]):
                    typer.echo(f"not all answers are the same: {other}", err=True)
    ask_rounds, ask_ratio = reading_ahead(load_test(settings.data, limit=lines, seed=0), repeats)
    report([*ratios, ask_ratio], [*rounds, *ask_rounds], output, problems=problems, lines=lines)


if __name__ == "__main__":
    typer.run(main)
