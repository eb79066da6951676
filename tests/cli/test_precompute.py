"""`ccot precompute`."""

from pathlib import Path

from cli.running import Output, output


def test_precompute_plans_without_writing(here: Path, capsys: Output) -> None:
    out, _ = output(capsys, "precompute", "--dry-run")
    assert "12 training" in out
    assert [path.name for path in here.iterdir()] == ["ccot.yaml"]
