"""The tables of an evaluation as text, Markdown or LaTeX: the paper's Tables 2 and 1, and accuracy by steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ccot_cli.cli.console import aligned
from ccot_cli.names import EMBEDDED

Style = Literal["text", "markdown", "latex"]


@dataclass(frozen=True)
class Table:
    """A table whose cells are text."""

    caption: str
    align: str
    """One character for each column: `<` for left, `>` for right."""
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables_of(result: dict[str, Any], *, has_thoughts: bool = False) -> list[Table]:
    """Make the tables of an `EvalResult`, the most important first; at the end, if wanted, that of thoughts."""
    by_steps = [_by_steps(result)] if any(row["by_steps"] for row in result["rows"]) else []
    training = training_table(result)
    thoughts = [_thoughts(result)] if has_thoughts else []
    return [_accuracy(result), *by_steps, _traits(result), *([training] if training.rows else []), *thoughts]


def _accuracy(result: dict[str, Any]) -> Table:
    rows = result["rows"]
    chain = next((row["seconds_mean"] for row in rows if row["method"] == "cot"), None)
    has_fallback = any(row.get("fallback") for row in rows)
    to_direct = {(pair["method"], pair["ratio"]): pair["p"] for pair in result["pairs"] if pair["than"] == "direct"}
    caption = f"{subject(result)}, batches of {result['batch_size']}, {result['device']}"
    figures = ("tokens", "exact match", "95 % interval", "p to r=0", "s/question", "p95 batch", "× chain", "capped")
    cells = [
        (
            row["method"],
            f"{row['ratio']:g}",
            f"{row['contemplation_tokens_mean']:.1f}",
            f"{row['accuracy']:.3f}",
            f"{row['low']:.3f} – {row['high']:.3f}",
            _p_value(to_direct.get((row["method"], row["ratio"]))),
            f"{row['seconds_mean']:.4f}",
            f"{row['seconds_p95']:.4f}",
            "" if chain is None else f"{row['seconds_mean'] / chain:.2f}",
            f"{row['truncated_share']:.1%}",
            *([f"{row['fallback']['share']:.1%}" if row["fallback"] else ""] if has_fallback else []),
        )
        for row in rows
    ]
    head = ("method", "r", *figures, *(["to chain"] if has_fallback else []))
    return Table(caption, "<" + ">" * (len(head) - 1), head, cells)


def _by_steps(result: dict[str, Any]) -> Table:
    rows = result["rows"]
    steps = sorted({step for row in rows for step in row["by_steps"]}, key=int)
    cells = [
        (
            row["method"],
            f"{row['ratio']:g}",
            *(f"{row['by_steps'][step]['accuracy']:.2f}" if step in row["by_steps"] else "" for step in steps),
        )
        for row in rows
    ]
    return Table("Exact match by number of reasoning steps", "<>" + ">" * len(steps), ("method", "r", *steps), cells)


def _traits(result: dict[str, Any]) -> Table:
    cells = [(method, *traits.values()) for method, traits in result["traits"].items()]
    head = ("method", "contentful", "format", "inference")
    return Table("Tokens between query and answer", "<<<<", head, cells)


def training_table(result: dict[str, Any]) -> Table:
    """Make the table of what each adapter was trained with, as far as that is known."""
    cells = [
        (
            row["method"],
            f"{row['ratio']:g}",
            {"phi": "φ", "psi": "ψ"}[adapter],
            f"{sum(run['steps'] for run in runs):,}",
            f"{sum(run['passes'] * run['problems'] for run in runs):,}",
            f"{max(run['weights'] for run in runs):,}",
        )
        for row in result["rows"]
        for adapter, runs in _adapters(row).items()
    ]
    head = ("method", "r", "adapter", "steps", "examples", "weights")
    return Table("What the adapters were trained with", "<><>>>", head, cells)


def _adapters(row: dict[str, Any]) -> dict[str, Any]:
    """Return the known training of a row's adapters; controls and cascades have the same as their method."""
    is_variant = ", " in row["method"]
    return {} if is_variant else {name: runs for name, runs in row["training"].items() if runs}


def _thoughts(result: dict[str, Any]) -> Table:
    figures = ("verified_right", "verified_wrong", "auroc_confidence", "auroc_number", "auroc_verified")
    cells = [
        (
            row["method"],
            f"{row['ratio']:g}",
            *(_three_digits(row["verification"][figure]) for figure in figures),
            _three_digits(row["calibration_error"]),
        )
        for row in result["rows"]
        if row["verification"]
    ]
    head = ("method", "r", "of right", "of wrong", "AUROC confidence", "number", "verified", "ECE")
    return Table("Verified answers, and what tells right answers from wrong ones", "<" + ">" * 7, head, cells)


def _three_digits(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.3f}"


def subject(result: dict[str, Any]) -> str:
    """Say whose answers to which problems an `EvalResult` measures."""
    return f"{_model(result)}, {result['rows'][0]['n']:,} {_problems(result)}"


def _model(result: dict[str, Any]) -> str:
    return "model in the package" if result["model"] == EMBEDDED else str(result["model"])


def _problems(result: dict[str, Any]) -> str:
    return "test problems" if result["data"] == EMBEDDED else f"problems of {Path(result['data']).name}"


def harness_table(result: dict[str, Any]) -> Table:
    """Make the table of a `HarnessResult`: a row for each metric."""
    cells = [
        (row["method"], f"{row['ratio']:g}", row["task"], f"{row['n']:,}", *metric.split(","), f"{value:.3f}")
        for row in result["rows"]
        for metric, value in row["metrics"].items()
    ]
    caption = f"{_model(result)}, {_problems(result)}, asked by lm-evaluation-harness"
    return Table(caption, "<><><<>", ("method", "r", "task", "problems", "metric", "filter", "value"), cells)


def comparison_table(runs: tuple[str, str], comparisons: Sequence[dict[str, Any]]) -> Table:
    """Make the table of `Comparison`s of two evaluations."""
    head = (
        "method",
        "r",
        "problems",
        "first",
        "second",
        "difference",
        "95 % interval",
        "only first",
        "only second",
        "p",
    )
    cells = [
        (
            each["method"],
            f"{each['ratio']:g}",
            f"{each['n']:,}",
            f"{each['accuracy']:.3f}",
            f"{each['other_accuracy']:.3f}",
            f"{each['accuracy'] - each['other_accuracy']:+.3f}",
            f"{each['low']:+.3f} – {each['high']:+.3f}",
            f"{each['wins']:,}",
            f"{each['losses']:,}",
            _p_value(each["p"]),
        )
        for each in comparisons
    ]
    return Table(f"{runs[0]} (first) against {runs[1]} (second)", "<" + ">" * 9, head, cells)


def _p_value(p: float | None) -> str:
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def render(table: Table, style: Style) -> str:
    """Format a table in a style, to print or paste."""
    return {"text": _text, "markdown": _markdown, "latex": _latex}[style](table)


def _text(table: Table) -> str:
    return "\n".join([table.caption, *aligned([table.head, *table.rows], align=table.align)])


def _markdown(table: Table) -> str:
    rule = ["---:" if side == ">" else "---" for side in table.align]
    lines = ["| " + " | ".join(row) + " |" for row in (table.head, rule, *table.rows)]
    return "\n".join([table.caption, "", *lines])


def _latex(table: Table) -> str:
    """Format with LaTeX's booktabs rules."""
    columns = "".join("r" if side == ">" else "l" for side in table.align)
    head, *rows = (" & ".join(map(_escaped, row)) + r" \\" for row in (table.head, *table.rows))
    body = "\n    ".join([r"\toprule", head + r" \midrule", *rows, r"\bottomrule"])
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \begin{{tabular}}{{{columns}}}",
            f"    {body}",
            r"  \end{tabular}",
            rf"  \caption{{{_escaped(table.caption)}.}}",
            r"\end{table}",
        ]
    )


_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "$": r"\$", "{": r"\{", "}": r"\}"}
_LATEX |= {"×": r"$\times$", "–": "--", "<": r"$<$", "~": r"\textasciitilde{}", "^": r"\^{}"}
_LATEX |= {"θ": r"$\theta$", "φ": r"$\varphi$", "ψ": r"$\psi$"}


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
