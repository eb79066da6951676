"""Tables and the frontier, as people see them."""

from pathlib import Path
from typing import Any

import pytest

from ccot_cli.cli.plots import WIDTH, _unbeaten, check_plot, draw_frontier, draw_sweep, frontier
from ccot_cli.cli.tables import Table, render, tables_of
from ccot_cli.errors import UsageError
from ccot_cli.stages.statistics import mcnemar


def row(method: str, ratio: float, accuracy: float, seconds: float) -> dict[str, Any]:
    return {
        "method": method,
        "ratio": ratio,
        "n": 1000,
        "accuracy": accuracy,
        "low": max(0.0, accuracy - 0.03),
        "high": min(1.0, accuracy + 0.03),
        "seconds_mean": seconds,
        "seconds_p95": 1.2 * seconds,
        "contemplation_tokens_mean": 8.4,
        "truncated_share": 0.01,
        "by_steps": {"2": {"accuracy": accuracy}, "10": {"accuracy": accuracy / 2}},
    }


RESULT = {
    "rows": [
        row("direct", 0.0, 0.08, 0.007),
        row("ccot", 0.1, 0.6, 0.01),
        row("pause", 0.1, 0.1, 0.02),
        row("cot", 1.0, 0.98, 0.09),
    ],
    "pairs": [{"method": "ccot", "ratio": 0.1, "than": "direct", "than_ratio": 0.0, "p": 1e-9}],
    "traits": {"ccot": {"contentful": "yes", "format": "continuous", "inference": "variable length"}},
    "model": "my_model",
    "data": "test.jsonl",
    "batch_size": 32,
    "device": "cpu",
}


def test_the_paper_s_columns_come_in_every_style() -> None:
    accuracy, by_steps, traits = tables_of(RESULT)
    assert [line.split()[:2] for line in render(accuracy, "text").splitlines()[2:]] == [
        ["direct", "∞"],
        ["ccot", "10x"],
        ["pause", "10x"],
        ["cot", "1x"],
    ]
    assert "| ccot | 10x | 8.4 | 0.600 | 0.570 – 0.630 | <0.001 | 0.0100 | 0.0120 | 0.11 | 1.0% |" in render(
        accuracy, "markdown"
    )
    latex = render(accuracy, "latex")
    assert r"ccot & 10x & 8.4 & 0.600 & 0.570 -- 0.630 & $<$0.001 & 0.0100 & 0.0120 & 0.11 & 1.0\% \\" in latex
    assert r"my\_model on test.jsonl" in latex
    # Steps count as numbers do: 10 comes after 2.
    assert list(by_steps.head) == ["method", "1/r", "2", "10"]
    assert traits.rows == [("ccot", "yes", "continuous", "variable length")]


def test_nothing_in_a_cell_breaks_latex() -> None:
    nasty = render(Table("50 % of a_b & {c}", "<", ["#1"], [["$\\x^2~"]]), "latex")
    assert r"50 \% of a\_b \& \{c\}" in nasty
    assert r"\$\textbackslash{}x\^{}2\textasciitilde{}" in nasty


def test_every_method_has_its_letter_at_its_height() -> None:
    lines = frontier(RESULT).splitlines()[1:]
    grid = [line[5:] for line in lines[:16]]
    where = {
        letter: (number, line.index(letter)) for number, line in enumerate(grid) for letter in "abcd" if letter in line
    }
    assert where["d"][0] < where["b"][0] < where["a"][0]
    assert where["a"][1] < where["b"][1] < where["c"][1] < where["d"][1] < WIDTH
    assert lines[-1].strip().split("   ") == ["a direct", "b ccot 0.1", "c pause 0.1", "d cot"]


@pytest.mark.parametrize("seconds", [0.001, 0.0123, 0.1])
def test_methods_in_one_place_are_all_shown(seconds: float) -> None:
    same = [row(name, 0.1, 0.5, seconds) for name in ("one", "two", "three")]
    drawn = frontier({**RESULT, "rows": [*same, row("first", 0, 0, 0.001), row("last", 0, 0, 0.1)]})
    assert all(letter in drawn.split("└")[0] for letter in "abc")


def test_what_is_slower_and_worse_is_not_on_the_line() -> None:
    assert _unbeaten(RESULT["rows"]) == [(0.007, 0.08), (0.01, 0.6), (0.09, 0.98)]


@pytest.mark.parametrize("name", ["f.png", "f.svg"])
def test_a_picture_is_drawn(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    check_plot(path)
    draw_frontier(RESULT, path)
    assert path.stat().st_size > 5000


def test_a_sweep_is_drawn_with_a_line_for_each_choice(tmp_path: Path) -> None:
    def cell(ratio: float, selector: str) -> dict[str, object]:
        fixed = {"method": "ccot", "layer": 7, "schedule": "joint", "unfreeze": "above", "ends": "exact", "epochs": 3}
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
        for text in ("selector even", "selector last", "compression ratio r", "exact match", "Test, n = 500")
    )
    draw_sweep([cell(0.1, name) for name in ("even", "last")], path)
    assert all(text in path.read_text() for text in ("<!-- even -->", "<!-- last -->", "<!-- selector -->"))


def test_a_plot_that_cannot_be_drawn_is_refused_at_once(tmp_path: Path) -> None:
    for path in (tmp_path / "f.gif", tmp_path / "nowhere" / "f.png"):
        with pytest.raises(UsageError):
            check_plot(path)


def test_mcnemar_is_the_sign_test_on_what_differs() -> None:
    assert mcnemar(0, 0) == 1
    assert mcnemar(5, 5) == 1
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert mcnemar(1, 7) == mcnemar(7, 1) == pytest.approx(2 * (1 + 8) / 256)
    assert mcnemar(900, 100) < 1e-100
