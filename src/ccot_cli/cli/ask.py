"""`ccot ask`: answer questions."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, NamedTuple, TypeAlias

import typer

from ccot_cli.cli.console import TerminalProgress, loading, print_json, print_line, print_note, print_note_table
from ccot_cli.cli.options import (
    HOW,
    WHAT,
    WHERE,
    DeviceOption,
    EngineOption,
    SetOption,
    ThreadsOption,
    WorkspaceOption,
    announce_unpacking,
    method_option,
    min_confidence_option,
    ratio_option,
    resolve_trained,
)
from ccot_cli.data.batches import cut
from ccot_cli.errors import UsageError
from ccot_cli.files import strict_json
from ccot_cli.names import CCOT, DEFAULT_PORT, EMBEDDED_MIN_CONFIDENCE, SERVER_VARIABLE, USUAL_RATIO

if TYPE_CHECKING:
    from ccot_cli.client import RemoteAsker, RemoteResult
    from ccot_cli.stages.ask import Asker, AskResult
    from ccot_cli.stages.thoughts import CheckedThought

AnyAsker: TypeAlias = "Asker | RemoteAsker"
STDIN = "-"
ASKS = re.compile(
    r"\?|\w *[+*=]|[\d)] *[-/x] *[\w(]|\b(?:plus|minus|times|divided by|how|what|total|sum|change|difference)\b"
    r"|\b(?:calculate|compute|convert|determine|evaluate|solve|work out|figure out)\b"
    r"|(?:^|[.;:,!] )(?:please )?(?:add|count|divide|double|find|give|halve|multiply|say|subtract|tell|write)\b",
    re.IGNORECASE,
)
"""What a line of stdin has if it asks something; some verbs ask only where they begin a sentence."""
READ_AHEAD = 128
"""Most lines that are read before they are sorted by length into batches; more would delay the first answer."""


def ask(
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION",
            help="The question. Without one, or with '-': read stdin. Of several lines, each must be a question.",
        ),
    ] = None,
    ratio: Annotated[
        Decimal | None,
        ratio_option(
            "Compression ratio (r in the paper): 0 answers at once, 1 writes the chain. Default: 0.1, or the trained"
            " one that is nearest to it."
        ),
    ] = None,
    method: Annotated[
        str | None,
        method_option("ccot, the default, or a method to compare with, such as direct, pause or cot."),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='Answer each line of a file: JSON objects with "question" and, optionally, "id"; \'-\' is stdin.'
            " Prints one JSON object a line, or with --format text an answer a line.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    show_thoughts: Annotated[
        bool,
        typer.Option(
            "--show-thoughts",
            help="Also show what each contemplation token says, and whether it follows from the question's numbers:"
            " on stderr, or in the JSON. Only for ccot.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    swap_with: Annotated[
        str | None,
        typer.Option(
            "--swap-with",
            metavar="QUESTION",
            help="With --show-thoughts: also answer with one contemplation token after the other replaced by that"
            " question's, to see what the token does.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    min_confidence: Annotated[
        float | None,
        min_confidence_option(
            "Where an answer's confidence is below P, from 0 to 1, write the chain and give its answer instead."
            f" Default: {EMBEDDED_MIN_CONFIDENCE} of the model in the package if no --ratio, --method, --show-thoughts"
            " or --explain is given; else never."
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Also write out the reasoning chain, as a decoder that knows only the question's numbers reads it from"
            " the contemplation tokens: on stderr, or in the JSON. Only for ccot.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            envvar=SERVER_VARIABLE,
            metavar="URL",
            help=f"Ask a running 'ccot serve', such as http://127.0.0.1:{DEFAULT_PORT}: nothing has to be loaded.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    folder: WorkspaceOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    sets: SetOption = None,
    engine: EngineOption = None,
    format: Annotated[
        Literal["text", "json"] | None,
        typer.Option("--format", help="Format of stdout. Default: text; with --input, json.", rich_help_panel=HOW),
    ] = None,
) -> None:
    """Answer a question with contemplation tokens, at once (--ratio 0) or by a written chain (--ratio 1).

    ccot ask "Tom has 5 apples. He buys 3 more and then eats 2. How many apples does he have left?"
    ccot ask "Tom has 5 apples. He buys 3 more and then eats 2. How many apples does he have left?" --ratio 0.1
    ccot ask "Tom has 5 apples. He buys 3 more and then eats 2. How many apples does he have left?" --method cot
    ccot ask "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?" --show-thoughts
    ccot ask "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?" --min-confidence 0.5
    ccot ask -w my-run "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?" --explain
    ccot ask < questions.txt
    ccot ask --input questions.jsonl | jq -r '[.id, .answer] | @tsv'
    ccot problems --limit 20 --format json | ccot ask --input -
    ccot ask --server http://127.0.0.1:8000 < questions.txt
    """
    if question is not None and input is not None:
        raise UsageError("a question and --input were both given", fix="give one of them")
    asked = _read_questions(question) if input is None else []
    groups = _open_lines(input) if input is not None else _grouped(asked)
    is_json = format == "json" if input is None else format != "text"
    for option, is_given in (("--show-thoughts", show_thoughts), ("--explain", explain)):
        if is_given and server:
            raise UsageError("a server gives no more than the answer", fix=f"leave out {option}, or --server ''")
        if is_given and len(asked) != 1 and not is_json:
            raise UsageError(f"{option} of several questions is for JSON alone", fix="--format json")
    if server and min_confidence is not None:
        raise UsageError("a server knows no --min-confidence", fix="leave it out, or ask without one: --server ''")
    if swap_with is not None and not show_thoughts:
        raise UsageError("--swap-with is for --show-thoughts", fix="give both")
    swap_with = None if swap_with is None else _as_text(swap_with)
    changes: dict[str, object] = {"model.device": device, "model.threads": threads, "decoding.engine": engine}
    asker: AnyAsker
    if server:
        asker = _connect(server, [folder, *changes.values(), sets], ratio, method)
    else:
        workspace, settings, _ = resolve_trained(folder, changes, sets)
        announce_unpacking(settings.model.name)
        with loading(workspace.name if workspace else settings.model.name):
            from ccot_cli.stages.ask import Asker

            asker = Asker(
                workspace,
                settings,
                ratio,
                method,
                shows_thoughts=show_thoughts,
                swap_with=swap_with,
                explains=explain,
                min_confidence=min_confidence,
            )
    hint = _HINT if asker.could_fall_back else ""
    if ratio is None and asker.method.name == CCOT and asker.method.ratio != USUAL_RATIO:
        print_note(f"at --ratio {asker.method.ratio:f}, the trained one that is nearest to {USUAL_RATIO:f}")
    if len(asked) == 1:
        _answer_one(asker, asked[0][1].decode(), hint, is_json=is_json)
    elif input is None:
        _answer_lines(asker, groups, "stdin", _parse_text, hint, is_json=is_json)
    else:
        _answer_lines(asker, groups, input, _parse_json, hint, is_json=is_json)


_HINT = "; --min-confidence 0.5 would have the chain written"
"""For a warning that an answer is a guess."""


def _connect(server: str, local: Iterable[object], ratio: Decimal | None, method: str | None) -> "RemoteAsker":
    """Return what asks a server.

    Raises:
        UsageError: if an option was given that concerns a model of this process.
    """
    if any(local):
        raise UsageError(
            f"with --server or ${SERVER_VARIABLE} the server chooses workspace, device and settings",
            fix="give these options to ccot serve, or ask without a server: --server ''",
        )
    from ccot_cli.client import RemoteAsker

    return RemoteAsker(server, ratio, method)


def _answer_one(asker: AnyAsker, question: str, hint: str, *, is_json: bool) -> None:
    """Print the answer to one question; a written chain and a warning go to stderr."""
    result = asker.ask(question)
    if result.is_unsure:
        print_note(f"warning: {result.outside}; its answer is a guess{hint}")
    elif result.outside:
        print_note(
            f"warning: the model in the package has not learned questions like this ({result.outside});"
            " its answer is a guess"
        )
    if is_json:
        print_json(result.printed())
        return
    is_unknown = result.outside and not result.is_unsure
    if result.text != result.answer and not (result.is_fallback and is_unknown):
        if result.is_fallback:
            print_note(f"{asker.method.name} at r = {asker.method.ratio:f} is not sure; the chain:")
        print_note(result.text)
    print_line(result.answer)
    if result.thoughts is not None:
        _print_thoughts(asker, result.thoughts, is_verified=bool(result.verified))
    if result.explanation is not None:
        print_note(result.explanation or "(the decoder wrote nothing)")


def _print_thoughts(asker: AnyAsker, thoughts: "list[CheckedThought]", *, is_verified: bool) -> None:
    from ccot_cli.cli.thoughts import (
        ALIGN,
        NEAREST_ALIGN,
        SWAPPED_ALIGN,
        nearest_table,
        swapped_table,
        thoughts_table,
    )
    from ccot_cli.models.methods.ccot import CcotMethod
    from ccot_cli.stages.ask import Asker

    assert isinstance(asker, Asker)
    assert isinstance(asker.method, CcotMethod)
    layer, num_layers = asker.method.info.autoregressive_layer, asker.theta.num_layers
    print_note_table(thoughts_table(thoughts, layer=layer, num_layers=num_layers), align=ALIGN)
    for table, align in ((nearest_table(thoughts), NEAREST_ALIGN), (swapped_table(thoughts), SWAPPED_ALIGN)):
        if table:
            print_note_table(table, align=align)
    print_note(f"the answer is {'verified' if is_verified else 'not verified'}")


Line = tuple[int, bytes]
"""A line's number, counted from 1, and its content."""


class ParsedLine(NamedTuple):
    """A line of `--input` or stdin: a question, or the reason why there is none."""

    echoed: dict[str, Any]
    """Fields that the output repeats: the id, if there is one."""
    question: str
    error: str = ""


def _answer_lines(
    asker: AnyAsker,
    groups: Iterable[list[Line]],
    source: str,
    parse: Callable[[AnyAsker, bytes], ParsedLine],
    hint: str,
    *,
    is_json: bool,
) -> None:
    """Print one JSON object, or the answer alone, for each line, in order.

    For a line that cannot be answered, its object says why; as text its line stays empty, and stderr says why. A
    warning at the end counts the answers that are guesses, and ends in `hint` if some are not sure enough.

    Raises:
        UsageError: after the last line, if one or more could not be answered.
    """
    num_bad = num_guesses = num_unsure = num_lines = 0
    total = sum(map(len, groups)) if isinstance(groups, list) else None
    with TerminalProgress().task("answers", total=total, unit="questions") as advance:
        for group in groups:
            parsed = [parse(asker, content) for _, content in group]
            questions = [each.question for each in parsed if not each.error]
            answered: Sequence[AskResult | RemoteResult | UsageError] = asker.answer(questions) if questions else []
            results = iter(answered)
            for (number, _), line in zip(group, parsed, strict=True):
                # A server checks a question only when it is asked.
                result = UsageError(line.error) if line.error else next(results)
                num_lines += 1
                if isinstance(result, UsageError):
                    num_bad += 1
                    text, fields = "", {"line": number, "error": result.message}
                    if not is_json:
                        print_note(f"line {number}: {result.message}")
                else:
                    num_guesses += bool(result.outside)
                    num_unsure += result.is_unsure
                    text, fields = result.answer, result.printed()
                if is_json:
                    print_json({**line.echoed, **fields})
                else:
                    print_line(text)
                advance()
    if num_guesses:
        reasons = {"it has not learned such questions": num_guesses > num_unsure, "it is not sure": num_unsure > 0}
        why = " or ".join(reason for reason, is_given in reasons.items() if is_given)
        print_note(
            f"warning: {num_guesses:,} of the model's {num_lines - num_bad:,} answers are guesses, because {why}"
            f"{hint if num_unsure else ''}"
        )
    if num_bad:
        where = 'the output says why, under "error"' if is_json else "the lines above say why"
        raise UsageError(
            f"{num_bad:,} of {num_lines:,} lines of {source} could not be answered",
            fix=f"{where}; {_JSON_LINES if parse is _parse_json else 'ask shorter questions'}",
        )


_JSON_LINES = 'write one JSON object a line: {"id": 1, "question": "..."}; plain questions: ccot ask < FILE'


def _parse_text(asker: AnyAsker, content: bytes) -> ParsedLine:
    """Take a whole line as its question."""
    try:
        return ParsedLine({}, asker.check(content.decode()))
    except UsageError as error:
        return ParsedLine({}, "", error.message)


def _parse_json(asker: AnyAsker, content: bytes) -> ParsedLine:
    """Read the question of a line of JSON, or say what is wrong with the line."""
    try:
        fields = strict_json(content)
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


def _read_questions(question: str | None) -> list[Line]:
    """Return the question of the command line, or the questions of stdin, one a line.

    Raises:
        UsageError: if there is none, or if stdin has several lines of which one asks nothing.
    """
    if question is None and sys.stdin.isatty():
        raise UsageError("there is no question", fix='ccot ask "How many ...?", or pipe one in')
    typed = None if question == STDIN else question
    text = sys.stdin.buffer.read().decode("utf-8-sig", errors="replace") if typed is None else _as_text(typed)
    if not text.strip():
        raise UsageError("the question is empty", fix='ccot ask "Mia has 12 pens. ... How many pens does Mia have?"')
    if typed is not None:
        return [(1, text.encode())]
    # Not `splitlines`, which also splits at characters such as U+2028 that a question may hold.
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if any(_is_json_question(line) for _, line in lines):
        raise UsageError("stdin has JSON lines", fix="ccot ask --input -")
    others = [number for number, line in lines if not ASKS.search(line)]
    if len(lines) > 1 and others:
        raise UsageError(
            f"stdin has {len(lines):,} lines, and line {others[0]:,} asks nothing",
            fix='one question a line; one of several lines in quotes: ccot ask "..."; JSON lines: --input -',
        )
    return [(number, line.encode()) for number, line in lines]


def _is_json_question(line: str) -> bool:
    with suppress(ValueError, RecursionError):
        return line.startswith("{") and "question" in strict_json(line)
    return False


def _as_text(argument: str) -> str:
    """Return an argument as real text, which the tokenizer needs: bytes that the locale cannot decode are escaped."""
    return os.fsencode(argument).decode("utf-8", errors="replace")


def _open_lines(source: str) -> Iterable[list[Line]]:
    """Read the lines that are not blank, in groups: a file's as a list, stdin's as they arrive.

    Raises:
        UsageError: if the file cannot be read.
    """
    if source == STDIN:
        return _groups_as_they_arrive(sys.stdin.buffer)
    try:
        return _grouped(enumerate(Path(source).read_bytes().splitlines(), start=1))
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


def _grouped(lines: Iterable[Line]) -> list[list[Line]]:
    """Return the lines that are not blank, at most READ_AHEAD at a time."""
    return cut([line for line in lines if line[1].strip()], READ_AHEAD)
