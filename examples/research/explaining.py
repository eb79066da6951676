"""Measure how well a decoder's explanations fit the test problems, and whether they follow the contemplation tokens.

python examples/research/explaining.py --ratio 0.1 --output docs/data    # the model in the package
python examples/research/explaining.py my-run --ratio 0.2 --limit 500
"""

from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from record import write_record

from ccot_cli.cli.console import TerminalProgress, print_line
from ccot_cli.cli.options import read_ratio
from ccot_cli.cli.train_decoder import explanation_lines
from ccot_cli.config import Settings
from ccot_cli.names import CCOT
from ccot_cli.stages.evaluate import problems_to_ask
from ccot_cli.stages.explanations import Explanations, measure_explanations
from ccot_cli.stages.methods import find_methods
from ccot_cli.workspace.workspace import Workspace


def main(
    folder: Annotated[Path | None, typer.Argument(help="A workspace; the model in the package by default.")] = None,
    ratio: Annotated[Decimal | None, typer.Option(parser=read_ratio)] = None,
    limit: Annotated[int, typer.Option(help="Most test problems.")] = 1000,
    output: Annotated[Path | None, typer.Option(help="Folder for the figures as a table in JSON.")] = None,
) -> None:
    workspace = None if folder is None else Workspace.open(folder)
    settings, progress = workspace.settings if workspace else Settings(), TerminalProgress()
    methods = find_methods(workspace, settings)
    method = methods.explaining(methods.find(CCOT, ratio).load())
    problems = problems_to_ask(methods, settings, limit, progress)
    explanations = measure_explanations(method, problems, settings.eval.batch_size, progress)
    title = f"r = {method.ratio:f}, {len(problems):,} test problems, 95 % Wilson intervals"
    for line in (title, *explanation_lines(asdict(explanations))):
        print_line(line)
    if output:
        write_record(output / "explanations.json", COLUMNS, rows(explanations), seed=0, n=limit, note=title)


COLUMNS = {"share": "{}", "of": "{}", "number": "{:,}", "found": "{:.3f}", "95 % interval": "{:.3f} – {:.3f}"}


def rows(explanations: Explanations) -> list[list[Any]]:
    """Return the rows of a table: what is counted, of which problems, of how many, and the share with its interval."""
    right, wrong, exchange = explanations.right, explanations.wrong, explanations.exchange
    named = [
        (name, of, getattr(recovery, field))
        for name, field in (
            ("results of the chain that the explanation has", "results"),
            ("the same without the last result", "results_before_last"),
            ("explanation ends in the answer given", "agreement"),
        )
        for of, recovery in (("right answers", right), ("wrong answers", wrong))
    ]
    named += [
        (name, "pairs with exchanged tokens", share)
        for name, share in (
            ("the answer is the other problem's", exchange.answer),
            ("the explanation ends in the other problem's answer", exchange.explanation),
            ("both", exchange.both),
            ("results of the own chain that the explanation has", exchange.own_results),
        )
    ]
    return [[name, of, each.n, each.accuracy, [each.low, each.high]] for name, of, each in named if each is not None]


if __name__ == "__main__":
    typer.run(main)
