"""`ccot ask`: answer questions."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

import typer

from ccot_cli.cli.console import TerminalProgress, print_json, print_line, print_note
from ccot_cli.cli.options import (
    WHAT,
    DeviceOption,
    EngineOption,
    FormatOption,
    ThreadsOption,
    WorkspaceOption,
    read_ratio,
    resolve_anywhere,
)
from ccot_cli.errors import UsageError

if TYPE_CHECKING:
    from ccot_cli.stages.ask import Asker, AskResult

STDIN = "-"
READ_AHEAD = 128
"""Most lines that are read before they are sorted by length into batches; more would delay the first answer."""


def ask(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The question. Without one, or with '-': read stdin.")
    ] = None,
    ratio: Annotated[
        Decimal | None,
        typer.Option(
            "--ratio",
            "-r",
            parser=read_ratio,
            metavar="RATIO",
            help="Compression ratio (r in the paper): 0 answers at once, 1 writes the chain. Default: 0.1, or the"
            " trained one that is nearest to it.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="ccot, or a method to compare with, such as direct, pause or cot.",
            rich_help_panel=WHAT,
        ),
    ] = "ccot",
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='Answer each line of a file: JSON objects with "question" and, optionally, "id"; \'-\' is stdin.'
            " Prints one JSON object a line.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    folder: WorkspaceOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    engine: EngineOption = None,
    format: FormatOption = "text",
) -> None:
    """Answer a question with contemplation tokens, at once (--ratio 0) or by a written chain (--ratio 1).

    ccot ask "Mia has 12 pens. Mia buys 7 more pens. Mia uses 4 of the pens. How many pens does Mia have?"
    ccot ask "Mia has 12 pens. Mia buys 7 more pens. Mia uses 4 of the pens. How many pens does Mia have?" --ratio 0.2
    ccot ask "Mia has 12 pens. Mia buys 7 more pens. Mia uses 4 of the pens. How many pens does Mia have?" --method cot
    ccot ask --input questions.jsonl | jq -r '[.id, .answer] | @tsv'
    """
    if question is not None and input is not None:
        raise UsageError("a question and --input were both given", fix="give one of them")
    single = _read_question(question) if input is None else ""
    groups = _open_lines(input) if input is not None else ()
    workspace, settings, _ = resolve_anywhere(
        folder, {"model.device": device, "model.threads": threads, "decoding.engine": engine}
    )
    from ccot_cli.stages.ask import Asker
    from ccot_cli.stages.methods import CCOT, USUAL_RATIO

    asker = Asker(workspace, settings, ratio, method)
    if ratio is None and asker.method.name == CCOT and asker.method.ratio != USUAL_RATIO:
        print_note(f"at --ratio {asker.method.ratio:f}, the trained one that is nearest to {USUAL_RATIO}")
    if input is None:
        result = asker.ask(single)
        if result.outside:
            print_note(
                f"warning: the model in the package has not learned questions like this ({result.outside});"
                " its answer is a guess"
            )
        if format == "json":
            print_json(_to_json(result))
            return
        if result.text != result.answer:
            print_note(result.text)
        print_line(result.answer)
        return
    _answer_lines(asker, groups, input)


def _to_json(result: "AskResult") -> dict[str, Any]:
    fields = asdict(result)
    del fields["text"], fields["outside"]
    return fields


Line = tuple[int, bytes]
"""A line's number, counted from 1, and its content."""


class ParsedLine(NamedTuple):
    """A line of `--input`: a question, or the reason why there is none."""

    echoed: dict[str, Any]
    """Fields that the output repeats: the id, if there is one."""
    question: str
    error: str = ""


def _answer_lines(asker: "Asker", groups: Iterable[list[Line]], source: str) -> None:
    """Print one JSON object for each line, in order; for a line that cannot be answered it says why.

    A warning at the end counts the questions that are not in the model's domain.

    Raises:
        UsageError: after the last line, if one or more could not be answered.
    """
    num_bad = num_outside = num_lines = 0
    total = sum(map(len, groups)) if isinstance(groups, list) else None
    with TerminalProgress().task("answers", total=total, unit="questions") as advance:
        for group in groups:
            parsed = [_parse(asker, content) for _, content in group]
            questions = [each.question for each in parsed if not each.error]
            answered = asker.answer(questions) if questions else []
            num_outside += sum(bool(result.outside) for result in answered)
            results = iter(answered)
            for (number, _), line in zip(group, parsed, strict=True):
                num_lines += 1
                num_bad += bool(line.error)
                outcome = {"line": number, "error": line.error} if line.error else _to_json(next(results))
                print_json({**line.echoed, **outcome})
                advance()
    if num_outside:
        print_note(
            f'warning: "in_domain" is false on {num_outside:,} of {num_lines:,} lines: the model in the package has not'
            " learned such questions; these answers are guesses"
        )
    if num_bad:
        raise UsageError(
            f"{num_bad:,} of {num_lines:,} lines of {source} could not be answered",
            fix='the output says why, under "error"; write one JSON object a line: {"id": 1, "question": "..."}',
        )


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python's reader accepts and JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def _read_finite(text: str) -> float:
    """Read a number, and refuse one such as 1e999 that could not be printed again."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _parse(asker: "Asker", content: bytes) -> ParsedLine:
    """Read the question of a line, or say what is wrong with the line."""
    try:
        fields = json.loads(content, parse_constant=_refuse_constant, parse_float=_read_finite)
    except (ValueError, RecursionError):
        return ParsedLine({}, "", "not JSON")
    if not isinstance(fields, dict):
        return ParsedLine({}, "", 'no "question"')
    echoed = {"id": fields["id"]} if "id" in fields else {}
    if not isinstance(fields.get("question"), str):
        return ParsedLine(echoed, "", 'no "question"')
    try:
        fields["question"].encode()  # JSON can hold an unpaired surrogate, which no tokenizer accepts.
        return ParsedLine(echoed, asker.check(fields["question"]))
    except UsageError as error:
        return ParsedLine(echoed, "", error.message)
    except UnicodeEncodeError:
        return ParsedLine(echoed, "", "unpaired surrogate")


def _read_question(question: str | None) -> str:
    if question is None and sys.stdin.isatty():
        raise UsageError("there is no question", fix='ccot ask "How many ...?", or pipe one in')
    if question is None or question == STDIN:
        question = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    else:
        # Bytes that the locale could not decode are escaped in arguments; the tokenizer needs real text.
        question = os.fsencode(question).decode("utf-8", errors="replace")
    if not question.strip():
        raise UsageError("the question is empty", fix='ccot ask "Mia has 12 pens. ... How many pens does Mia have?"')
    return question


def _open_lines(source: str) -> Iterable[list[Line]]:
    """Read the lines that are not blank, in groups: a file's as a list, stdin's as they arrive.

    Raises:
        UsageError: if the file cannot be read.
    """
    if source == STDIN:
        return _groups_as_they_arrive(sys.stdin.buffer)
    try:
        return list(_grouped(enumerate(Path(source).read_bytes().splitlines(), start=1)))
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}", fix="name a file of JSON lines") from None


def _groups_as_they_arrive(stream: BinaryIO) -> Iterator[list[Line]]:
    """Yield the lines that are there; a line that arrives alone does not wait for others."""
    rest, number = b"", 1
    while arrived := stream.read1(1 << 16):  # type: ignore[attr-defined]
        *lines, rest = (rest + arrived).split(b"\n")
        yield from _grouped(enumerate(lines, start=number))
        number += len(lines)
    yield from _grouped([(number, rest)])


def _grouped(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Yield the lines that are not blank, at most READ_AHEAD at a time."""
    filled = [line for line in lines if line[1].strip()]
    return (filled[start : start + READ_AHEAD] for start in range(0, len(filled), READ_AHEAD))
