"""Compare precomputing hidden states with a plain forward pass over the same tokens.

    python examples/benchmarks/precompute.py                               # minutes on two cores
    python examples/benchmarks/precompute.py --problems 1000 --problems 7473 --output precompute.json
    python examples/benchmarks/precompute.py --problems 1000 --shape 16x512

For each number of problems, the stage's tokens per second over the plain pass's are printed, from reading the problems
to the last byte on the disk, and the share of its time that making and tokenizing the problems takes. The last kind of
figure is the cost of a problem among many over its cost among the fewest.
"""

import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from interleaved import Ratio, Round, ratio, report, take_turns

from ccot_cli.data.batches import plan_batches
from ccot_cli.data.problems import load_training
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.random_model import random_theta
from ccot_cli.models.base.theta import load_theta
from ccot_cli.models.selection.gold import solution_ids
from ccot_cli.names import EMBEDDED
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute
from ccot_cli.tensors.masks import pad_right
from ccot_cli.workspace.workspace import Workspace


class Bench:
    """The stage and the plain pass, for one number of problems."""

    def __init__(self, folder: Path, num_problems: int, model: str) -> None:
        self.folder = folder
        num_validation = min(200, num_problems // 10)
        changes: dict[str, object] = {
            "model.name": model,
            "data.limit": num_problems - num_validation,
            "data.validation_limit": num_validation,
        }
        self.settings = override(Workspace.create(folder / f"settings-{num_problems}", "embedded").settings, changes)
        self.theta = load_theta(self.settings.model)
        self.rows = [solution_ids(self.theta, each) for each in self.problems()]

    def problems(self) -> list[EncodedProblem]:
        """Make and tokenize the problems, as the stage does."""
        loaded = load_training(self.settings.data)
        return self.theta.encoder.problems([*loaded.train, *loaded.validation])

    def stage(self) -> None:
        """Run the whole stage in a workspace of its own."""
        with tempfile.TemporaryDirectory(dir=self.folder) as fresh:
            workspace = Workspace.create(Path(fresh) / "run", "embedded")
            precompute.run(workspace, self.settings, progress=Progress())

    @torch.no_grad()
    def forward(self) -> None:
        """Run the model over all solutions, and keep nothing."""
        lengths = [len(row) for row in self.rows]
        for batch in plan_batches(lengths, batch_tokens=self.theta.pass_tokens):
            ids_BT, mask_BT = pad_right([self.rows[number] for number in batch], fill=self.theta.pad_id)
            self.theta.model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False, logits_to_keep=1)


def flatness(rounds: dict[int, list[Round]]) -> Iterable[Ratio]:
    """Compare the cost of a problem among many with its cost among the fewest."""
    fewest = min(rounds)
    for count in sorted(rounds)[1:]:
        values = [
            (many["stage"] / count) / (few["stage"] / fewest)
            for many, few in zip(rounds[count], rounds[fewest], strict=True)
        ]
        name = f"a problem among {count:,} / among {fewest:,}"
        yield Ratio(name, statistics.median(values), min(values), max(values))


def save_random(shape: str, folder: Path) -> str:
    """Save a model with random weights, and return its folder as the name of a model."""
    theta = random_theta(shape, device=torch.device("cpu"), dtype=torch.float32)
    theta.model.save_pretrained(folder)
    theta.encoder.tokenizer.save_pretrained(folder)
    return str(folder)


def main(
    problems: Annotated[
        list[int] | None, typer.Option(min=10, help="Number of problems; repeat it for several.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="A random Llama instead of the embedded model, such as 16x512.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 3,
    output: Annotated[Path | None, typer.Option(help="File for the results as JSON.")] = None,
) -> None:
    """Time the stage and the plain pass."""
    counts = problems or [1000, 7473]
    with tempfile.TemporaryDirectory() as folder:
        rounds: dict[int, list[Round]] = {}
        ratios = []
        model = EMBEDDED if shape is None else save_random(shape, Path(folder) / "model")
        for count in counts:
            bench = Bench(Path(folder), count, model)
            rounds[count] = take_turns(
                {"plain forward": bench.forward, "problems": bench.problems, "stage": bench.stage},
                repeats=repeats,
                warm_ups=int(count == counts[0]),
            )
            speed, share = ratio(rounds[count], "plain forward", "stage"), ratio(rounds[count], "problems", "stage")
            ratios.append(replace(speed, name=f"tokens per second, {count:,} problems: stage / plain forward"))
            ratios.append(replace(share, name=f"time, {count:,} problems: making and tokenizing them / stage"))
        report(
            [*ratios, *flatness(rounds)],
            [seconds for of_count in rounds.values() for seconds in of_count],
            output,
            problems=counts,
            shape=shape,
        )


if __name__ == "__main__":
    typer.run(main)
