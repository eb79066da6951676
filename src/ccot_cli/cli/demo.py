"""The whole pipeline on the embedded model, in minutes."""

import shlex
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from ccot_cli.cli import ask, eval, init, precompute, score, train_phi, train_psi
from ccot_cli.cli.console import print_line, print_note
from ccot_cli.cli.options import WHERE
from ccot_cli.errors import UsageError
from ccot_cli.workspace import SETTINGS_FILE

QUESTION = (
    "Mia has 12 pens. Mia buys 7 more pens. Ben has twice as many pens as Mia. "
    "Ben gives 8 pens to a friend. How many pens does Ben have?"
)
RATIO = Decimal("0.1")
NUM_TRAIN, NUM_TEST = 2000, 300


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The workspace to make, or to go on with.", rich_help_panel=WHERE)
    ] = Path("ccot-demo"),
) -> None:
    """Run every stage on the embedded model, in minutes: data, states, φ, ψ, the table, an answer.

    ccot demo
    ccot demo my-demo
    """
    if folder.exists() and not (folder / SETTINGS_FILE).exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is no workspace, and not empty", fix="ccot demo NEW-FOLDER")
    if not (folder / SETTINGS_FILE).exists():
        _show("init", str(folder))
        init.init(folder)
    place = ("-w", str(folder))
    _show("precompute", *place, "--limit", str(NUM_TRAIN))
    precompute.precompute(workspace=folder, limit=NUM_TRAIN)
    _show("score", *place, "--ratio", f"{RATIO}")
    score.score(workspace=folder, ratio=[RATIO])
    _show("train-phi", *place, "--ratio", f"{RATIO}")
    train_phi.train_phi(workspace=folder, ratio=[RATIO])
    _show("train-psi", *place, "--ratio", "0", "--ratio", f"{RATIO}")
    train_psi.train_psi(workspace=folder, ratio=[Decimal(0), RATIO])
    _show("eval", *place, "--limit", str(NUM_TEST))
    eval.evaluate(workspace=folder, limit=NUM_TEST)
    _show("ask", *place, "--ratio", f"{RATIO}", QUESTION)
    ask.ask(QUESTION, ratio=RATIO, workspace=folder)


def _show(*words: str) -> None:
    print_line("")
    print_note(f"$ {shlex.join(['ccot', *words])}")
