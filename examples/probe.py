"""Can the answer be read from the last contemplation token?

    python examples/probe.py my-run --ratio 0.1

A linear probe is fitted on the gold state of each training problem's last kept token, and read on validation: on gold
states, and on what φ generates in their place by its own rollout. Where the first is high and the second at chance, φ's
tokens look right and carry nothing.
"""

from collections.abc import Sequence as Rows
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from ccot_cli.cli.console import print_line, print_table
from ccot_cli.cli.options import read_ratio
from ccot_cli.config import ratio_name
from ccot_cli.models.adapters import PHI, Adapters
from ccot_cli.models.layerwise import PhiExample
from ccot_cli.models.phi import contemplate, encode_query
from ccot_cli.models.theta import Theta
from ccot_cli.stages import precompute, score, train_phi
from ccot_cli.workspace import Workspace

BATCH_SIZE = 64
PENALTY = 10.0


@torch.no_grad()
def generated(theta: Theta, adapters: Adapters, examples: Rows[PhiExample], layer: int) -> Tensor:
    """States of every example's last token at indices l..L, by φ's own rollout: examples, L - l + 1, D."""
    rows = []
    for start in range(0, len(examples), BATCH_SIZE):
        batch = examples[start : start + BATCH_SIZE]
        counts = torch.tensor([len(example.gold_JID) - 1 for example in batch])
        sequence, first_BD = encode_query(theta, adapters, [example.query for example in batch], layer=layer)
        options = {"layer": layer, "max_tokens": int(counts.max()), "num_tokens_B": counts}
        tokens = contemplate(theta, adapters, sequence, first_BD, **options)  # type: ignore[arg-type]
        # Once more in one pass, to see the states between l and L.
        sequence, _ = encode_query(theta, adapters, [example.query for example in batch], layer=layer)
        adapters.use(PHI)
        sequence.extend(tokens.mask_BK)
        state_BKD = theta.blocks.run(theta.blocks.enter(tokens.inputs_BKD, sequence), 0, layer, sequence)
        states = [state_BKD]
        for index in range(layer, theta.num_layers):
            states.append(theta.blocks.run(states[-1], index, index + 1, sequence))
        stacked_BIKD = torch.stack(states, dim=1)
        rows += [stacked_BIKD[row, :, count - 1] for row, count in enumerate(counts.tolist())]
    return torch.stack(rows)


def fit(states_ND: Tensor, labels: list[str]) -> tuple[Tensor, list[str]]:
    """Ridge regression onto one-hot answers."""
    classes = sorted(set(labels))
    target_NC = torch.eye(len(classes))[[classes.index(label) for label in labels]]
    design_ND = torch.nn.functional.pad(states_ND, (0, 1), value=1.0)
    gram_DD = design_ND.T @ design_ND + PENALTY * torch.eye(design_ND.shape[1])
    return torch.linalg.solve(gram_DD, design_ND.T @ target_NC), classes


def right(probe: tuple[Tensor, list[str]], states_ND: Tensor, labels: list[str]) -> float:
    weights_DC, classes = probe
    guesses = (torch.nn.functional.pad(states_ND, (0, 1), value=1.0) @ weights_DC).argmax(dim=1).tolist()
    return sum(classes[guess] == label for guess, label in zip(guesses, labels, strict=True)) / len(labels)


def main(folder: Path, ratio: Annotated[Decimal, typer.Option(parser=read_ratio)] = Decimal("0.1")) -> None:
    """Print, for each index from l to L, how often the probe reads the answer."""
    workspace = Workspace.open(folder)
    source, key = workspace.require(precompute.STAGE), ratio_name(ratio)
    selected, phi = workspace.require(score.STAGE, key), workspace.require(train_phi.STAGE, key)
    theta = score.load_matching_theta(workspace.settings, source)
    adapters = Adapters(theta)
    adapters.load(PHI, phi.folder / PHI)
    layer = phi.manifest.config["train_phi"]["autoregressive_layer"]
    train, validation = train_phi.load_examples(theta, source, selected)
    stored = precompute.read_problems(source)
    labels = [item.problem.answer for item in stored if not item.is_validation]
    held_labels = [item.problem.answer for item in stored if item.is_validation]
    made = generated(theta, adapters, validation, layer)
    commonest = max(map(held_labels.count, set(held_labels))) / len(held_labels)
    print_line(f"{len(train):,} training, {len(validation):,} validation problems; commonest answer {commonest:.3f}")
    rows = [("index", "gold", "generated")]
    for place, index in enumerate(range(layer, theta.num_layers + 1)):
        probe = fit(torch.stack([example.gold_JID[-1, index].float() for example in train]), labels)
        gold = torch.stack([example.gold_JID[-1, index].float() for example in validation])
        rows.append(
            (str(index), f"{right(probe, gold, held_labels):.3f}", f"{right(probe, made[:, place], held_labels):.3f}")
        )
    print_table(rows, align=">>>")


if __name__ == "__main__":
    typer.run(main)
