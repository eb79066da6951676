"""The report of `ccot inspect`: figures as PNG files, and one HTML page that holds all of them."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ccot_cli.cli.plots import pyplot, save
from ccot_cli.names import EMBEDDED

PAGE = "report.html"
SHOWN_CELLS = 160
"""A heat map with more cells shows colours without numbers."""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
figure { margin: 1.5rem 0; } img { max-width: 100%; } figcaption { color: #444; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .2rem .7rem; text-align: left; }
td { vertical-align: top; }
th { border-bottom: 1px solid #999; font-weight: 600; }
pre { background: #f4f4f4; padding: .6rem; white-space: pre-wrap; margin: .3rem 0; }
"""


def write_report(result: dict[str, Any], folder: Path) -> Path:
    """Draw the figures of an `Inspection` into a folder, and write the page; return the page's path."""
    sections = [_table((), summary_rows(result))]
    for name, title, caption, draw in FIGURES:
        path = folder / f"{name}.png"
        draw(result, path)
        image = b64encode(path.read_bytes()).decode()
        sections.append(
            f'<h2>{escape(title)}</h2>\n<figure><img src="data:image/png;base64,{image}" alt="{escape(title)}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )
    sections.append(_examples(result["examples"]))
    model = "the model in the package" if result["model"] == EMBEDDED else result["model"]
    heading = f"What the contemplation tokens of {model} hold, r = {result['ratio']:g}"
    page = folder / PAGE
    page.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(heading)}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(heading)}</h1>\n"
        + "\n".join(sections)
        + "\n</body></html>\n",
        encoding="utf-8",
    )
    return page


def share(proportion: dict[str, float] | None) -> str:
    """Write a proportion with its 95 % interval and its number of cases."""
    if proportion is None:
        return "no case"
    return "{accuracy:.3f} ({low:.3f} – {high:.3f}) of {n:,}".format(**proportion)


def summary_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures that fit into a line each: what, and how much."""
    moves = result["moves"]
    return [
        ("test problems answered right", f"{result['num_right']:,} of {result['num_problems']:,}"),
        (
            "tokens of the chain; kept; generated",
            "{mean_chain:.1f}; {mean_kept:.1f}; {mean_tokens:.1f}".format(**result),
        ),
        *(("result {result} is read best".format(**each), _best_cell(each)) for each in result["results"]),
        ("one token replaced: the answer moved", share(moves["moved"])),
        ("where arithmetic predicts another answer: it moved", share(moves["told_moved"])),
        ("… to that answer", share(moves["told_predicted"])),
        ("… to the donor's answer", share(moves["told_donors"])),
    ]


def _best_cell(result_map: dict[str, Any]) -> str:
    """Say where a probe reads one of the chain's results best."""
    rows = result_map["accuracy_IK"]
    value, index, token = max((value, y, x) for y, row in enumerate(rows) for x, value in enumerate(row))
    return f"in {value:.3f} of {result_map['cases_K'][token]:,} problems, at index {index} of token {token + 1}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"] if head else []
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _examples(examples: Sequence[dict[str, Any]]) -> str:
    parts = ["<h2>Some questions</h2>", "<p>The chain is the given one; φ learned to imitate its [marked] tokens.</p>"]
    for example in examples:
        rows = [
            (
                str(each["number"]),
                _words(each["words"]),
                _words(each["lower_words"]),
                f"{each['end']:.2f}",
                each["equation"] or "no",
            )
            for each in example["thoughts"]
        ]
        verdict = f"answer {example['answer']}, given {example['reference']}"
        parts.append(
            f"<h3>{escape(example['question'])}</h3>\n<pre>{escape(example['marked_chain'])}</pre>\n<p>{escape(verdict)}</p>\n"
            + _table(("token", "at index L", "at index l", "END", "verified"), rows)
        )
    return "\n".join(parts)


def _words(words: Sequence[dict[str, Any]]) -> str:
    first = f"{words[0]['text'].strip() or repr(words[0]['text'])} {words[0]['probability']:.2f}"
    return "  ".join([first, *(word["text"].strip() or repr(word["text"]) for word in words[1:3])])


def _draw_kept(result: dict[str, Any], path: Path) -> None:
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    kinds = list(result["kinds_chain"])
    rows = range(len(kinds))
    left.barh(
        [row - 0.2 for row in rows],
        [result["kinds_kept"].get(kind, 0.0) for kind in kinds],
        0.4,
        color="C3",
        label="kept",
    )
    left.barh([row + 0.2 for row in rows], list(result["kinds_chain"].values()), 0.4, color="0.7", label="in the chain")
    left.set_yticks(rows, kinds)
    left.invert_yaxis()
    left.set_xlabel("proportion of tokens")
    left.set_title("by kind", fontsize=10)
    left.legend(frameon=False)
    places = result["kept_by_place"]
    right.bar(range(1, len(places) + 1), places, color="C3")
    right.set_xlabel("fifth of a line of the chain")
    right.set_ylabel("proportion kept")
    right.set_title("by place", fontsize=10)
    save(figure, path)


def _draw_results(result: dict[str, Any], path: Path) -> None:
    plt, maps = pyplot(), result["results"]
    width = max((len(each["cases_K"]) for each in maps), default=1)
    figure, all_axes = plt.subplots(
        max(1, len(maps)),
        1,
        figsize=(max(4.5, 1.5 + 0.55 * width), 3.4 * max(1, len(maps))),
        squeeze=False,
        layout="constrained",
    )
    for each, axes in zip(maps, all_axes[:, 0], strict=False):
        image = axes.imshow(each["accuracy_IK"], origin="lower", aspect="auto", vmin=0, vmax=1, cmap="viridis")
        _number_cells(axes, each["accuracy_IK"])
        axes.set_xticks(range(len(each["cases_K"])), [f"{token}" for token in range(1, len(each["cases_K"]) + 1)])
        axes.set_xlabel("contemplation token")
        axes.set_ylabel("hidden-state index")
        axes.set_title(f"result {each['result']} of the chain, {each['cases_K'][0]:,} problems at token 1", fontsize=10)
    if maps:
        figure.colorbar(image, ax=all_axes, label="proportion read by a linear probe")
    save(figure, path)


def _number_cells(axes: Any, rows: Sequence[Sequence[float]]) -> None:
    if len(rows) * len(rows[0]) > SHOWN_CELLS:
        return
    for y, row in enumerate(rows):
        for x, value in enumerate(row):
            axes.text(
                x, y, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if value < 0.6 else "black"
            )


def _draw_errors(result: dict[str, Any], path: Path) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    tokens = range(1, len(result["error_cases_K"]) + 1)
    indices = [result["autoregressive_layer"] + offset for offset in range(len(result["error_IK"]))]
    for index, errors in zip(indices, result["error_IK"], strict=True):
        if index in (indices[0], indices[-1]):
            axes.plot(
                tokens, errors, marker="o", markersize=4, label=f"index {index}, {'l' if index == indices[0] else 'L'}"
            )
    axes.axhline(1, color="0.6", linewidth=1, linestyle="--", label="a mean")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("contemplation token")
    axes.set_ylabel("mean scaled error")
    axes.set_title(
        f"from {result['error_cases_K'][0]:,} problems at token 1 to {result['error_cases_K'][-1]:,}", fontsize=10
    )
    figure.legend(loc="outside right center", frameon=False)
    save(figure, path)


def _draw_moves(result: dict[str, Any], path: Path) -> None:
    plt = pyplot()
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    names = {"moved": "moved", "told_predicted": "to the predicted answer", "told_donors": "to the donor's answer"}
    for offset, (name, label) in zip((-0.12, 0.0, 0.12), names.items(), strict=True):
        told = [(place, each[name]) for place, each in enumerate(result["moves_by_place"], 1) if each[name]]
        axes.errorbar(
            [place + offset for place, _ in told],
            [each["accuracy"] for _, each in told],
            yerr=[
                [each["accuracy"] - each["low"] for _, each in told],
                [each["high"] - each["accuracy"] for _, each in told],
            ],
            fmt="o",
            capsize=3,
            label=label,
        )
    axes.set_ylim(-0.03, 1.06)
    axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    axes.set_xlabel("which token was replaced")
    axes.set_ylabel("proportion of replacements")
    axes.set_title("95 % intervals", fontsize=10)
    if result["moves_by_place"]:
        figure.legend(loc="outside right center", frameon=False)
    save(figure, path)


FIGURES: tuple[tuple[str, str, str, Callable[[dict[str, Any], Path], None]], ...] = (
    (
        "kept",
        "Which tokens of a chain φ learned to imitate",
        "Left: kept tokens by kind, beside all tokens of the test problems' chains. Right: how many of the tokens in "
        "each fifth of a line are kept.",
        _draw_kept,
    ),
    (
        "results",
        "Where the results of the chain can be read",
        "How often a linear probe reads a result of the chain from the state of one contemplation token at one index. "
        "Every cell has a probe of its own, fitted on the generated states of training problems and measured on test "
        "problems.",
        _draw_results,
    ),
    (
        "errors",
        "How far φ's states are from gold ones",
        "Mean scaled error of φ's own rollouts on test problems, at the lowest and the highest index that it imitates: "
        "0 is perfect, 1 no better than the mean state. Layers above l learn with ψ and END too (train_psi.unfreeze), "
        "so their states need not stay near gold ones.",
        _draw_errors,
    ),
    (
        "moves",
        "What depends on a token",
        "One contemplation token is replaced by that of another question with as many steps and tokens, both answered "
        "right. Arithmetic predicts an answer where both tokens say a result of their chains.",
        _draw_moves,
    ),
)
"""Name of the file, title, caption and drawing of each figure."""
