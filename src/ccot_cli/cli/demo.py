"""`ccot demo`: the whole pipeline on the embedded model, in minutes."""

import shlex
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from ccot_cli.cli import ask, eval, init, precompute, score, train_baseline, train_phi, train_psi
from ccot_cli.cli.console import print_line, print_note, without_next
from ccot_cli.cli.options import WHERE, ThreadsOption, read_set
from ccot_cli.errors import UsageError
from ccot_cli.names import SETTINGS_FILE

QUESTION = "Mia has 12 pens. She buys 7 more and gives away 4. How many pens does Mia have now?"
RATIO = Decimal("0.3")
"""Three tokens for each line of a chain, which φ learns far sooner than one."""
SETS = (
    f"ratios=[{RATIO}]",
    "data.subset=sums",
    "data.limit=3000",
    "data.steps=[2, 2]",
    "data.largest=50",
    "train_phi.taught_epochs=8",
    "train_phi.epochs=4",
    "train_psi.epochs=5",
    "eval.limit=400",
)
"""Few forms of short problems, and small numbers, because φ and ψ learn these within minutes."""


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The workspace to make, or to continue.", rich_help_panel=WHERE)
    ] = Path("ccot-demo"),
    threads: ThreadsOption = None,
) -> None:
    """Run the whole pipeline on the embedded model in minutes, show a table of results, and answer a question.

    ccot demo
    ccot demo my-demo
    """
    if folder.exists() and not (folder / SETTINGS_FILE).exists() and (folder.is_file() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty, and no workspace", fix="ccot demo NEW-FOLDER")
    if (folder / SETTINGS_FILE).exists():
        _refuse_others_work(folder)
    with without_next():
        _run_all(folder, threads)


def _refuse_others_work(folder: Path) -> None:
    """Refuse a workspace with other settings than the demo's: its artifacts would be replaced."""
    from ccot_cli.overrides import override
    from ccot_cli.workspace.workspace import Workspace

    settings = Workspace.open(folder).settings
    if override(settings, dict(map(read_set, SETS))) != settings:
        raise UsageError(f"{folder} is a workspace that no demo made", fix="ccot demo NEW-FOLDER")


def _run_all(folder: Path, threads: int | None) -> None:
    """Run the pipeline, and show the command of each."""
    if not (folder / SETTINGS_FILE).exists():
        _show("init", str(folder), *(word for each in SETS for word in ("--set", each)))
        init.init(folder, sets=[*SETS])
    where = ("-w", str(folder), *(("--threads", str(threads)) if threads else ()))
    _show("precompute", *where)
    precompute.precompute(folder=folder, threads=threads)
    _show("score", *where)
    score.score(folder=folder, threads=threads)
    _show("train-phi", *where)
    train_phi.train_phi(folder=folder, threads=threads)
    _show("train-psi", *where)
    train_psi.train_psi(folder=folder, threads=threads)
    _show("train-baseline", "direct", *where)
    train_baseline.train_baseline("direct", folder=folder, threads=threads)
    _show("eval", *where)
    eval.evaluate(folder=folder, threads=threads)
    for ratio in (RATIO, Decimal(1)):
        _show("ask", *where, "--ratio", f"{ratio}", QUESTION)
        ask.ask(QUESTION, ratio=ratio, folder=folder, threads=threads)


def _show(*words: str) -> None:
    """Show the command that runs next."""
    print_line("")
    print_note(f"$ {shlex.join(['ccot', *words])}")
