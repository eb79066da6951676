"""Problems with their reasoning chains, loaded from the embedded generator, a file or a hub data set."""

import hashlib
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from heapq import nsmallest
from itertools import islice

from ccot_cli.config import DataConfig
from ccot_cli.data.rows import DataRow, names_file, read_rows
from ccot_cli.data.word_problems import SPLITS, Split, generate
from ccot_cli.errors import UsageError
from ccot_cli.names import EMBEDDED, ChainName

ANSWER_LINE = "####"
ANNOTATION = re.compile(r"<<([^<>]*)>>")
LONE_NUMBER = re.compile(r"[-+\u2212]?\$?[0-9][0-9,]*(?:\.[0-9]+)?")
"""An answer in the place of a solution."""

NUM_TRAIN, NUM_TEST = 4000, 1000
"""Problems to take from a generator if no limit is set; it would never end."""
BAD_ROW_PERCENT = 1
"""Most rows without a problem that training skips; more of them point to wrong columns or a damaged file."""


@dataclass(frozen=True)
class Problem:
    """A question, its reasoning chain without calculator annotations, and its final answer."""

    id: str
    question: str
    chain: str
    """Empty if a test problem comes without one."""
    answer: str

    @property
    def num_steps(self) -> int:
        """Number of lines of the chain that are not empty; each is one reasoning step. 0 if there is no chain."""
        return sum(1 for line in self.chain.split("\n") if line.strip())


@dataclass(frozen=True)
class LoadedProblems:
    """Problems to learn from, and others held out for validation; no question is in both."""

    train: list[Problem]
    validation: list[Problem]
    notes: list[str]
    """One line for each kind of row that was left out."""


def load_training(config: DataConfig) -> LoadedProblems:
    """Load the training and validation problems.

    If rows of a file or hub data set repeat a question, only the first of them is used. Validation problems without a
    source of their own are those with the lowest hash of seed and question: `validation_limit` of them, but at most a
    tenth. A hash keeps the choice nearly the same when rows are added. `limit` takes the first of the other problems,
    in the source's order.

    Raises:
        UsageError: if a source is missing or unusable, more than 1 % of the training rows or any validation row holds
            no problem, or no training problem is left.
        ResourceError: if the hub cannot be reached.
    """
    notes: list[str] = []
    if config.source == EMBEDDED:
        usable = _generate(config, "train", config.limit or NUM_TRAIN, seed=config.seed, steps=config.steps)
    else:
        usable = _read_training(config, notes)
    if source := config.validation_source or (EMBEDDED if config.source == EMBEDDED else None):
        train, validation = _set_apart(usable, _read_validation(config, source), notes)
    else:
        train, validation = _hold_out(usable, config)
    if config.limit is not None and len(train) > config.limit:
        notes.append(f"rows left out: {len(train) - config.limit:,} beyond data.limit, {config.limit:,} (--limit)")
    return LoadedProblems(train[: config.limit], validation, notes)


def _read_training(config: DataConfig, notes: list[str]) -> list[Problem]:
    """Return the usable training problems of a file or hub data set, and note the rows left out."""
    problems, bad = _read(config, config.source, config.split)
    if 100 * len(bad) > BAD_ROW_PERCENT * (len(problems) + len(bad)):
        raise _unfit(config.source, problems, bad)
    distinct = _drop_repeated(problems)
    usable = of_steps(distinct, config.steps, config.source)
    if bad:
        notes.append(f"rows left out: {len(bad):,} without a problem ({_first_three(bad)})")
    if repeated := len(problems) - len(distinct):
        notes.append(f"rows left out: {repeated:,} that repeat an earlier question")
    if others := len(distinct) - len(usable):
        notes.append(f"rows left out: {others:,} with other numbers of steps")
    return usable


def _read_validation(config: DataConfig, source: str) -> list[Problem]:
    """Return the first validation problems of their own source."""
    if source == EMBEDDED:
        return _generate(config, "validation", config.validation_limit, seed=config.seed, steps=config.steps)
    problems, bad = _read(config, source, config.validation_split)
    if bad:
        raise _unfit(source, problems, bad)
    chosen = of_steps(_drop_repeated(problems), config.steps, source)[: config.validation_limit]
    # Rows are numbered from 1 in each file.
    return [replace(problem, id=f"validation-{problem.id}") for problem in chosen]


def _set_apart(
    problems: list[Problem], validation: list[Problem], notes: list[str]
) -> tuple[list[Problem], list[Problem]]:
    """Return the training problems whose questions are not those of validation, and the validation problems."""
    questions = {problem.question for problem in validation}
    train = [problem for problem in problems if problem.question not in questions]
    if shared := len(problems) - len(train):
        notes.append(f"rows left out: {shared:,} that are validation problems")
    if not train:
        raise UsageError(
            "every training problem is a validation problem too", fix="name another file in data.validation_source"
        )
    return train, validation


def load_test(
    config: DataConfig,
    *,
    limit: int | None,
    seed: int,
    steps: tuple[int, int] | None = None,
    needs_chains: bool = False,
) -> list[Problem]:
    """Load the first `limit` test problems, in the source's order.

    No bad row is skipped, because accuracies over different problems cannot be compared. A row may hold an answer
    without a chain: `#### 42` or a number in the place of a solution, or a column of answers alone.

    Args:
        limit: Most problems; None takes all of a source, and 1000 of a generator.
        seed: Seed of the generator.
        steps: Fewest and most reasoning steps; those of the configuration by default.
        needs_chains: Whether a row without a chain holds no problem.

    Raises:
        UsageError: if no test problems are named, the source is missing, or any row holds no problem.
        ResourceError: if the hub cannot be reached.
    """
    source = config.test_source or config.source
    if source == EMBEDDED:
        split = next((each for each in SPLITS if each == config.test_split), None)
        if split is None:
            raise UsageError(
                f"the embedded problems have no split {config.test_split!r}",
                fix=f"set data.test_split to one of: {', '.join(SPLITS)}",
            )
        return _generate(config, split, limit or NUM_TEST, seed=seed, steps=steps or config.steps)
    if lacks_test(config):
        raise UsageError(
            "no test problems are named",
            fix="set data.test_source, or give --data FILE to `ccot eval`",
        )
    problems, bad = _read(_with_test_columns(config), source, config.test_split, needs_chains=needs_chains)
    if bad:
        raise _unfit(source, problems, bad)
    return of_steps(problems, steps or config.steps, source)[:limit]


def _with_test_columns(config: DataConfig) -> DataConfig:
    """Return the settings with the columns of the test problems in the place of those of training."""
    columns: dict[str, str | None] = {"question_column": config.test_question_column or config.question_column}
    if config.test_solution_column is not None:
        columns |= {"solution_column": config.test_solution_column, "chain_column": None, "answer_column": None}
    elif config.test_answer_column is not None:
        columns |= {"chain_column": config.test_chain_column, "answer_column": config.test_answer_column}
    return config.model_copy(update=columns)


def lacks_test(config: DataConfig) -> bool:
    """Tell whether no test problems are named, because those of training are a file, which has no splits."""
    return config.test_source is None and names_file(config.source)


def of_steps(problems: list[Problem], steps: tuple[int, int] | None, source: str) -> list[Problem]:
    """Return the problems whose number of reasoning steps is in a range.

    Raises:
        UsageError: if there is none.
    """
    if steps is None:
        return problems
    chosen = [problem for problem in problems if steps[0] <= problem.num_steps <= steps[1]]
    if not chosen:
        raise UsageError(f"{source} holds no problem of {steps[0]} to {steps[1]} steps", fix="widen the range of steps")
    return chosen


def _generate(
    config: DataConfig, split: Split, count: int, *, seed: int, steps: tuple[int, int] | None
) -> list[Problem]:
    """Take problems of the embedded generator.

    Raises:
        UsageError: if it has no such subset, or no problems of so many steps.
    """
    # A data set of the hub has subsets of its own, and a file none.
    subset = config.subset if config.source == EMBEDDED or names_file(config.source) else None
    try:
        problems = generate(split, seed=seed, steps=steps, subset=subset, largest=config.largest)
        taken = list(islice(problems, count))
    except ValueError as error:
        raise UsageError(
            f"the {EMBEDDED} problems: {error}", fix="change data.steps (--steps) or data.subset"
        ) from None
    return [
        Problem(f"{split}-{seed}-{index}", each.question, *split_solution(each.solution))
        for index, each in enumerate(taken)
    ]


def _drop_repeated(problems: list[Problem]) -> list[Problem]:
    """Return the first problem of each question, in order."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.question, problem)
    return list(first.values())


def _hold_out(problems: list[Problem], config: DataConfig) -> tuple[list[Problem], list[Problem]]:
    """Split problems with different questions into training and validation problems; both keep their order.

    Raises:
        UsageError: if there is only one.
    """
    if len(problems) < 2:
        raise UsageError(
            f"{config.source} holds only one question",
            fix="give at least two: one to learn from, one for validation",
        )
    count = min(config.validation_limit, max(1, len(problems) // 10))

    def seeded_hash(question: str) -> bytes:
        return hashlib.sha256(f"{config.seed}/{question}".encode()).digest()

    held_out = set(nsmallest(count, (problem.question for problem in problems), key=seeded_hash))
    train = [problem for problem in problems if problem.question not in held_out]
    return train, [problem for problem in problems if problem.question in held_out]


def _read(config: DataConfig, source: str, split: str, *, needs_chains: bool = True) -> tuple[list[Problem], list[str]]:
    """Return the problems of a file or hub data set, and a line for each row that holds none: its number and why."""
    # The generator's subsets are those of no other source.
    rows = read_rows(source, subset=None if config.source == EMBEDDED else config.subset, split=split)
    if not rows:
        raise UsageError(f"{source} holds no problems", fix="give a file or a split that has rows")
    _check_columns(config, source, rows)
    problems: list[Problem] = []
    bad: list[str] = []
    for number, row in rows:
        try:
            problems.append(_parse(config, number, row, needs_chain=needs_chains))
        except ValueError as error:
            bad.append(f"row {number}: {error}")
    return problems, bad


def _check_columns(config: DataConfig, source: str, rows: list[tuple[int, DataRow]]) -> None:
    columns = dict.fromkeys(column for _, row in rows if isinstance(row, dict) for column in row)
    answer = config.answer_column
    solution = [config.solution_column] if answer is None else [*filter(None, [config.chain_column]), answer]
    for needed in [config.question_column, *solution]:
        if columns and needed not in columns:
            raise UsageError(
                f"{source} has no column {needed!r}; it has {', '.join(columns)}",
                fix="name its columns: data.question_column with data.solution_column,"
                " or with data.chain_column and data.answer_column (data.test_… for test problems)",
            )


def _parse(config: DataConfig, number: int, row: DataRow, *, needs_chain: bool) -> Problem:
    """Read the problem of one row.

    Raises:
        ValueError: if the row holds no problem; it says why.
    """
    if isinstance(row, ValueError):
        raise row
    question = _text(row, config.question_column)
    if config.answer_column is None:
        chain, answer = split_solution(_text(row, config.solution_column), config.chain, needs_chain=needs_chain)
    elif config.chain_column is None:
        if needs_chain:
            raise ValueError("it has no chain; name the chains' column in data.test_chain_column")
        chain, answer = "", _text(row, config.answer_column)
    elif not needs_chain and row.get(config.chain_column) in (None, ""):
        chain, answer = "", _text(row, config.answer_column)
    else:
        chain, answer = read_chain(_text(row, config.chain_column), config.chain), _text(row, config.answer_column)
        if not chain:
            raise ValueError(f"column {config.chain_column!r} has annotations alone, which data.chain: equations reads")
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


def read_chain(text: str, kind: ChainName = "written") -> str:
    """Read a chain with GSM8K's calculator annotations, `<<48/2=24>>`.

    Args:
        kind: `written`: without the annotations (paper, section 5.1). `equations`: the annotations alone, each on a
            line; the written chain if there is none.
    """
    equations = ANNOTATION.findall(text) if kind == "equations" else []
    return ("\n".join(equations) or ANNOTATION.sub("", text)).strip()


def split_solution(solution: str, kind: ChainName = "written", *, needs_chain: bool = True) -> tuple[str, str]:
    """Split a GSM8K solution into its chain, as `read_chain` reads it, and its answer.

    Args:
        needs_chain: If not, the chain may be empty, and a number alone is an answer.

    Raises:
        ValueError: if there is no `#### answer` line, or no chain before it.
    """
    if not needs_chain and LONE_NUMBER.fullmatch(solution):
        return "", solution
    chain, marker, answer = solution.rpartition(ANSWER_LINE)
    if not marker:
        raise ValueError(f"it has no '{ANSWER_LINE}' line")
    # What follows the answer's line is no part of it, as when an answer is read from what a model wrote.
    chain, answer = read_chain(chain, kind), answer.strip().partition("\n")[0].rstrip()
    if not answer or (needs_chain and not chain):
        raise ValueError(f"there is nothing {'before' if answer else 'after'} '{ANSWER_LINE}'")
    return chain, answer
