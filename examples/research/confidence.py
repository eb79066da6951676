"""Measure confidence on the model in the package: whether it is a probability, and what `--min-confidence` gains.

    python examples/research/confidence.py people.jsonl --threads 1 --output docs/data

`people.jsonl` is a file of `people.py`. The first table has for each method the expected calibration error of its
confidence, and how well that, and whether the contemplation tokens verify the answer, tell right answers from wrong
ones. The second one has the chain alone, and CCoT with the chain where its confidence is below P.

CCoT and the chain answer every batch in turn, so that other work on the machine slows both alike. The answers of a
cascade follow from theirs. Its time is measured at every `--every`-th batch, where the chain is asked the unsure
questions alone too; time is that of the CPU. A P for use is to be chosen on the validation problems.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from record import write_record

from ccot_cli.cli.console import TerminalProgress, print_table
from ccot_cli.cli.options import read_ratio
from ccot_cli.config import Settings
from ccot_cli.data.problems import Problem, load_test, load_training
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import Method, Reply
from ccot_cli.names import USUAL_RATIO
from ccot_cli.overrides import override
from ccot_cli.stages.methods import find_methods
from ccot_cli.stages.statistics import auroc, calibration_error, wilson
from ccot_cli.stages.thoughts import check_thoughts
from ccot_cli.stages.validation import is_right

SEED = 2
"""Of the validation problems; confidence is calibrated on others."""
LEVELS = (0.3, 0.5, 0.6, 0.9)
"""P."""


@dataclass
class Asked:
    """What CCoT and the chain answered to the problems of one set."""

    problems: list[Problem] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    chains: list[Reply] = field(default_factory=list)
    seconds: dict[float, float] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0.0))
    """Of the CPU for the timed batches, by P: both attempts."""
    chain_seconds: float = 0.0
    """The chain's for the same batches."""

    def ask(self, first: CcotMethod, chain: Method, batch: Sequence[Problem], *, is_timed: bool) -> None:
        """Ask a batch."""
        questions = [problem.question for problem in batch]
        replies, _ = replace(first, reads_thoughts=True).reply(questions)
        chains, chain_seconds = timed(chain, questions)
        self.problems += batch
        self.replies += replies
        self.chains += chains
        if not is_timed:
            return
        self.chain_seconds += chain_seconds
        first_seconds = timed(first, questions)[1]  # Reading the thoughts takes time.
        for level in LEVELS:
            unsure = [each for each, reply in zip(questions, replies, strict=True) if reply.confidence < level]
            self.seconds[level] += first_seconds + (timed(chain, unsure)[1] if unsure else 0.0)

    def cascade(self, level: float) -> dict[str, Any]:
        """Return the figures of a cascade."""
        used = [
            chain if reply.confidence < level else reply for reply, chain in zip(self.replies, self.chains, strict=True)
        ]
        share = wilson(sum(map(is_right, self.problems, used)), len(used))
        sure = [
            is_right(problem, reply)
            for problem, reply in zip(self.problems, self.replies, strict=True)
            if reply.confidence >= level
        ]
        return {
            "n": len(used),
            "exact match": share.accuracy,
            "interval": [share.low, share.high],
            "to the chain": 1 - len(sure) / len(used),
            "exact match of the others": sum(sure) / len(sure) if sure else None,
            "time": self.seconds[level] / self.chain_seconds,
        }

    def calibration(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return how good the confidence of one method's replies is."""
        marks, sureness = list(map(is_right, self.problems, replies)), [reply.confidence for reply in replies]
        return {
            "n": len(marks),
            "exact match": sum(marks) / len(marks),
            "mean confidence": sum(sureness) / len(marks),
            "error": calibration_error(sureness, marks),
            "AUROC": auroc(sureness, marks),
        }

    def verified(self) -> float | None:
        """Return the AUROC of whether the contemplation tokens verify the answer."""
        checks = [
            check_thoughts(problem.question, reply).is_answer_verified
            for problem, reply in zip(self.problems, self.replies, strict=True)
        ]
        return auroc(checks, list(map(is_right, self.problems, self.replies)))


def timed(method: Method, questions: Sequence[str]) -> tuple[list[Reply], float]:
    """Ask questions; return the replies and the CPU's seconds."""
    started = time.process_time()
    replies, _ = method.reply(questions)
    return replies, time.process_time() - started


def load_sets(people: Path | None, limit: int) -> dict[str, list[Problem]]:
    """Load the problems of each set, sorted by the length of the question."""
    data = Settings().data
    held_out = {"limit": 1, "validation_limit": limit, "seed": SEED}
    found = {"validation": load_training(data.model_copy(update=held_out)).validation}
    for split in ("test", "unseen"):
        found[split] = load_test(data.model_copy(update={"test_split": split}), limit=limit, seed=0)
    if people:
        found["people"] = load_test(data.model_copy(update={"test_source": str(people)}), limit=limit, seed=0)
    return {name: sorted(problems, key=lambda problem: len(problem.question)) for name, problems in found.items()}


def main(
    people: Annotated[
        Path | None, typer.Argument(help="Problems that people wrote, as people.py chooses them.")
    ] = None,
    ratio: Annotated[Decimal, typer.Option(parser=read_ratio, help="Compression ratio r.")] = USUAL_RATIO,
    limit: Annotated[int, typer.Option(help="Most problems of a set.")] = 400,
    batch_size: Annotated[int, typer.Option(help="Questions at a time.")] = 32,
    every: Annotated[int, typer.Option(help="Time every such batch.")] = 4,
    threads: Annotated[int | None, typer.Option(help="Threads of the CPU.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the figures as JSON.")] = None,
) -> None:
    """Measure, and print both tables."""
    methods, progress = find_methods(None, override(Settings(), {"model.threads": threads})), TerminalProgress()
    chain, first = methods.fallback(), methods.load(ratio)
    assert isinstance(first, CcotMethod)
    calibrations, cascades = [], []
    for name, problems in load_sets(people, limit).items():
        asked = Asked()
        with progress.task(name, total=len(problems), unit="problems") as advance:
            for number, start in enumerate(range(0, len(problems), batch_size)):
                batch = problems[start : start + batch_size]
                asked.ask(first, chain, batch, is_timed=number % every == 0)
                advance(len(batch))
        for method, replies in ((first, asked.replies), (chain, asked.chains)):
            verified = asked.verified() if method is first else None
            calibrations.append([name, method.name, *asked.calibration(replies).values(), verified])
        marks = list(map(is_right, asked.problems, asked.chains))
        alone = wilson(sum(marks), len(marks))
        cascades.append([name, "chain alone", alone.n, alone.accuracy, [alone.low, alone.high], 1.0, None, 1.0])
        cascades += [[name, f"{level:g}", *asked.cascade(level).values()] for level in LEVELS]
        progress.say(f"{name}: {calibrations[-2:]} {cascades[-len(LEVELS) - 1 :]}")
    note = f"r = {ratio}; at most {limit:,} problems of a set; time of every {every}th batch of {batch_size}"
    for file, columns, rows in (("confidence", COLUMNS, calibrations), ("cascade", CASCADE_COLUMNS, cascades)):
        print_table([list(columns), *([shown(each) for each in row] for row in rows)], align="<<" + ">" * 6)
        if output:
            write_record(output / f"{file}.json", columns, rows, seed=0, n=limit, note=note)


COLUMNS = dict.fromkeys(("questions", "method"), "{}") | {"number": "{:,}"}
COLUMNS |= dict.fromkeys(
    ("exact match", "mean confidence", "calibration error", "AUROC confidence", "AUROC verified"), "{:.3f}"
)
CASCADE_COLUMNS = dict.fromkeys(("questions", "P"), "{}") | {"number": "{:,}", "exact match": "{:.3f}"}
CASCADE_COLUMNS |= {"95 % interval": "{:.3f} – {:.3f}", "to the chain": "{:.3f}", "exact match of the others": "{:.3f}"}
CASCADE_COLUMNS |= {"time / chain": "{:.2f}"}


def shown(value: Any) -> str:
    """Write a value for the terminal."""
    if isinstance(value, list):
        return " – ".join(map(shown, value))
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    typer.run(main)
