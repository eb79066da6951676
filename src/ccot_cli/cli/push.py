"""`ccot push`: upload trained methods to the Hugging Face hub."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ccot_cli.cli.console import loading, print_json, print_line, print_next
from ccot_cli.cli.options import HOW, WHAT, WHERE, FormatOption, KeysOption


def push(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="A workspace, or an archive that ccot export wrote.", rich_help_panel=WHAT
        ),
    ],
    repository: Annotated[
        str, typer.Argument(metavar="REPO", help="USER/NAME; it is made if it does not exist.", rich_help_panel=WHERE)
    ],
    methods: KeysOption = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Make a new repository that everybody can see.", rich_help_panel=HOW),
    ] = False,
    format: FormatOption = "text",
) -> None:
    """Upload trained methods to the Hugging Face hub, into a private repository, with a model card as its page.

    ccot push my-run me/my-methods
    ccot push methods.zip me/my-methods --public

    It needs a token that may write: hf auth login, or $HF_TOKEN.
    """
    from ccot_cli.stages.push import HUB_PREFIX, run

    with loading(repository):
        result = run(source, repository, methods or (), is_public=public)
    if format == "json":
        print_json(asdict(result))
    else:
        print_line(result.url)
    model = ["--model", "DIR"] if result.is_model_local else []
    print_next(shlex.join(["ccot", "import", f"{HUB_PREFIX}{repository}", "-w", "new-run", *model]))
