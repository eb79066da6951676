"""`ccot merge`: save a method that is a single model as a plain model."""

import json
import shlex
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import typer

from ccot_cli.cli.console import loading, print_json, print_line, print_next
from ccot_cli.cli.options import (
    HOW,
    WHERE,
    DeviceOption,
    FormatOption,
    SetOption,
    ThreadsOption,
    WorkspaceOption,
    announce_unpacking,
    method_option,
    ratio_option,
    resolve_trained,
)
from ccot_cli.files import human_bytes


def merge(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.", rich_help_panel=WHERE)],
    method: Annotated[str, method_option("cot, direct, icot or short-cot.")] = "cot",
    ratio: Annotated[
        Decimal | None,
        ratio_option("Compression ratio of short-cot. Default: the trained one that is nearest to 0.1."),
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(
            "--dtype", help="Precision of the weights; auto: the one that θ computes in here.", rich_help_panel=HOW
        ),
    ] = "auto",
    folder: WorkspaceOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    sets: SetOption = None,
    format: FormatOption = "text",
) -> None:
    """Merge a method's adapter into θ and save the model, which transformers loads and --model DIR takes as θ.

    ccot merge my-model --method direct
    ccot merge my-model -w my-run --method cot
    ccot init next-run --set model.name=my-model

    Only a method that is a single model can be merged. CCoT is none: θ, φ and ψ take turns. ccot export keeps it.
    """
    workspace, settings, _ = resolve_trained(folder, {"model.device": device, "model.threads": threads}, sets)
    announce_unpacking(settings.model.name)
    with loading(workspace.name if workspace else settings.model.name):
        from ccot_cli.stages.merge import run

        result = run(workspace, settings, target, method=method, ratio=ratio, dtype=dtype)
    if format == "json":
        print_json(asdict(result))
    else:
        size = human_bytes(result.num_bytes)
        print_line(f"{result.folder}: {result.model} with {result.method} merged, {result.dtype}, {size}")
        print_line(f"prompt {json.dumps(result.prompt)}, answer marker {json.dumps(result.answer_marker)}")
    from ccot_cli.config import ModelConfig

    usual, words = ModelConfig(), ["--set", f"model.name={result.folder}"]
    for name in ("prompt", "answer_marker"):
        if (text := getattr(result, name)) != getattr(usual, name):
            # JSON is YAML too, and keeps line breaks.
            words += ["--set", f"model.{name}={json.dumps(text, ensure_ascii=False)}"]
    print_next(shlex.join(["ccot", "init", "next-run", *words]))
