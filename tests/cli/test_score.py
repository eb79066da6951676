"""`ccot score`."""

import json
from pathlib import Path

import pytest

from cli.running import Output, output


def test_score_says_which_tokens_it_keeps_and_shows_three_chains(here: Path, capsys: Output) -> None:
    output(capsys, "precompute")
    out, _ = output(capsys, "score")
    assert "even spacing keeps too" in out
    shown = [line for line in out.splitlines() if line.startswith("  ") and "[" in line]
    out, _ = output(capsys, "score", "--format", "json")
    [result] = json.loads(out)
    assert result["selector"] == "predictive"
    assert sum(result["kinds"].values()) == pytest.approx(1)
    assert len(result["examples"]) == 3
    # What is kept stands in brackets.
    kept = [line for example in result["examples"] for line in example.splitlines() if "[" in line]
    assert shown == [f"  {line}" for line in kept]
