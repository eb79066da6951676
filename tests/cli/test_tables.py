"""Tables, as people see them and paste them."""

from ccot_cli.cli.tables import Table, harness_table, render, tables_of
from cli.results import RESULT, row


def test_the_paper_s_columns_come_in_every_style() -> None:
    accuracy, by_steps, traits = tables_of(RESULT)
    assert [line.split()[:2] for line in render(accuracy, "text").splitlines()[2:]] == [
        ["direct", "0"],
        ["ccot", "0.1"],
        ["pause", "0.1"],
        ["cot", "1"],
    ]
    assert "| ccot | 0.1 | 8.4 | 0.600 | 0.570 – 0.630 | <0.001 | 0.0100 | 0.0120 | 0.11 | 1.0% |" in render(
        accuracy, "markdown"
    )
    latex = render(accuracy, "latex")
    assert r"ccot & 0.1 & 8.4 & 0.600 & 0.570 -- 0.630 & $<$0.001 & 0.0100 & 0.0120 & 0.11 & 1.0\% \\" in latex
    assert r"my\_model, 1,000 problems of test.jsonl, batches of 32, cpu" in latex
    # Steps count as numbers do: 10 comes after 2.
    assert list(by_steps.head) == ["method", "r", "2", "10"]
    assert traits.rows == [("ccot", "yes", "continuous", "variable length")]


def test_training_is_summed_over_the_runs_of_an_adapter() -> None:
    run = {"steps": 938, "batch_size": 64, "problems": 60_000, "passes": 1, "weights": 2_000}
    training = {"phi": [run, {**run, "steps": 1_876, "passes": 2}], "psi": [run]}
    rows = [row("direct", 0.0, 0.1, 0.01) | {"training": {"psi": None}}]
    rows += [row(name, 0.1, 0.6, 0.01) | {"training": training} for name in ("ccot", "ccot, noise", "ccot, then cot")]
    table = tables_of(RESULT | {"rows": rows})[-1]
    assert table.head == ("method", "r", "adapter", "steps", "examples", "weights")
    assert table.rows == [
        ("ccot", "0.1", "φ", "2,814", "180,000", "2,000"),
        ("ccot", "0.1", "ψ", "938", "60,000", "2,000"),
    ]


def test_nothing_in_a_cell_breaks_latex() -> None:
    nasty = render(Table("50 % of a_b & {c}", "<", ["#1"], [["$\\x^2~"]]), "latex")
    assert r"50 \% of a\_b \& \{c\}" in nasty
    assert r"\$\textbackslash{}x\^{}2\textasciitilde{}" in nasty


def test_each_task_of_the_harness_has_its_own_number_of_problems() -> None:
    rows = [
        {"method": "cot", "ratio": 1.0, "task": task, "n": n, "metrics": {"exact_match,none": 0.5}}
        for task, n in (("first", 1000), ("second", 30))
    ]
    table = harness_table({"model": "my_model", "data": "both", "rows": rows})
    assert table.caption == "my_model, problems of both, asked by lm-evaluation-harness"
    assert [row[2:4] for row in table.rows] == [("first", "1,000"), ("second", "30")]
