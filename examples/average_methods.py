"""Average φ and ψ of several methods, of which some went on from others: the mean can answer more than the last one.

    python examples/average_methods.py 0.6 build/embedded/methods/train-psi/r0.10 0.4 earlier/r0.10 --output mean

Each folder is a method of the same θ, ratio and ranks, as `ccot train-psi` makes it; the draft and END are those
of the first one; its confidence is not calibrated. Source: Wortsman et al., "Model soups", 2022; measured in
docs/learning-curves.md.
"""

from pathlib import Path
from typing import Annotated

import typer
from average_theta import average, read_shares
from safetensors.torch import load_file, save_file
from train_embedded import ship

from ccot_cli.files import commit
from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.names import ADAPTER_FILE


def main(
    methods: Annotated[list[str], typer.Argument(metavar="SHARE FOLDER ...", help="Methods and their shares.")],
    output: Annotated[Path, typer.Option(help="Folder to write the method to.")],
) -> None:
    """Write the mean of methods, in bfloat16."""
    if output.exists():
        raise typer.BadParameter(f"{output} exists already")
    chosen, means = read_shares(methods), {}
    for adapter in (PHI, PSI):
        weights = [(share, load_file(folder / adapter / ADAPTER_FILE)) for share, folder in chosen]
        shapes = [{name: each.shape for name, each in tensors.items()} for _, tensors in weights]
        if any(each != shapes[0] for each in shapes):
            raise typer.BadParameter(f"{adapter} has other weights in one folder than in another")
        means[adapter] = average([(share, {name: each.float() for name, each in of.items()}) for share, of in weights])
    ship(chosen[0][1], output)
    for adapter, mean in means.items():
        with commit(output / adapter / ADAPTER_FILE) as part:
            save_file({name: each.bfloat16() for name, each in mean.items()}, part)


if __name__ == "__main__":
    typer.run(main)
