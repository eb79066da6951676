"""`ccot inspect`: what contemplation tokens hold, as a report with figures."""

from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from ccot_cli.cli.console import TerminalProgress, aligned, print_json, print_line, print_note
from ccot_cli.cli.options import (
    WHERE,
    DataOption,
    DeviceOption,
    FormatOption,
    SetOption,
    StepsOption,
    ThreadsOption,
    WorkspaceOption,
    announce_data,
    announce_unpacking,
    limit_option,
    ratio_option,
    resolve_trained,
)
from ccot_cli.cli.plots import require_matplotlib
from ccot_cli.cli.report import summary_rows, write_report
from ccot_cli.files import check_new, commit_folder, write_json

USUAL_LIMIT = 500


def inspect(
    folder: WorkspaceOption = None,
    ratio: Annotated[
        Decimal | None,
        ratio_option("Compression ratio r. Default: 0.1, or the trained one that is nearest to it."),
    ] = None,
    data: DataOption = None,
    limit: Annotated[
        int | None, limit_option(f"Most test problems. Default: {USUAL_LIMIT}, whatever ccot.yaml says.")
    ] = None,
    steps: StepsOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    sets: SetOption = None,
    output: Annotated[
        Path,
        typer.Option("--output", metavar="FOLDER", help="A new folder for the report.", rich_help_panel=WHERE),
    ] = Path("inspection"),
    format: FormatOption = "text",
) -> None:
    """Show what the contemplation tokens hold, and what depends on them: an HTML page with figures.

    ccot inspect --ratio 0.1
    ccot inspect -w my-run --output build/report --limit 200
    ccot inspect --format json | jq .moves

    The page needs no network; the figures are beside it as PNG files, and all numbers in inspection.json. On the model
    in the package it takes some minutes.
    """
    changes = {
        "model.device": device,
        "model.threads": threads,
        "data.test_source": data,
        "eval.limit": limit,
        "eval.steps": steps,
    }
    workspace, settings, given = resolve_trained(folder, changes, sets)
    check_new(output, fix="name another folder with --output, or remove it")
    require_matplotlib()
    announce_unpacking(settings.model.name)
    announce_data(settings.data.test_source or settings.data.source)
    from ccot_cli.stages.inspect import run

    chosen = settings.eval.limit if "eval.limit" in given else USUAL_LIMIT
    result = asdict(run(workspace, settings, ratio, limit=chosen, progress=TerminalProgress()))
    with commit_folder(output) as part:
        write_json(part / "inspection.json", result)
        page = write_report(result, part)
    if format == "json":
        print_json(result)
    else:
        for line in aligned(summary_rows(result), align="<<"):
            print_line(line)
    print_note(f"written to {output / page.name}")
