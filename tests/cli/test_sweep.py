"""`ccot sweep` ends in a table."""

import json
from pathlib import Path

from cli.running import Output, output


def test_a_sweep_ends_in_a_table(trained: Path, capsys: Output) -> None:
    out, err = output(capsys, "sweep", "--ratio", "0.1", "--layer", "1", "--layer", "2")
    lines = out.splitlines()
    assert lines[1].split()[:4] == ["method", "r", "l", "seeds"]
    assert [line.split()[:3] for line in lines[2:4]] == [["ccot", "0.1", "1"], ["ccot", "0.1", "2"]]
    assert lines[5].startswith("l = 1  ")
    assert "cell 1 of 2: ccot r0.10-l1" in err
    out, _ = output(capsys, "sweep", "--ratio", "0.1", "--layer", "1", "--format", "json")
    assert [row["layer"] for row in json.loads(out)["rows"]] == [1]
