"""`ccot bench`: measure how fast contemplation tokens are."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ccot_cli.cli.console import TerminalProgress, print_json, print_line
from ccot_cli.cli.options import (
    HOW,
    WHAT,
    DeviceOption,
    RatioOption,
    TableFormatOption,
    ThreadsOption,
    WorkspaceOption,
    between_zero_and_one,
    resolve_anywhere,
)
from ccot_cli.cli.tables import Style, Table, render


def bench(
    folder: WorkspaceOption = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            metavar="SHAPE",
            help="Time a random Llama instead of the base model: LAYERSxWIDTH, such as 16x512, or llama2-7b.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    ratio: RatioOption = None,
    layer: Annotated[
        int | None,
        typer.Option(
            "--layer", min=1, metavar="L", help="Autoregressive layer l. Default: half the depth.", rich_help_panel=WHAT
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            "--batch-size",
            min=1,
            metavar="B",
            help="Questions at a time; repeat it for several. Default: 1 and 8.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    query: Annotated[int, typer.Option(min=2, help="Tokens of a query.", rich_help_panel=WHAT)] = 100,
    chain: Annotated[int, typer.Option(min=1, help="Tokens of an explicit chain.", rich_help_panel=WHAT)] = 120,
    answer: Annotated[int, typer.Option(min=1, help="Tokens of an answer.", rich_help_panel=WHAT)] = 6,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds, after a warm-up.", rich_help_panel=HOW)] = 5,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    format: TableFormatOption = "text",
) -> None:
    """Time contemplation tokens against the explicit chain and transformers' generate.

    ccot bench
    ccot bench --shape 16x512 --batch-size 1 --batch-size 8 --repeats 7

    Lengths are fixed, so the weights do not matter. The methods take turns, and times are compared within a round.
    """
    _, settings, _ = resolve_anywhere(folder, {"model.device": device, "model.threads": threads})
    ratios = between_zero_and_one(ratio, settings)
    from ccot_cli.stages.bench import Lengths, run

    measured = run(
        settings,
        shape=shape,
        ratios=ratios,
        batches=batch or [1, 8],
        lengths=Lengths(query, chain, answer),
        layer=layer,
        repeats=repeats,
        progress=TerminalProgress(),
    )
    result = asdict(measured)
    if format == "json":
        print_json(result)
    else:
        show_bench(result, format)


def show_bench(result: dict[str, Any], style: Style) -> None:
    """Print the table of seconds, then the table of ratios."""
    lengths = result["lengths"]
    caption = (
        f"{result['model']}, {result['num_layers']} layers, l = {result['autoregressive_layer']}, {result['dtype']},"
        f" {result['device']}; query {lengths['query']}, chain {lengths['chain']}, answer {lengths['answer']} tokens;"
        f" median of {result['repeats']}"
    )
    rows = [
        (
            timing["method"],
            f"{timing['ratio']:g}",
            str(timing["batch"]),
            str(timing["tokens"]),
            f"{timing['median']:.4f}",
            f"{min(timing['seconds']):.4f} – {max(timing['seconds']):.4f}",
        )
        for timing in result["timings"]
    ]
    head = ("method", "r", "batch", "tokens", "s/batch", "range")
    print_line(render(Table(caption, "<>>>>>", head, rows), style))
    print_line("")
    ratios = [
        (ratio["name"], str(ratio["batch"]), f"{ratio['median']:.2f}", f"{ratio['low']:.2f} – {ratio['high']:.2f}")
        for ratio in result["ratios"]
    ]
    print_line(
        render(Table("Ratios of times within a round", "<>>>", ("ratio", "batch", "median", "range"), ratios), style)
    )
