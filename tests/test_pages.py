"""The pages say what the code says: commands, fields, tests and files by their names."""

import ast
import re
from dataclasses import fields

from examples.scripts import ROOT, script

from ccot_cli.models.methods.loading import Traits
from ccot_cli.models.methods.method import Reply
from ccot_cli.stages.ask import AskResult
from ccot_cli.stages.evaluate import EvalResult, EvalRow, Fallback, Pair
from ccot_cli.stages.statistics import Proportion
from ccot_cli.stages.thoughts import CheckedThought, Verification


def test_the_page_of_commands_is_what_their_help_says() -> None:
    page = ROOT / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == script("../docs/cli.py").text(), "make docs"


def test_what_the_documents_point_to_is_there() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    tests = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in tests} == set()
    files = set(re.findall(r"`((?:models|tensors|stages|data|cli|workspace)/[\w/]+\.py)`", text))
    assert len(files) > 20
    assert {name for name in files if not (ROOT / "src" / "ccot_cli" / name).is_file()} == set()


def test_the_methods_and_fields_that_the_tour_names_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    classes = [
        node
        for path in (ROOT / "src" / "ccot_cli").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    methods = {
        f"{each.name}.{node.name}" for each in classes for node in each.body if isinstance(node, ast.FunctionDef)
    }
    methods |= {
        f"{each.name}.{node.target.id}"
        for each in classes
        for node in each.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    named = set(re.findall(r"`([A-Z]\w+\.[a-z]\w+)`", page))
    assert len(named) > 10
    assert named - methods == set()


def test_the_page_of_fields_has_all_that_ask_and_eval_print() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    asked, evaluated = page.split("## `ccot eval`")
    printed = {field.name for kind in (AskResult, CheckedThought) for field in fields(kind)} - {
        "text",
        "outside",
        "prompt_tokens",
        "answer_tokens",
        "is_unsure",
        "is_fallback",
    }
    assert {name for name in printed if f"`{name}`" not in asked} == set()
    printed = {
        field.name
        for kind in (EvalResult, EvalRow, Fallback, Verification, Proportion, Pair, Traits, Reply)
        for field in fields(kind)
    }
    printed -= {"thoughts", "explanation"}
    assert {name for name in printed if f"`{name}`" not in evaluated and f"`.{name}`" not in evaluated} == set()
