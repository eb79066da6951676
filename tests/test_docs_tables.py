"""The tables of the pages show what docs/data holds."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER

DOCS = Path(__file__).parent.parent / "docs"
RECORDS = sorted((DOCS / "data").glob("*.json"))
METRICS = EMBEDDED_FOLDER / "metrics.json"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_page_shows_what_its_data_say(tables: ModuleType) -> None:
    for path in tables.PAGES:
        page = path.read_text(encoding="utf-8")
        assert tables.MARKED.search(page), f"{path.name} has no table"
        assert page == tables.with_tables(page), f"{path.name}: make docs"


def test_every_file_of_data_is_shown_and_says_where_it_comes_from(tables: ModuleType) -> None:
    pages = [path.read_text(encoding="utf-8") for path in tables.PAGES]
    for record in RECORDS:
        showing = [page for page in pages if re.search(rf"<!-- table: {record.stem}[ /]", page)]
        assert showing, f"no page shows {record.name}"
        if "columns" in (data := read(record)):
            assert data["source"].keys() == {"command", "seeds", "n", "note", "recorded"}, record.name
            for line in data["source"]["command"]:
                assert any(line in page for page in showing), f"{record.name}: no page that shows it has `{line}`"


def test_every_set_of_the_embedded_record_is_shown_with_its_command(tables: ModuleType) -> None:
    pages = [path.read_text(encoding="utf-8") for path in tables.PAGES]
    for name, result in read(METRICS).items():
        showing = [page for page in pages if f"<!-- table: embedded/{name} -->" in page]
        assert showing, name
        assert all(result["command"] in page for page in showing), name


@pytest.mark.parametrize("record", [*RECORDS, METRICS], ids=lambda path: path.name)
def test_no_record_names_a_place_on_the_machine_that_measured(record: Path) -> None:
    assert not re.findall(r'"(?:/|~)[^"]*"', record.read_text(encoding="utf-8"))


def test_every_table_of_results_stands_between_markers(tables: ModuleType) -> None:
    for path in tables.PAGES:
        page = path.read_text(encoding="utf-8")
        # README.md has tables of other things in other sections.
        for section in re.split(r"^## ", page, flags=re.MULTILINE):
            if path.name != "README.md" or "<!-- table: " in section:
                unmarked = re.findall(r"^ *\|.*", tables.MARKED.sub("", section), flags=re.MULTILINE)
                assert unmarked == [], path.name


def test_the_headline_is_what_eval_prints() -> None:
    _, printed = (DOCS / "json.md").read_text(encoding="utf-8").split("## `ccot eval`")
    for row in read(METRICS)["test"]["rows"]:
        named = row.keys() | {name for share in row["by_steps"].values() for name in share}
        assert {name for name in named if f"`{name}`" not in printed} == set()


def test_cells_are_written_as_their_columns_say(tables: ModuleType) -> None:
    column = {"name": "exact match", "format": "{:.3f}"}
    assert tables.cell(None, column) == ""
    assert tables.cell(0.9, column) == "0.900"
    assert tables.cell("next to none", column) == "next to none"
    assert tables.cell({"mean": 0.5, "seeds": [0.25, 0.75]}, column) == "0.500 (0.250, 0.750)"
    assert tables.cell([0.1, 0.25], {"name": "95 % interval", "format": "{:.3f} – {:.3f}"}) == "0.100 – 0.250"
    assert tables.cell("as it is", {"name": "method"}) == "as it is"
