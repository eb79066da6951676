"""`ccot config` shows what is in force, and from where."""

import json
from pathlib import Path

import pytest

from ccot_cli.config import Settings
from cli.running import Output, output


def test_every_setting_is_shown_with_its_origin(here: Path, capsys: Output) -> None:
    output(capsys, "init", "run")
    (here / "run" / "ccot.yaml").write_text("ratios: [0.2]\n\ndata:\n  limit: 50\n  source: own.jsonl\n")
    (here / "run" / "own.jsonl").touch()
    found = json.loads(output(capsys, "config", "-w", "run", "--set", "data.seed=4", "--format", "json")[0])
    assert found["ratios"] == {"value": ["0.2"], "from": "ccot.yaml, line 1"}
    assert found["data.limit"] == {"value": 50, "from": "ccot.yaml, line 4"}
    assert found["data.source"] == {"value": str(here / "run" / "own.jsonl"), "from": "ccot.yaml, line 5"}
    assert found["data.seed"] == {"value": 4, "from": "--set"}
    assert found["data.split"] == {"value": "train", "from": "default"}
    sections = Settings().model_dump()
    assert {name.partition(".")[0] for name in found} == set(sections)
    assert len(found) == sum(len(each) if isinstance(each, dict) else 1 for each in sections.values())
    out, _ = output(capsys, "config", "-w", "run")
    lines = out.splitlines()
    assert lines[0] == "run/ccot.yaml"
    assert ["data.limit", "50", "ccot.yaml,", "line", "4"] in [line.split() for line in lines]


def test_without_a_workspace_the_settings_of_the_package_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    out, _ = output(capsys, "config")
    assert out.startswith("no workspace here")
    assert "model.name" in out
    assert "ccot.yaml" not in out
