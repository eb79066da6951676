"""Write the tables of the pages from docs/data (`make docs`).

A page names a table between two markers, `<!-- table: NAME -->` and `<!-- end table -->`; its figures are those of
docs/data/NAME.json. A file there holds columns, rows and where they come from, or what `ccot eval --format json`
printed, of which NAME/by-steps is a second table, and NAME/alone the first one without what falls back on the chain.
embedded/SET is what the methods of the package reach on a set of test problems, from their own record.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "data"
EMBEDDED = "embedded"
METRICS = ROOT / "src" / "ccot_cli" / EMBEDDED / "metrics.json"
PAGES = tuple(
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if "<!-- table: " in path.read_text(encoding="utf-8")
)
MARKED = re.compile(r"<!-- table: (?P<name>[\w/-]+) -->.*?<!-- end table -->", re.DOTALL)
INTERVAL = "{:.3f} – {:.3f}"


def with_tables(page: str) -> str:
    """Return a page's text with every marked table as its data have it."""
    return MARKED.sub(
        lambda found: f"<!-- table: {found['name']} -->\n\n{table(found['name'])}\n\n<!-- end table -->", page
    )


def table(name: str) -> str:
    """Return a table in Markdown."""
    file, _, view = name.partition("/")
    data = json.loads((METRICS if file == EMBEDDED else DATA / f"{file}.json").read_text(encoding="utf-8"))
    if file == EMBEDDED:
        chosen, _, view = view.partition("/")
        data = data[chosen]
    if "columns" not in data:
        rows = [row for row in data["rows"] if view != "alone" or ", " not in row["method"]]
        data = by_steps(rows) if view == "by-steps" else accuracy_and_time(rows)
    head = [column["name"] for column in data["columns"]]
    lines = [row_of(head), "|" + "---|" * len(head)]
    for number, row in enumerate(data["rows"]):
        cells = [cell(value, column) for value, column in zip(row, data["columns"], strict=True)]
        bold = [number in data.get("bold", {}).get(each, ()) for each in head]
        lines.append(row_of([f"**{text}**" if is_bold else text for text, is_bold in zip(cells, bold, strict=True)]))
    return "\n".join(lines)


def row_of(cells: list[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def cell(value: Any, column: dict[str, str]) -> str:
    """Return a value as its column writes it: a number, several, a mean with its seeds, words, or nothing."""
    form = column.get("format", "{}")
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return form.format(*value)
        case {"mean": mean, "seeds": seeds}:
            return f"{form.format(mean)} ({', '.join(map(form.format, seeds))})"
        case _:
            return form.format(value)


def accuracy_and_time(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first table of an evaluation; `faster` is against the chain; `steps` are those of φ + ψ."""
    forms = {"method": "{}", "r": "{:g}", "tokens": "{:.1f}", "exact match": "{:.3f}", "95 % interval": INTERVAL}
    forms |= {"time": "{:.1f} ms", "faster": "{:.1f}×"}
    steps = list(map(steps_of, rows))
    forms |= {"steps": "{}"} if any(steps) else {}
    chain = next(row["seconds_mean"] for row in rows if row["method"] == "cot")
    return {
        "columns": [{"name": name, "format": form} for name, form in forms.items()],
        "rows": [
            [
                row["method"],
                row["ratio"],
                row["contemplation_tokens_mean"],
                row["accuracy"],
                [row["low"], row["high"]],
                1000 * row["seconds_mean"],
                chain / row["seconds_mean"],
                *([each] if any(steps) else []),
            ]
            for row, each in zip(rows, steps, strict=True)
        ],
        "bold": {"exact match": [number for number, row in enumerate(rows) if row["method"] == "ccot"]},
    }


def steps_of(row: dict[str, Any]) -> str:
    """Return how many steps each adapter was trained for; nothing if it was not recorded, or there is none."""
    return " + ".join(f"{sum(run['steps'] for run in runs):,}" for runs in row.get("training", {}).values() if runs)


def by_steps(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return exact match by the number of reasoning steps, and how many problems have as many."""
    steps = sorted({step for row in rows for step in row["by_steps"]}, key=int)
    numbers = [f"{max(row['by_steps'].get(step, {}).get('n', 0) for row in rows):,}" for step in steps]
    forms = {"by steps": "{}", "r": "{:g}"} | dict.fromkeys(steps, "{:.2f}")
    shares = [[row["by_steps"].get(step, {}).get("accuracy") for step in steps] for row in rows]
    return {
        "columns": [{"name": name, "format": form} for name, form in forms.items()],
        "rows": [
            *([row["method"], row["ratio"], *each] for row, each in zip(rows, shares, strict=True)),
            ["problems", None, *numbers],
        ],
    }


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
