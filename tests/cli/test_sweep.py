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


def test_varied_settings_are_columns_bars_and_fields(trained: Path, capsys: Output) -> None:
    rates = "--vary", "train_phi.learning_rate=0.002,0.004"
    arguments = ["sweep", "--ratio", "0.1", *rates, "--vary", "train_phi.learning_rate=0.002", "--problems", "8"]
    out, err = output(capsys, *arguments, "--problems", "12")
    lines = out.splitlines()
    assert lines[1].split()[:7] == ["method", "r", "problems", "φ", "learning", "rate", "seeds"]
    assert [line.split()[:4] for line in lines[2:6]] == [
        ["ccot", "0.1", "8", "0.002"],
        ["ccot", "0.1", "12", "0.002"],
        ["ccot", "0.1", "8", "0.004"],
        ["ccot", "0.1", "12", "0.004"],
    ]
    assert lines[7].startswith("problems = 8, φ learning rate = 0.002  ")
    assert "cell 4 of 4: ccot r0.10-phi-learning-rate-0.004-n12" in err
    out, _ = output(capsys, *arguments, "--format", "json")
    fields = [(row["settings"], row["problems"]) for row in json.loads(out)["rows"]]
    assert fields == [({"train_phi.learning_rate": rate}, 8) for rate in (0.002, 0.004)]
    out, _ = output(capsys, *arguments, "--format", "markdown")
    assert "| method | r | φ learning rate | seeds |" in out
    assert out.splitlines()[3].startswith("| --- | ---: | ---: | ---: |")


def test_a_setting_that_cannot_be_varied_is_exit_2_before_anything_is_trained(here: Path, capsys: Output) -> None:
    out, err = output(capsys, "sweep", "--vary", "data.limit=100", code=2)
    assert out == ""
    assert "error: data.limit cannot be varied" in err
    assert "fix:" in err
