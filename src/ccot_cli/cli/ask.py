"""Answer questions."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from ccot_cli.cli.console import TerminalProgress, print_json, print_line, print_note
from ccot_cli.cli.options import (
    WHAT,
    DeviceOption,
    EngineOption,
    FormatOption,
    WorkspaceOption,
    read_ratio,
    resolve_anywhere,
)
from ccot_cli.errors import UsageError

if TYPE_CHECKING:
    from ccot_cli.stages.ask import Asker, AskResult

STDIN = "-"
READ_AHEAD = 128
"""Lines from which batches of like length are made; more would keep the first answer waiting."""


def ask(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The question; '-' or nothing reads it from stdin.")
    ] = None,
    ratio: Annotated[
        Decimal | None,
        typer.Option(
            "--ratio",
            "-r",
            parser=read_ratio,
            metavar="RATIO",
            help="Compression ratio (r in the paper): 0 answers at once, 1 writes the chain. Default: 0.1, or what"
            " was trained nearest to it.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="ccot, or what it is compared with: direct, pause, cot, ... (in a workspace: 'ccot status').",
            rich_help_panel=WHAT,
        ),
    ] = "ccot",
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='JSON lines with "question" and, if you like, "id"; \'-\' is stdin. One JSON line out per line in.',
            rich_help_panel=WHAT,
        ),
    ] = None,
    workspace: WorkspaceOption = None,
    device: DeviceOption = None,
    engine: EngineOption = None,
    format: FormatOption = "text",
) -> None:
    """Answer a question with contemplation tokens, at once (--ratio 0) or by a written chain (--ratio 1).

    ccot ask "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?" --ratio 0.1
    ccot ask "Mia has 12 pens. Mia buys 7 more. How many are there?" --method pause
    ccot ask --input questions.jsonl | jq -r '[.id, .answer] | @tsv'
    """
    if question is not None and input is not None:
        raise UsageError("a question and --input were both given", fix="give one of them")
    single = _read_question(question) if input is None else ""
    batches = _open_lines(input) if input is not None else ()
    found, settings, _ = resolve_anywhere(workspace, {"model.device": device, "decoding.engine": engine})
    from ccot_cli.stages.ask import Asker
    from ccot_cli.stages.methods import CCOT, USUAL_RATIO

    asker = Asker(found, settings, ratio, method)
    if ratio is None and asker.method.name == CCOT and asker.method.ratio != USUAL_RATIO:
        print_note(f"at --ratio {asker.method.ratio:f}, which was trained nearest to {USUAL_RATIO}")
    if input is None:
        result = asker.ask(single)
        if format == "json":
            print_json(_shown(result))
            return
        if result.text != result.answer:
            print_note(result.text)
        print_line(result.answer)
        return
    _answer_lines(asker, batches, input)


def _shown(result: "AskResult") -> dict[str, Any]:
    fields = asdict(result)
    del fields["text"]
    return fields


Line = tuple[int, bytes]
"""Its number, counted from 1, and what stands there."""


def _answer_lines(asker: "Asker", batches: Iterable[list[Line]], source: str) -> None:
    """One JSON line out per line in, in order; a line that cannot be answered says why.

    Raises:
        UsageError: in the end, where there were such lines.
    """
    num_bad = num_lines = 0
    total = sum(map(len, batches)) if isinstance(batches, list) else None
    with TerminalProgress().task("answers", total=total, unit="questions") as advance:
        for batch in batches:
            asked = [_parse(asker, line) for _, line in batch]
            good = [question for _, question, error in asked if not error]
            answers = iter(asker.answer(good) if good else [])
            for (number, _), (echoed, _, error) in zip(batch, asked, strict=True):
                num_lines += 1
                num_bad += bool(error)
                print_json({**echoed, **({"line": number, "error": error} if error else _shown(next(answers)))})
                advance()
    if num_bad:
        raise UsageError(
            f"{num_bad:,} of {num_lines:,} lines of {source} could not be answered",
            fix='they say why, under "error"; write one JSON object a line: {"id": 1, "question": "..."}',
        )


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is more than a number can hold")
    return number


def _parse(asker: "Asker", line: bytes) -> tuple[dict[str, Any], str, str]:
    """The fields to repeat, the question, and what is wrong with the line, if anything is."""
    try:
        fields = json.loads(line, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        return {}, "", "no JSON"
    if not isinstance(fields, dict):
        return {}, "", 'no "question"'
    echoed = {"id": fields["id"]} if "id" in fields else {}
    if not isinstance(fields.get("question"), str):
        return echoed, "", 'no "question"'
    try:
        fields["question"].encode()  # JSON can name half of a character, which no tokenizer takes
        return echoed, asker.check(fields["question"]), ""
    except UsageError as error:
        return echoed, "", error.message
    except UnicodeEncodeError:
        return echoed, "", "half a character"


def _read_question(question: str | None) -> str:
    if question is None and sys.stdin.isatty():
        raise UsageError("there is no question", fix='ccot ask "How many ...?", or pipe one in')
    if question is None or question == STDIN:
        question = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    else:
        question = os.fsencode(question).decode("utf-8", errors="replace")  # what a locale could not read, too
    if not question.strip():
        raise UsageError("the question is empty", fix='ccot ask "Mia has 12 pens. ... How many pens does Mia have?"')
    return question


def _open_lines(source: str) -> Iterable[list[Line]]:
    """The lines that are not blank, some at a time: a list of a file's, stdin's as they come.

    Raises:
        UsageError: where the file cannot be opened.
    """
    if source == STDIN:
        return _as_they_come(sys.stdin.buffer)
    try:
        return list(_some(enumerate(Path(source).read_bytes().splitlines(), start=1)))
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}", fix="name a file of JSON lines") from None


def _as_they_come(stream: BinaryIO) -> Iterator[list[Line]]:
    """Lines that are there together; one that comes alone does not wait for others."""
    rest, number = b"", 1
    while arrived := stream.read1(1 << 16):  # type: ignore[attr-defined]
        *lines, rest = (rest + arrived).split(b"\n")
        yield from _some(enumerate(lines, start=number))
        number += len(lines)
    yield from _some([(number, rest)])


def _some(lines: Iterable[Line]) -> Iterator[list[Line]]:
    filled = [line for line in lines if line[1].strip()]
    return (filled[start : start + READ_AHEAD] for start in range(0, len(filled), READ_AHEAD))
