"""`ccot eval`: measure accuracy and time of every trained method."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ccot_cli import ranks
from ccot_cli.cli.console import TerminalProgress, print_json, print_line, print_note
from ccot_cli.cli.options import (
    HOW,
    METHOD_NAMES,
    WHAT,
    WHERE,
    DataOption,
    DeviceOption,
    EngineOption,
    SeedOption,
    SetOption,
    StepsOption,
    TableFormatOption,
    ThreadsOption,
    TrainedRatioOption,
    WorkspaceOption,
    announce_data,
    announce_unpacking,
    limit_option,
    min_confidence_option,
    resolve_trained,
    starting_with,
)
from ccot_cli.cli.plots import check_plot, draw_frontier, frontier
from ccot_cli.cli.tables import Style, comparison_table, harness_table, render, tables_of
from ccot_cli.errors import UsageError
from ccot_cli.names import METRICS_FILE, OWN_TASK, PREDICTIONS_FILE

if TYPE_CHECKING:
    from decimal import Decimal

    from ccot_cli.config import Settings
    from ccot_cli.workspace.workspace import Workspace


def evaluate(
    folder: WorkspaceOption = None,
    ratio: TrainedRatioOption = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            "--method",
            metavar="NAMES",
            autocompletion=starting_with((*METHOD_NAMES, "all")),
            help="Methods such as ccot, direct, cot, pause, zero-shot or few-shot; repeat the option, or separate them"
            " by commas. 'all': trained ones and prompting. Default: trained ones, and the chain.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    controls: Annotated[
        bool,
        typer.Option(
            "--controls",
            help="Also measure ccot with tokens that are zeroed, shuffled, noise, or from an untrained φ.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    thoughts: Annotated[
        bool,
        typer.Option(
            "--thoughts",
            help="Also print how many answers the contemplation tokens of ccot verify, and how well that tells right"
            " answers from wrong ones.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    min_confidence: Annotated[
        float | None,
        min_confidence_option("Also measure ccot with the chain written where its confidence is below P, from 0 to 1."),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="RUN RUN",
            help="Measure nothing; compare two kept evaluations problem by problem: their names or folders.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    harness: Annotated[
        str | None,
        typer.Option(
            "--harness",
            metavar="TASK",
            help="Let lm-evaluation-harness ask and grade, and keep nothing. TASK is ccot_gsm8k, which has the test"
            " problems of the settings, a .yaml file of a task, or one of the harness's own. Needs lm-eval.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    data: DataOption = None,
    limit: Annotated[int | None, limit_option("Most test problems.")] = None,
    steps: StepsOption = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, metavar="B", help="Questions at a time.", rich_help_panel=HOW),
    ] = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    sets: SetOption = None,
    engine: EngineOption = None,
    save: Annotated[
        bool,
        typer.Option(
            "--save/--no-save", help="Keep predictions and metrics in the workspace, if any.", rich_help_panel=WHERE
        ),
    ] = True,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw accuracy against time into a .png or .svg.", rich_help_panel=WHERE
        ),
    ] = None,
    format: TableFormatOption = "text",
) -> None:
    """Measure accuracy and seconds per question of every trained method, against the explicit chain.

    ccot eval --limit 500
    ccot eval --ratio 0.1 --controls
    ccot eval --methods ccot --thoughts
    ccot eval --ratio 0.1 --min-confidence 0.5
    ccot eval --methods all --format latex --plot frontier.svg
    ccot eval --steps 9 10
    ccot eval --compare 2026-01-31-1 2026-01-31-2
    ccot eval --harness ccot_gsm8k --ratio 0.1 --limit 50
    ccot eval --format json | jq '.rows[] | [.method, .ratio, .accuracy]'
    """
    given: dict[str, object] = {
        "--plot": plot,
        "--controls": controls,
        "--thoughts": thoughts,
        "--min-confidence": min_confidence is not None,
    }
    chosen: dict[str, object] = {"--data": data, "--steps": steps, "--seed": seed is not None}
    if compare:
        given |= {"--harness": harness, "--methods": methods, "--ratio": ratio, "--no-save": not save}
        given |= {"--batch-size": batch_size, "--limit": limit, "--engine": engine}
        given |= {"--device": device, "--threads": threads, "--set": sets}
        _refuse_without_effect("--compare", given | chosen)
    elif harness:
        _refuse_without_effect(f"--harness {harness}", given if harness == OWN_TASK else given | chosen)
    changes = {
        "model.device": device,
        "model.threads": threads,
        "decoding.engine": engine,
        "data.test_source": data,
        "eval.limit": limit,
        "eval.batch_size": batch_size,
        "eval.steps": steps,
        "eval.seed": seed,
    }
    workspace, settings, overrides = resolve_trained(folder, changes, sets)
    if compare:
        _show_comparison(workspace, compare, format)
        return
    names = tuple(filter(None, map(str.strip, ",".join(methods or ()).split(","))))
    announce_unpacking(settings.model.name)
    announce_data(settings.data.test_source or settings.data.source)
    if harness:
        _show_harness(workspace, settings, harness, ratio or (), names, format)
        return
    if plot:
        check_plot(plot)
    from ccot_cli.stages.evaluate import run

    measured = run(
        workspace,
        settings,
        ratios=ratio or (),
        names=names,
        has_controls=controls,
        min_confidence=min_confidence,
        overrides=overrides,
        saves=save,
        progress=TerminalProgress(),
    )
    result = asdict(measured)
    if format == "json":
        print_json(result)
    else:
        show_tables(result, format, has_thoughts=thoughts)
    if plot and ranks.rank() == 0:
        draw_frontier(result, plot)
        print_note(f"drawn into {plot}")


def _refuse_without_effect(mode: str, given: Mapping[str, object]) -> None:
    """Refuse options that are given although another one leaves them without effect.

    Raises:
        UsageError: if there is one.
    """
    if ignored := [option for option, value in given.items() if value]:
        raise UsageError(f"{ignored[0]} has no effect with {mode}", fix="leave out one of them")


def _show_comparison(workspace: "Workspace | None", runs: tuple[str, str], style: Literal[Style, "json"]) -> None:
    from ccot_cli.stages.compare import compare

    found = [asdict(each) for each in compare(workspace, runs)]
    if style == "json":
        print_json({"first": runs[0], "second": runs[1], "comparisons": found})
    else:
        print_line(render(comparison_table(runs, found), style))


def _show_harness(
    workspace: "Workspace | None",
    settings: "Settings",
    task: str,
    ratios: Sequence["Decimal"],
    names: Sequence[str],
    style: Literal[Style, "json"],
) -> None:
    if ranks.size() > 1:
        raise UsageError("the harness runs in one process", fix=f"ccot eval --harness {task}, without torchrun")
    try:
        from ccot_cli.stages.harness import run
    except ImportError as error:
        raise UsageError(f"the harness needs {error.name}", fix="pip install 'ccot-cli[harness]'") from None
    result = asdict(run(workspace, settings, task, ratios=ratios, names=names, progress=TerminalProgress()))
    if style == "json":
        print_json(result)
    else:
        print_line(render(harness_table(result), style))


def show_tables(result: dict[str, Any], style: Style, *, has_thoughts: bool) -> None:
    """Print the paper's tables; as text also the frontier, and where the results are kept."""
    for number, table in enumerate(tables_of(result, has_thoughts=has_thoughts)):
        if number > 0:
            print_line("")
        print_line(render(table, style))
    if style != "text":
        return
    if len(result["rows"]) > 1:
        print_line("")
        print_line(frontier(result))
    if result["folder"]:
        print_line("")
        print_line(f"written to {result['folder']}  ({METRICS_FILE}, {PREDICTIONS_FILE})")
