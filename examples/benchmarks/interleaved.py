"""Time pieces of work in turns, and compare them within a round, so that other load on the machine affects both."""

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import typer


@dataclass(frozen=True)
class Ratio:
    """The time of one piece of work over that of another: median, least and greatest of the rounds."""

    name: str
    median: float
    low: float
    high: float


Round = dict[str, float]
"""Seconds by piece of work."""


def take_turns(works: Mapping[str, Callable[[], object]], *, repeats: int, warm_ups: int = 1) -> list[Round]:
    """Time every piece once in each round; the warm-up rounds do not count."""
    rounds = []
    for number in range(warm_ups + repeats):
        seconds = {}
        for name, work in works.items():
            synchronise()
            started = time.perf_counter()
            work()
            synchronise()
            seconds[name] = time.perf_counter() - started
        if number >= warm_ups:
            rounds.append(seconds)
    return rounds


def synchronise() -> None:
    """Wait until a GPU, if there is one, has finished its queued work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ratio(rounds: list[Round], one: str, other: str) -> Ratio:
    """Compare the seconds of `one` with those of `other` within each round."""
    values = [seconds[one] / seconds[other] for seconds in rounds]
    return Ratio(f"{one} / {other}", statistics.median(values), min(values), max(values))


def report(ratios: list[Ratio], rounds: list[Round], output: Path | None, **facts: Any) -> None:
    """Print the ratios, and write them with all times and facts to a JSON file, if one is named."""
    width = max(len(each.name) for each in ratios)
    for each in ratios:
        typer.echo(f"{each.name:{width}}  {each.median:7.2f}×  ({each.low:.2f} - {each.high:.2f})")
    if output is not None:
        facts |= {
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        result = {"ratios": [asdict(each) for each in ratios], "rounds": rounds, **facts}
        output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
