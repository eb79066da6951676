"""Measure how well a decoder's explanations fit the test problems, and whether they follow the contemplation tokens.

python examples/research/explaining.py --ratio 0.1             # the model in the package
python examples/research/explaining.py my-run --ratio 0.2 --limit 500
"""

from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from ccot_cli.cli.console import TerminalProgress, print_line
from ccot_cli.cli.options import read_ratio
from ccot_cli.cli.train_decoder import explanation_lines
from ccot_cli.config import Settings
from ccot_cli.names import CCOT
from ccot_cli.stages.evaluate import problems_to_ask
from ccot_cli.stages.explanations import measure_explanations
from ccot_cli.stages.methods import find_methods
from ccot_cli.workspace.workspace import Workspace


def main(
    folder: Annotated[Path | None, typer.Argument(help="A workspace; the model in the package by default.")] = None,
    ratio: Annotated[Decimal | None, typer.Option(parser=read_ratio)] = None,
    limit: Annotated[int, typer.Option(help="Most test problems.")] = 1000,
) -> None:
    workspace = None if folder is None else Workspace.open(folder)
    settings, progress = workspace.settings if workspace else Settings(), TerminalProgress()
    methods = find_methods(workspace, settings)
    method = methods.explaining(methods.named(CCOT, ratio))
    problems = problems_to_ask(methods, settings, limit, progress)
    explanations = measure_explanations(method, problems, settings.eval.batch_size, progress)
    print_line(f"r = {method.ratio:f}, {len(problems):,} test problems, 95 % Wilson intervals")
    for line in explanation_lines(asdict(explanations)):
        print_line(line)


if __name__ == "__main__":
    typer.run(main)
