"""Problems with their reasoning chains, and where they come from."""

import hashlib
import re
from dataclasses import dataclass
from decimal import Decimal
from heapq import nsmallest
from itertools import islice

from ccot_cli.config import DataConfig
from ccot_cli.data.rows import Row, names_file, read_rows
from ccot_cli.data.word_problems import MAX_STEPS, MIN_STEPS, Split, generate
from ccot_cli.errors import UsageError
from ccot_cli.names import EMBEDDED

ANSWER_LINE = "####"
ANNOTATION = re.compile(r"<<[^<>]*>>")

NUM_TRAIN, NUM_TEST = 4000, 1000
"""Problems taken from the embedded generator, which has no end, where no limit is set."""
BAD_ROW_PERCENT = 1
"""Rows without a problem that training passes over; more of them point to wrong columns or a damaged file."""


@dataclass(frozen=True)
class Problem:
    """A question, its reasoning chain without calculator annotations, and its final answer."""

    id: str
    question: str
    chain: str
    answer: str

    @property
    def num_steps(self) -> int:
        """Sentences of the chain that stand on a line of their own."""
        return sum(1 for line in self.chain.split("\n") if line.strip())


@dataclass(frozen=True)
class Training:
    """Problems to learn from, and others kept aside; no question stands in both."""

    train: list[Problem]
    validation: list[Problem]
    notes: list[str]
    """A line about each kind of row that was left out."""


def load_training(config: DataConfig) -> Training:
    """Load the training and validation problems.

    Of a file or hub data set, the first row with a question counts. The validation problems are those with the lowest
    hash of seed and question: `validation_limit` of them, but at most a tenth. So a new row moves at most the few
    others that it displaces. `limit` takes the first of what is left, in the source's order.

    Raises:
        UsageError: where the source is missing or unfit, or more than 1 % of its rows hold no problem.
        ResourceError: where the hub is out of reach.
    """
    if config.source == EMBEDDED:
        train = _generate("train", config.limit or NUM_TRAIN, seed=config.seed, steps=config.steps)
        held_out = _generate("validation", config.validation_limit, seed=config.seed, steps=config.steps)
        return Training(train, held_out, [])
    problems, bad = _read(config, config.source, config.split)
    if 100 * len(bad) > BAD_ROW_PERCENT * (len(problems) + len(bad)):
        raise _unfit(config.source, problems, bad)
    once = _drop_repeated(problems)
    distinct = _of_steps(once, config.steps, config.source)
    if len(distinct) < 2:
        raise UsageError(
            f"{config.source} holds one question only",
            fix="give two at least: one to learn from, one for validation",
        )
    train, validation = _hold_out(distinct, config)
    notes = [f"rows left out: {len(bad):,} without a problem ({_first_three(bad)})"] if bad else []
    if repeated := len(problems) - len(once):
        notes.append(f"rows left out: {repeated:,} that repeat an earlier question")
    if others := len(once) - len(distinct):
        notes.append(f"rows left out: {others:,} of other numbers of steps")
    if config.limit is not None and len(train) > config.limit:
        notes.append(f"rows left out: {len(train) - config.limit:,} beyond data.limit, {config.limit:,} (--limit)")
    return Training(train[: config.limit], validation, notes)


def load_test(
    config: DataConfig, *, limit: int | None, seed: int, steps: tuple[int, int] | None = None
) -> list[Problem]:
    """Load the first `limit` test problems, in the source's order; `seed` is the embedded generator's.

    Args:
        steps: Fewest and most reasoning steps; those of the configuration by default.

    No row is passed over: a figure over fewer problems would be another figure.

    Raises:
        UsageError: where no test problems are named, or the source is missing, or any row holds no problem.
        ResourceError: where the hub is out of reach.
    """
    source = config.test_source or config.source
    if source == EMBEDDED:
        return _generate("test", limit or NUM_TEST, seed=seed, steps=steps or config.steps)
    if config.test_source is None and names_file(source):
        raise UsageError(
            "no test problems are named",
            fix="set data.test_source, or give --data FILE to `ccot eval`",
        )
    problems, bad = _read(config, source, config.test_split)
    if bad:
        raise _unfit(source, problems, bad)
    return _of_steps(problems, steps or config.steps, source)[:limit]


def _of_steps(problems: list[Problem], steps: tuple[int, int] | None, source: str) -> list[Problem]:
    """The problems whose number of reasoning steps is in a range."""
    if steps is None:
        return problems
    chosen = [problem for problem in problems if steps[0] <= problem.num_steps <= steps[1]]
    if not chosen:
        raise UsageError(f"{source} holds no problem of {steps[0]} to {steps[1]} steps", fix="a wider range of steps")
    return chosen


def _generate(split: Split, count: int, *, seed: int, steps: tuple[int, int] | None) -> list[Problem]:
    fewest, most = steps or (MIN_STEPS, MAX_STEPS)
    made = generate(split, seed=seed, min_steps=fewest, max_steps=most)
    return [
        Problem(f"{split}-{seed}-{index}", each.question, *split_solution(each.solution))
        for index, each in enumerate(islice(made, count))
    ]


def _drop_repeated(problems: list[Problem]) -> list[Problem]:
    """The first problem of each question, in order."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.question, problem)
    return list(first.values())


def _hold_out(problems: list[Problem], config: DataConfig) -> tuple[list[Problem], list[Problem]]:
    """Split problems with different questions into training and validation; both keep their order."""
    count = min(config.validation_limit, max(1, len(problems) // 10))

    def draw(question: str) -> bytes:
        return hashlib.sha256(f"{config.seed}/{question}".encode()).digest()

    held = set(nsmallest(count, (problem.question for problem in problems), key=draw))
    train = [problem for problem in problems if problem.question not in held]
    return train, [problem for problem in problems if problem.question in held]


def _read(config: DataConfig, source: str, split: str) -> tuple[list[Problem], list[str]]:
    """The problems of a file or hub data set, and the number and the reason of each row that holds none."""
    rows = read_rows(source, subset=config.subset, split=split)
    if not rows:
        raise UsageError(f"{source} holds no problems", fix="give a file or a split that has rows")
    _check_columns(config, source, rows)
    problems: list[Problem] = []
    bad: list[str] = []
    for number, row in rows:
        try:
            problems.append(_parse(config, number, row))
        except ValueError as error:
            bad.append(f"row {number}: {error}")
    return problems, bad


def _check_columns(config: DataConfig, source: str, rows: list[tuple[int, Row]]) -> None:
    columns = dict.fromkeys(column for _, row in rows if isinstance(row, dict) for column in row)
    solution = [config.solution_column] if config.chain_column is None else [config.chain_column, config.answer_column]
    for wanted in [config.question_column, *solution]:
        if columns and wanted not in columns:
            raise UsageError(
                f"{source} has no column {wanted!r}; it has {', '.join(columns)}",
                fix="name its columns: data.question_column with data.solution_column,"
                " or with data.chain_column and data.answer_column",
            )


def _parse(config: DataConfig, number: int, row: Row) -> Problem:
    """Read one row.

    Raises:
        ValueError: saying why the row holds no problem.
    """
    if isinstance(row, ValueError):
        raise row
    question = _text(row, config.question_column)
    if config.chain_column is None or config.answer_column is None:
        chain, answer = split_solution(_text(row, config.solution_column))
    else:
        chain, answer = strip_annotations(_text(row, config.chain_column)), _text(row, config.answer_column)
    name = str(number) if row.get("id") in (None, "") else _text(row, "id")
    return Problem(name, question, chain, answer)


def _text(row: dict[str, object], column: str) -> str:
    value = row.get(column)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float | Decimal)):
        raise ValueError(f"column {column!r} holds no text but a {type(value).__name__}")
    text = "" if value is None else str(value).strip()
    if not text:
        raise ValueError(f"column {column!r} is missing or empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"column {column!r} holds broken characters") from None
    return text


def _unfit(source: str, problems: list[Problem], bad: list[str]) -> UsageError:
    num_rows = len(problems) + len(bad)
    return UsageError(
        f"{len(bad):,} of the {num_rows:,} rows of {source} hold no problem ({_first_three(bad)})",
        fix="repair these rows, or remove them",
    )


def _first_three(bad: list[str]) -> str:
    return "; ".join(bad[:3] + ["…"] * (len(bad) > 3))


def strip_annotations(text: str) -> str:
    """Remove GSM8K's calculator annotations, `<<48/2=24>>` (paper, section 5.1)."""
    return ANNOTATION.sub("", text)


def split_solution(solution: str) -> tuple[str, str]:
    """Split a GSM8K solution into its chain and its answer.

    Raises:
        ValueError: where there is no `#### answer` line, or no chain before it.
    """
    chain, marker, answer = solution.rpartition(ANSWER_LINE)
    if not marker:
        raise ValueError(f"it has no '{ANSWER_LINE}' line")
    chain, answer = strip_annotations(chain).strip(), answer.strip()
    if not chain or not answer:
        raise ValueError(f"nothing stands {'before' if not chain else 'after'} '{ANSWER_LINE}'")
    return chain, answer
