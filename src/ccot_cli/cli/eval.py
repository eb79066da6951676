"""Accuracy and time of every trained method."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ccot_cli.cli.console import TerminalProgress, print_json, print_line, print_table
from ccot_cli.cli.options import (
    HOW,
    WHAT,
    WHERE,
    DataOption,
    DeviceOption,
    FormatOption,
    LimitOption,
    RatioOption,
    SeedOption,
    StepsOption,
    WorkspaceOption,
)
from ccot_cli.config import Settings, override
from ccot_cli.workspace import Workspace


def evaluate(
    workspace: WorkspaceOption = None,
    ratio: RatioOption = None,
    controls: Annotated[
        bool,
        typer.Option(
            "--controls",
            help="Also with contemplation tokens zeroed, shuffled, replaced by noise, or from an untrained φ.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    data: DataOption = None,
    limit: LimitOption = None,
    steps: StepsOption = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, metavar="B", help="Questions at a time.", rich_help_panel=HOW),
    ] = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    save: Annotated[
        bool, typer.Option("--save/--no-save", help="Keep predictions and metrics.", rich_help_panel=WHERE)
    ] = True,
    format: FormatOption = "text",
) -> None:
    """Measure accuracy and seconds per question of every trained ratio, against the explicit chain.

    ccot eval --limit 500
    ccot eval --ratio 0.1 --controls
    ccot eval --steps 9 10
    ccot eval --format json | jq '.rows[] | [.method, .ratio, .accuracy]'
    """
    changes = {
        "model.device": device,
        "data.test_source": data,
        "eval.limit": limit,
        "eval.batch_size": batch_size,
        "eval.steps": steps,
        "eval.seed": seed,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    found = Workspace.find(workspace, os.environ, Path.cwd())
    settings = override(found.settings if found else Settings(), given)
    from ccot_cli.stages.evaluate import run

    result = run(
        found,
        settings,
        ratios=ratio or (),
        has_controls=controls,
        overrides=tuple(given),
        saves=save,
        progress=TerminalProgress(),
    ).to_json()
    if format == "json":
        print_json(result)
    else:
        show_table(result)


def show_table(result: dict[str, Any]) -> None:
    """The paper's Table 2, and accuracy by number of steps."""
    rows = result["rows"]
    chain = next((row["seconds_median"] for row in rows if row["method"] == "cot"), None)
    print_line(
        f"{result['model']} on {result['data']}, n = {rows[0]['n']:,}, batches of {result['batch_size']},"
        f" {result['device']}"
    )
    print_table(
        [
            ("method", "1/r", "tokens", "exact match", "95 % interval", "s/question", "p95", "× chain", "capped"),
            *(_cells(row, chain) for row in rows),
        ],
        align="<>>>>>>>>",
    )
    steps = sorted({step for row in rows for step in row["by_steps"]}, key=int)
    print_line("")
    print_table(
        [
            ("by steps", "1/r", *steps),
            *(
                (
                    row["method"],
                    _inverse(row["ratio"]),
                    *(f"{row['by_steps'][step]['accuracy']:.2f}" if step in row["by_steps"] else "" for step in steps),
                )
                for row in rows
            ),
        ],
        align="<>" + ">" * len(steps),
    )
    if result["folder"]:
        print_line("")
        print_line(f"written to {result['folder']}  (metrics.json, predictions.jsonl)")


def _cells(row: dict[str, Any], chain: float | None) -> tuple[str, ...]:
    return (
        row["method"],
        _inverse(row["ratio"]),
        f"{row['contemplation_tokens_mean']:.1f}",
        f"{row['accuracy']:.3f}",
        f"{row['low']:.3f} – {row['high']:.3f}",
        f"{row['seconds_median']:.4f}",
        f"{row['seconds_p95']:.4f}",
        "" if chain is None else f"{row['seconds_median'] / chain:.2f}",
        f"{row['truncated_share']:.1%}",
    )


def _inverse(ratio: float) -> str:
    """1/r as the paper writes it: ∞, 20x, 1x."""
    return "∞" if ratio == 0 else f"{1 / ratio:.3g}x"
