"""`ccot precompute`: run the base model over every solution and keep its hidden states."""

from dataclasses import asdict
from typing import Annotated

import typer

from ccot_cli.cli.console import TerminalProgress, print_json, print_line, print_next
from ccot_cli.cli.options import (
    HOW,
    DataOption,
    DeviceOption,
    FormatOption,
    ModelOption,
    SeedOption,
    SetOption,
    StepsOption,
    ThreadsOption,
    WorkspaceOption,
    announce_data,
    announce_model,
    limit_option,
    resolve,
)
from ccot_cli.files import free_bytes, human_bytes


def precompute(
    folder: WorkspaceOption = None,
    model: ModelOption = None,
    data: DataOption = None,
    limit: Annotated[int | None, limit_option("Most training problems.")] = None,
    steps: StepsOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    sets: SetOption = None,
    max_disk: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            help="Most gigabytes to write; if all layers need more, only the scorer's (T in the paper) is kept.",
            rich_help_panel=HOW,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Load the model and print the plan; write nothing.", rich_help_panel=HOW)
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if the disk seems too small.", rich_help_panel=HOW)
    ] = False,
    format: FormatOption = "text",
) -> None:
    """Run the base model over every solution once and keep its hidden states.

    ccot precompute -w my-run --dry-run
    ccot precompute --data train.jsonl --limit 1000
    ccot precompute --steps 2 3
    """
    changes = {
        "model.name": model,
        "model.device": device,
        "model.threads": threads,
        "data.source": data,
        "data.limit": limit,
        "data.steps": steps,
        "data.seed": seed,
        "precompute.max_disk": max_disk,
    }
    workspace, settings, overrides = resolve(folder, changes, sets)
    from ccot_cli.data.problems import lacks_test
    from ccot_cli.stages.precompute import run

    progress = TerminalProgress()
    announce_model(settings.model.name)
    announce_data(settings.data.source)
    result = run(workspace, settings, overrides=overrides, dry_run=dry_run, force=force, progress=progress)
    if result.was_ready:
        progress.say("ready already; nothing to do")
    if format == "json":
        print_json({**asdict(result), "is_dry_run": dry_run})
        return
    indices = "every index" if result.is_every_index else f"index {settings.precompute.scorer_layer} only"
    print_line(
        f"{result.num_train:,} training and {result.num_validation:,} validation problems,"
        f" {result.num_chain_tokens:,} chain tokens, {indices}: {human_bytes(result.num_bytes)}"
    )
    if lacks_test(settings.data):
        progress.say("no test problems are named yet: set data.test_source, or give --data FILE to ccot eval")
    if dry_run:
        progress.say(f"free in {workspace.root}: {human_bytes(free_bytes(workspace.root))}")
    else:
        print_next(workspace.command("score"))
