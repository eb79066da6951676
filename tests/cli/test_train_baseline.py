"""`ccot train-baseline`."""

from pathlib import Path

from cli.running import Output, output


def test_a_method_with_a_ratio_of_its_own_needs_none(here: Path, capsys: Output) -> None:
    output(capsys, "precompute")
    out, err = output(capsys, "train-baseline", "direct", "--ratio", "0")
    assert out.startswith("direct: validation accuracy")
    assert "--ratio is not read" not in err
    _, err = output(capsys, "train-baseline", "direct", "--ratio", "0.1")
    assert "direct always has ratio 0: --ratio is not read" in err
