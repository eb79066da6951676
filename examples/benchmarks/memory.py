"""What it brings that freed memory is kept for the next tensors (`keep_freed_memory`; a CPU under glibc only).

    python examples/benchmarks/memory.py
    python examples/benchmarks/memory.py --repeats 9 --output memory.json

Whole passes of the embedded model over training problems, as precomputing makes them, and steps of fine-tuning it, each
in a process of its own, which has done the same work once before.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import typer
from turns import Round, ratio, report

WORKS = ("precompute", "train")
KEPT, RETURNED = "kept", "returned"


def main(
    problems: Annotated[int, typer.Option(min=64, help="Problems of the passes; a quarter in steps of 64.")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 5,
    output: Annotated[Path | None, typer.Option(help="Where to write JSON.")] = None,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Time both ways in turns."""
    if child is not None:
        typer.echo(json.dumps(measure(child, problems)))
        return
    rounds: list[Round] = []
    for _ in range(repeats):
        spent: Round = {}
        for way in (RETURNED, KEPT):
            command = [sys.executable, __file__, "--problems", str(problems), "--child", way]
            found = subprocess.run(command, check=True, capture_output=True, text=True)
            spent |= {f"{work}, {way}": seconds for work, seconds in json.loads(found.stdout).items()}
        rounds.append(spent)
    report(
        [ratio(rounds, f"{work}, {RETURNED}", f"{work}, {KEPT}") for work in WORKS], rounds, output, problems=problems
    )


def measure(way: str, num_problems: int) -> Round:
    """Seconds of each piece of work, its second time."""
    with patch("ccot_cli.models.theta.keep_freed_memory") if way == RETURNED else nullcontext():
        works = pieces(num_problems)
    spent = {}
    for name, work in works.items():
        work()
        started = time.perf_counter()
        work()
        spent[name] = time.perf_counter() - started
    return spent


def pieces(num_problems: int) -> dict[str, Callable[[], object]]:
    """The work to be done."""
    from ccot_cli.config import DataConfig, ModelConfig, PrecomputeConfig, TrainPsiConfig
    from ccot_cli.data.problems import load_training
    from ccot_cli.models.adapters import PSI, Adapters
    from ccot_cli.models.baselines.base import Course
    from ccot_cli.models.baselines.direct import Direct
    from ccot_cli.models.gold import STORED_DTYPE, gold_states
    from ccot_cli.models.theta import load_theta

    theta = load_theta(ModelConfig())
    loaded = load_training(DataConfig(limit=num_problems, validation_limit=1))
    encoded = theta.encoder.problems(loaded.train)
    adapters, chosen = Adapters(theta), TrainPsiConfig(epochs=2)
    adapters.add(PSI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=0)
    num_steps = max(1, num_problems // 4 // chosen.batch_size)
    steps = Direct().training(Course(theta, adapters, encoded, Decimal(0), chosen)).steps()

    def precompute() -> None:
        indices = range(theta.num_layers + 1)
        for _ in gold_states(
            theta, encoded, indices=indices, batch_tokens=PrecomputeConfig().batch_tokens, dtype=STORED_DTYPE
        ):
            pass

    return {"precompute": precompute, "train": lambda: list(islice(steps, num_steps))}


if __name__ == "__main__":
    typer.run(main)
