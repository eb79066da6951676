"""Train the chain decoders of the methods in the package, and put them beside their methods.

    python examples/train_embedded_decoder.py 0.1                  # one ratio, or several
    python examples/train_embedded_decoder.py 0.1 --start FOLDER   # go on from a decoder of an earlier φ
    python examples/train_embedded_decoder.py 0.1 --keep           # leave the package as it is

A decoder needs only its method and problems with chains: generated ones, of 1 to 4 steps, because longer ones are
hardly ever answered right. After an interruption, the same command resumes. The workspace with its logs is
build/embedded/decoders.
"""

import hashlib
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from train_embedded import open_workspace, ship_adapter

from ccot_cli.cli.console import TerminalProgress, print_line
from ccot_cli.cli.options import read_ratio
from ccot_cli.cli.train_decoder import explanation_lines
from ccot_cli.config import stage_config
from ccot_cli.models.base.adapters import DECODER
from ccot_cli.models.base.theta import load_theta, weights_hash
from ccot_cli.names import PRECOMPUTE, TRAIN_DECODER, TRAIN_PSI, ratio_name
from ccot_cli.overrides import override
from ccot_cli.stages import train_decoder
from ccot_cli.stages.methods import METHODS_FOLDER
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.workspace import Workspace

SETTINGS: dict[str, Any] = {
    "data.limit": 40_000,
    "data.validation_limit": 500,
    "data.steps": (1, 4),
    "data.seed": 30_000_000,
    "train_psi.epochs": 2,
    "train_psi.batch_size": 32,
    "train_psi.learning_rate": 0.008,
    "train_psi.lora_rank": 64,
    "train_psi.lora_alpha": 64,
}
"""What differs from the settings of `ccot init`. No problem is one that the methods learned from."""
GOING_ON: dict[str, Any] = {"train_psi.learning_rate": 0.004}
"""Settings of a decoder that starts from another one: a higher rate undoes what that one has learned."""


def adopt(workspace: Workspace, ratio: Decimal) -> None:
    """Make a packaged method an artifact of the workspace, as if it had been trained there."""
    settings, source = workspace.settings, METHODS_FOLDER / ratio_name(ratio)
    model = {"model": load_theta(settings.model).fingerprint(), "weights": weights_hash(settings.model)}
    origin = ArtifactSpec(PRECOMPUTE, None, stage_config(settings, PRECOMPUTE), model)
    names = [path for path in sorted(source.rglob("*")) if path.is_file() and DECODER not in path.parts]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in names)).hexdigest()
    method = ArtifactSpec(TRAIN_PSI, ratio_name(ratio), stage_config(settings, TRAIN_PSI), {"files": digest})
    if workspace.ready(origin) is None:
        with workspace.building(origin):
            pass
    if workspace.ready(method) is None:
        with workspace.building(method) as build:
            shutil.copytree(source, build.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(DECODER))
            build.summary["ratio"] = float(ratio)


def main(
    ratios: Annotated[list[str], typer.Argument(help="Ratios of packaged methods.")],
    start: Annotated[Path | None, typer.Option(exists=True, help="Folder of a decoder to go on from.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Train and measure, but leave the package as it is.")] = False,
) -> None:
    workspace = open_workspace("decoders", SETTINGS)
    changes = {} if start is None else GOING_ON | {"train_psi.start": str(start.resolve())}
    settings = override(workspace.settings, changes)
    for ratio in map(read_ratio, ratios):
        adopt(workspace, ratio)
        result = train_decoder.run(workspace, settings, ratio, overrides=tuple(changes), progress=TerminalProgress())
        print_line(f"r = {ratio:f}, {result.num_validation:,} validation problems")
        for line in explanation_lines(result.explanations):
            print_line(line)
        if not keep:
            ship_adapter(
                workspace.folder(TRAIN_DECODER, ratio_name(ratio)) / DECODER,
                METHODS_FOLDER / ratio_name(ratio) / DECODER,
            )


if __name__ == "__main__":
    typer.run(main)
