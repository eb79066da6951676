"""The report of what contemplation tokens hold."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cli.running import Output, output

pytest.importorskip("matplotlib")


class Reader(HTMLParser):
    """Notes what a page loads, and checks that its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.titles: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loads += [value for name in ("src", "href") if (value := found.get(name))]
        if tag == "img":
            self.titles.append(found.get("alt") or "")
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_holds_all_figures_and_loads_nothing(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccot_cli.stages.inspect.LEAST_CASES", 2)
    out, err = output(capsys, "inspect", "--limit", "4", "--output", "seen")
    assert "test problems answered right" in out
    assert "written to seen/report.html" in err
    folder = trained / "seen"
    assert {path.name for path in folder.iterdir()} == {
        "report.html",
        "inspection.json",
        *(f"{name}.png" for name in ("kept", "results", "errors", "moves")),
    }
    page = (folder / "report.html").read_text()
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert len(reader.loads) == len(reader.titles) == 4
    assert all(each.startswith("data:image/png;base64,") for each in reader.loads)
    assert all(reader.titles)
    assert not re.search(r"https?://", page)
    # The questions are in it.
    seen = json.loads((folder / "inspection.json").read_text())
    assert seen["num_problems"] == 4
    assert seen["examples"][0]["question"].split()[0] in page


def test_a_hostile_question_is_text_in_the_page(tmp_path: Path) -> None:
    from ccot_cli.cli.report import _examples

    word = {"text": "<b>", "probability": 0.5}
    thought = {"number": 1, "words": [word], "lower_words": [word], "end": 0.1, "equation": ""}
    example = {
        "question": "<script>alert(1)</script>",
        "marked_chain": "<i>[=]",
        "reference": "<u>",
        "answer": "&",
        "thoughts": [thought],
    }
    page = _examples([example])
    assert not re.search("<(script|i|u|b)>", page)


def test_json_goes_to_stdout_and_an_existing_folder_is_refused(
    trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccot_cli.stages.inspect.LEAST_CASES", 2)
    out, _ = output(capsys, "inspect", "--set", "eval.limit=4", "--format", "json")
    assert json.loads(out)["num_problems"] == 4
    assert json.loads(out) == json.loads((trained / "inspection" / "inspection.json").read_text())
    _, err = output(capsys, "inspect", "--limit", "4", code=2)
    assert "inspection" in err
    assert "--output" in err
