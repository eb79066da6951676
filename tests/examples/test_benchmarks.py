"""Benchmarks compare what ends alike, and say their ratios; how fast things are, no test asks."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ccot_cli.config import Settings
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.stages.methods import find_methods
from examples.scripts import EXAMPLES, script


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES / "benchmarks"))
    return lambda name: script(f"benchmarks/{name}.py")


def test_training_benchmarks_compare_ways_that_end_alike(
    benchmark: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "training.json"
    benchmark("training").main("2x64", repeats=1, output=output)
    found = json.loads(output.read_text())
    assert len(found["ratios"]) == 4
    assert all(0 < each["low"] <= each["median"] <= each["high"] for each in found["ratios"])
    assert max(found["differences"].values()) < 1e-4
    assert "streamed" in capsys.readouterr().out


def test_the_ratio_of_a_round_is_formed_within_it(benchmark: Callable[[str], ModuleType]) -> None:
    turns = benchmark("interleaved")
    rounds = [{"a": 2.0, "b": 1.0}, {"a": 30.0, "b": 10.0}, {"a": 4.0, "b": 1.0}]
    assert turns.ratio(rounds, "a", "b") == turns.Ratio("a / b", 3.0, 2.0, 4.0)
    calls: list[str] = []
    works = {"one": lambda: calls.append("one"), "two": lambda: calls.append("two")}
    assert len(turns.take_turns(works, repeats=2)) == 2
    assert calls == ["one", "two"] * 3


@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("precompute", {"problems": [20, 40], "repeats": 1}, 5),
        ("precompute", {"problems": [10], "shape": "4x64", "repeats": 1}, 2),
        ("serving", {"clients": 3, "questions": 4, "repeats": 1}, 2),
        # The chain's time over direct's and a ratio's; padding of the ratio and of the chain; the ratio with END asked
        # after every token; reading ahead.
        ("questions", {"batch_size": [2], "problems": 3, "lines": 3, "repeats": 1}, 6),
    ],
)
def test_benchmarks_say_their_ratios(
    benchmark: Callable[[str], ModuleType], tmp_path: Path, name: str, arguments: dict[str, object], count: int
) -> None:
    output = tmp_path / "found.json"
    benchmark(name).main(**arguments, output=output)
    ratios = json.loads(output.read_text())["ratios"]
    if name == "questions":
        methods = find_methods(None, Settings())
        ours = [methods.load(ratio) for ratio in methods.folders]
        count += sum(each.draft.pays(2) for each in ours if isinstance(each, CcotMethod))  # each without its draft, too
    assert len(ratios) == count
    assert all(each["median"] > 0 for each in ratios)
