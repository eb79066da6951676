"""Seconds per question of the embedded model: the explicit chain over every other method that is shipped.

    python examples/benchmarks/questions.py                                # minutes on two cores
    python examples/benchmarks/questions.py --batch-size 1 --output questions.json

The same test problems for all, answered in turns; the time of loading is left out. Beside the times, how many tokens a
batch's rows would have written had all been as long as the longest, over those that they wrote: what filling the places
of finished rows could save at most. Where CCoT drafts the answer's first token, what it takes without.

Last, questions in random order, as `ccot ask --input` gets them: batches as the lines come, over reading ahead for
batches of like length.
"""

from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer
from turns import Ratio, Round, ratio, report, take_turns

from ccot_cli.cli.ask import READ_AHEAD
from ccot_cli.config import Settings
from ccot_cli.data.problems import Problem, load_test
from ccot_cli.models.ccot import CcotReasoner
from ccot_cli.models.reasoner import Reasoner, Reply
from ccot_cli.stages.ask import BATCH_SIZE, Asker
from ccot_cli.stages.methods import find_methods


@dataclass
class Work:
    """Answers all problems, batch by batch, and keeps what was said last."""

    reasoner: Reasoner
    problems: list[Problem]
    batch_size: int
    said: list[list[Reply]] = field(default_factory=list)

    def __call__(self) -> None:
        questions = [problem.question for problem in self.problems]
        starts = range(0, len(questions), self.batch_size)
        self.said = [self.reasoner.reply(questions[start : start + self.batch_size])[0] for start in starts]


def padding(batches: list[list[Reply]], name: str) -> Ratio:
    """Tokens before the answer as if every row of a batch had its longest's, over those there are."""
    counts = [[reply.num_contemplation for reply in batch] for batch in batches]
    shares = [max(batch) * len(batch) / sum(batch) for batch in counts]
    overall = sum(max(batch) * len(batch) for batch in counts) / sum(map(sum, counts))
    return Ratio(f"tokens of padded batches / of their rows, {name}", overall, min(shares), max(shares))


def drafting(work: Work, name: str, repeats: int) -> tuple[list[Round], list[Ratio]]:
    """Time CCoT without a draft of the answer, where it makes one, in turns batch by batch: little differs."""
    reasoner = work.reasoner
    if not (isinstance(reasoner, CcotReasoner) and reasoner.draft.pays(work.batch_size)):
        return [], []
    without = replace(work, reasoner=replace(reasoner, draft=replace(reasoner.draft, share=0.0)))
    other, starts = f"{name}, no draft", range(0, len(work.problems), work.batch_size)
    works = {other: without, name: work}
    batches = [
        {key: replace(each, problems=each.problems[start : start + each.batch_size]) for key, each in works.items()}
        for start in starts
    ]
    rounds = []
    for _ in range(1 + repeats):
        turns = [take_turns(batch, repeats=1, warm_ups=0)[0] for batch in batches]
        assert all([*map(texts, batch[other].said)] == [*map(texts, batch[name].said)] for batch in batches)
        rounds.append({key: sum(turn[key] for turn in turns) for key in works})
    return rounds[1:], [ratio(rounds[1:], other, name)]


def texts(replies: list[Reply]) -> list[str]:
    """What was said."""
    return [reply.text for reply in replies]


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
        works: dict[str, Work] = {}
        for number in range(len(find_methods(None, settings).entries())):
            # Each method has a model of its own, for loading one puts the last away.
            entry = find_methods(None, settings).entries()[number]
            works[f"{entry.name} r = {entry.ratio:f}, {size} at a time"] = Work(entry.load(), tests, size)
        chain = next(name for name in works if name.startswith("cot "))
        found = take_turns(works, repeats=repeats)
        every += [ratio(found, chain, name) for name in works if name != chain]
        every += [padding(works[name].said, name) for name in works if name == chain or name.startswith("ccot")]
        rounds += found
        for name, work in works.items():
            in_turns, gained = drafting(work, name, repeats)
            rounds += in_turns
            every += gained
    in_turns, ahead = reading_ahead(load_test(settings.data, limit=lines, seed=0), repeats)
    rounds += in_turns
    every.append(ahead)
    report(every, rounds, output, problems=problems, lines=lines)


if __name__ == "__main__":
    typer.run(main)
