"""The frontier in characters, and pictures."""

from pathlib import Path
from typing import Any

import pytest

from ccot_cli.cli.plots import WIDTH, check_plot, draw_frontier, draw_sweep, frontier
from ccot_cli.errors import UsageError
from ccot_cli.stages.statistics import wilson
from cli.results import RESULT, row


def test_every_method_has_its_letter_at_its_height() -> None:
    lines = frontier(RESULT).splitlines()[1:]
    grid = [line[5:] for line in lines[:16]]
    where = {
        letter: (number, line.index(letter)) for number, line in enumerate(grid) for letter in "abcd" if letter in line
    }
    assert where["d"][0] < where["b"][0] < where["a"][0]
    assert where["a"][1] < where["b"][1] < where["c"][1] < where["d"][1] < WIDTH
    assert lines[-1].strip().split("   ") == ["a direct", "b ccot, r = 0.1", "c pause, r = 0.1", "d cot"]


@pytest.mark.parametrize("seconds", [0.001, 0.0123, 0.1])
def test_methods_in_one_place_are_all_shown(seconds: float) -> None:
    same = [row(name, 0.1, 0.5, seconds) for name in ("one", "two", "three")]
    drawn = frontier({**RESULT, "rows": [*same, row("first", 0, 0, 0.001), row("last", 0, 0, 0.1)]})
    assert all(letter in drawn.split("└")[0] for letter in "abc")


def test_the_frontier_is_a_staircase_without_what_is_slower_and_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = pytest.importorskip("matplotlib.axes")
    drawn: list[tuple[object, list[tuple[float, float]]]] = []
    plot = axes.Axes.plot

    def watched(self: Any, across: list[float], upwards: list[float], **style: object) -> Any:
        drawn.append((style.get("drawstyle"), list(zip(across, upwards, strict=True))))
        return plot(self, across, upwards, **style)

    monkeypatch.setattr(axes.Axes, "plot", watched)
    draw_frontier(RESULT, tmp_path / "f.svg")
    assert drawn == [("steps-post", [(0.007, 0.08), (0.01, 0.6), (0.09, 0.98)])]


@pytest.mark.parametrize("name", ["f.png", "f.svg"])
def test_a_picture_is_drawn(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    check_plot(path)
    draw_frontier(RESULT, path)
    assert path.stat().st_size > 5000


def test_accuracies_of_0_and_1_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shares = [wilson(num_correct, n) for n in range(1, 30) for num_correct in (0, n)]
    rows = [row("ccot", 0.1, each.accuracy, 0.01) | {"low": each.low, "high": each.high} for each in shares]
    draw_frontier({**RESULT, "rows": rows}, tmp_path / "f.svg")


@pytest.mark.parametrize(
    ("model", "data", "title"),
    [
        ("embedded", "embedded", "model in the package, 1,000 test problems, 95 % intervals"),
        ("my_model", "/home/me/test.jsonl", "my_model, 1,000 problems of test.jsonl, 95 % intervals"),
    ],
)
def test_a_picture_says_what_it_shows_in_text(tmp_path: Path, model: str, data: str, title: str) -> None:
    pytest.importorskip("matplotlib")
    draw_frontier({**RESULT, "model": model, "data": data}, tmp_path / "f.svg")
    drawn = (tmp_path / "f.svg").read_text(encoding="utf-8")
    for text in (title, "time per question (mean, log scale)", "exact match", "ccot, r = 0.1", "direct"):
        assert f">{text}</text>" in drawn


def test_a_sweep_is_drawn_with_a_colour_for_each_choice(tmp_path: Path) -> None:
    def cell(ratio: float, selector: str, settings: dict[str, object] | None = None) -> dict[str, object]:
        fixed: dict[str, object] = {
            "method": "ccot",
            "layer": 7,
            "schedule": "joint",
            "unfreeze": "above",
            "ends": "exact",
            "epochs": 3,
        }
        fixed |= {"problems": None, "settings": settings or {}}
        return {
            "ratio": ratio,
            "selector": selector,
            "accuracy": 0.5,
            "low": 0.4,
            "high": 0.6,
            "n": 500,
            "split": "test",
            **fixed,
        }

    path = tmp_path / "sweep.svg"
    draw_sweep([cell(ratio, name) for ratio in (0.1, 0.05) for name in ("even", "last")], path)
    drawn = path.read_text()
    assert all(
        text in drawn
        for text in (
            ">even<",
            ">last<",
            ">compression ratio r<",
            ">exact match<",
            ">500 test problems, 95 % intervals<",
        )
    )
    draw_sweep([cell(0.1, name) for name in ("even", "last")], path)
    assert all(text in path.read_text() for text in (">even<", ">last<", ">selector<"))
    rates = [{"train_phi.learning_rate": rate, "train_psi.lora_rank": rank} for rate in (0.1, 0.2) for rank in (4, 8)]
    draw_sweep([cell(0.1, "even", rate) for rate in rates], path)
    assert all(text in path.read_text() for text in (">φ learning rate<", ">ψ lora rank = 4<", ">ψ lora rank = 8<"))
    draw_sweep([cell(0.1, "even", {"train_phi.limit": limit}) for limit in (100, None)], path)
    assert all(text in path.read_text() for text in (">φ limit<", ">100<", ">null<"))


def test_a_plot_that_cannot_be_drawn_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "folder.svg").mkdir()
    for path, fix in (
        (tmp_path / "f.gif", f"--plot {tmp_path / 'f.svg'}"),
        (tmp_path / "nowhere" / "f.png", f"mkdir {tmp_path / 'nowhere'}"),
        (tmp_path / "no where" / "f.png", f"mkdir '{tmp_path / 'no where'}'"),
        (Path(), "--plot plot.svg"),
        (tmp_path / "folder.svg", f"--plot {tmp_path / 'folder.svg' / 'plot.svg'}"),
    ):
        with pytest.raises(UsageError) as caught:
            check_plot(path)
        assert caught.value.fix == fix
