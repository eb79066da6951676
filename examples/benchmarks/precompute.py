"""Precomputing hidden states against a plain forward pass over the same tokens.

    python examples/benchmarks/precompute.py                               # minutes on two cores
    python examples/benchmarks/precompute.py --problems 1000 --problems 7473 --output precompute.json
    python examples/benchmarks/precompute.py --problems 1000 --shape 16x512

Says what share of the plain pass's tokens per second the whole stage reaches, from reading problems to the last byte on
the disk, and what share without making and tokenizing them; and what a problem costs at each number of problems.
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

from ccot_cli.config import override
from ccot_cli.data.batches import plan_batches
from ccot_cli.data.problems import load_training
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.random_model import random_theta
from ccot_cli.models.base.theta import load_theta
from ccot_cli.models.selection.gold import solution_ids
from ccot_cli.names import EMBEDDED
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
        """Make and tokenize them, as the stage does."""
        loaded = load_training(self.settings.data)
        return self.theta.encoder.problems([*loaded.train, *loaded.validation])

    def stage(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            workspace = Workspace.create(Path(place) / "run", "embedded")
            precompute.run(workspace, self.settings, progress=Progress())

    @torch.no_grad()
    def forward(self) -> None:
        lengths = [len(row) for row in self.rows]
        for batch in plan_batches(lengths, batch_tokens=self.settings.precompute.batch_tokens):
            ids_BT, mask_BT = pad_right([self.rows[number] for number in batch], fill=self.theta.pad_id)
            self.theta.model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False, logits_to_keep=1)


def flatness(rounds: dict[int, list[Round]]) -> Iterable[Ratio]:
    """What a problem costs among many, over what it costs among the fewest."""
    fewest = min(rounds)
    for count in sorted(rounds)[1:]:
        values = [
            (many["stage"] / count) / (few["stage"] / fewest)
            for many, few in zip(rounds[count], rounds[fewest], strict=True)
        ]
        name = f"a problem among {count:,} / among {fewest:,}"
        yield Ratio(name, statistics.median(values), min(values), max(values))


def save_random(shape: str, folder: Path) -> str:
    """A model with random weights, where the stage finds it."""
    theta = random_theta(shape, device=torch.device("cpu"), dtype=torch.float32)
    theta.model.save_pretrained(folder)
    theta.encoder.tokenizer.save_pretrained(folder)
    return str(folder)


def main(
    problems: Annotated[list[int] | None, typer.Option(min=10, help="Problems; repeat it.")] = None,
    shape: Annotated[str | None, typer.Option(help="A random Llama in the embedded model's place, as 16x512.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 3,
    output: Annotated[Path | None, typer.Option(help="Where to write JSON.")] = None,
) -> None:
    """Time the stage."""
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
            for each in rounds[count]:
                each["stage, problems apart"] = each["stage"] - each["problems"]
            for part in ("stage", "stage, problems apart"):
                found = ratio(rounds[count], "plain forward", part)
                ratios.append(replace(found, name=f"tokens per second, {count:,} problems: {part} / plain forward"))
        report(
            [*ratios, *flatness(rounds)],
            [each for one in rounds.values() for each in one],
            output,
            problems=counts,
            shape=shape,
        )


if __name__ == "__main__":
    typer.run(main)
