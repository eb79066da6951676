"""Every example of the help texts and of the pages for users: it runs, or at least its options exist."""

import inspect
import io
import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent

import pytest
from test_docs_tutorial import parse, pipelines, read

from ccot_cli.cli.app import app, run
from ccot_cli.data.problems import Problem
from ccot_cli.names import EMBEDDED
from ccot_cli.stages import problems
from ccot_cli.workspace.workspace import Workspace

PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/own-model.md",
    "docs/inspect.md",
    "docs/troubleshooting.md",
    "docs/json.md",
    "docs/serve.md",
    "docs/interchange.md",
)

ANSWERS = {
    "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?": "19",
    "Mia has 12 pens. She buys 7 more and gives away 4. How many pens does Mia have now?": "15",
    "Tom has 5 apples. He buys 3 more and then eats 2. How many apples does he have left?": "6",
    "Tom has 25 apples. He buys 13 more and then eats 8. How many apples does he have left?": "30",
    "Sara has 3 boxes with 8 crayons each. How many crayons does she have?": "24",
    # It shows how to type a question that begins with a dash; the model in the package does not know such questions.
    "-5 + 3": None,
}
"""Right answers to the questions of the examples, computed by hand."""

FEW = ["--limit", "2", "--batch-size", "2"]
TINY = ["--shape", "2x64", "--layer", "1", "--query", "4", "--chain", "4", "--repeats", "1"]
ADDED = {"eval": FEW, "bench": TINY, "precompute": ["--limit", "20"], "status": ["-w", "my-run"]}
ADDED["verify"] = ADDED["status"]
"""Options that make an example small, or name a workspace; the last of several counts."""


def examples() -> list[list[list[str]]]:
    """List the pipelines of all help texts and pages, without `ccot`; each once."""
    texts = [str(inspect.getdoc(each.callback)) for each in (*app.registered_commands, app.registered_callback)]
    found = [pipeline for text in texts for pipeline in pipelines(indent(text, "    "))]
    assert len(found) > 40
    found += [pipeline for page in PAGES for pipeline in pipelines(read(page)) if len(pipeline[0]) > 2]
    unique = {str(pipeline): pipeline for pipeline in found if "COMMAND" not in pipeline[0]}
    return list(unique.values())


def is_possible_at_once(words: list[str]) -> bool:
    """Return whether an example needs no network and no trained workspace, and trains nothing."""
    _, name, *options = words
    if name == "status":
        return "--plot" not in options  # Nothing has been trained yet.
    if name in ("config", "verify", "problems", "init", "bench"):
        return True
    if name == "precompute":
        return "--dry-run" in options
    return name in ("ask", "eval", "doctor") and not {"-w", "--model", "--server"} & {*options}


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the examples name, in an empty current folder, an untrained workspace, and two evaluations."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CCOT_WORKSPACE", raising=False)
    workspace = Workspace.create(Path("my-run"), EMBEDDED)
    rows = problems.run(None, workspace.settings, limit=6)
    Path("questions.txt").write_text("".join(f"{row.question}\n" for row in rows), encoding="utf-8")
    for name in ("questions", "train", "test", "people"):
        Path(f"{name}.jsonl").write_text("".join(map(as_line, rows)), encoding="utf-8")
    for name in ("2026-01-31-1", "2026-01-31-2"):
        Path(name).mkdir()
        prediction = {"method": "ccot", "ratio": 0.1, "question": "How many?", "is_correct": True}
        Path(name, "predictions.jsonl").write_text(json.dumps(prediction) + "\n")


def as_line(problem: Problem) -> str:
    return json.dumps({"question": problem.question, "answer": f"{problem.chain}\n#### {problem.answer}"}) + "\n"


def test_every_example_can_be_read() -> None:
    for pipeline in examples():
        for words in pipeline:
            parse(words)


def test_every_example_that_is_quick_runs_and_answers_right(
    around: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    num_run, asked = 0, set()
    for pipeline in examples():
        piped = Path("questions.jsonl").read_text(encoding="utf-8")
        for words in pipeline:
            _, name, *options = words
            if name == "eval" or not is_possible_at_once(words):
                break
            if "<" in options:
                *options, _, file = options
                piped = Path(file).read_text(encoding="utf-8")
            if name == "init":
                options[0] = f"new-{num_run}"  # Several examples make the same folder.
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped.encode())))
            assert run([name, *options, *ADDED.get(name, [])]) == 0, shlex.join(words)
            num_run += 1
            piped, _ = capsys.readouterr()
            if name == "ask" and (question := next((word for word in options if " " in word), None)):
                asked.add(question)
                answer = json.loads(piped)["answer"] if "json" in options else piped.strip()
                assert ANSWERS[question] in (None, answer), shlex.join(words)
    assert num_run > 18
    assert len(asked) > 2


@pytest.mark.slow
def test_every_example_of_an_evaluation_runs(around: None) -> None:
    pytest.importorskip("matplotlib")  # One of them draws.
    has_harness = find_spec("lm_eval") is not None
    evaluations = [words for words, *_ in examples() if words[1] == "eval" and is_possible_at_once(words)]
    assert len(evaluations) > 5
    for words in evaluations:
        if "--harness" in words and not has_harness:
            continue
        added = [] if "--compare" in words else ADDED["eval"]
        assert run([*words[1:], *added]) == 0, shlex.join(words)
