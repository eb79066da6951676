"""`ccot train-phi`."""

from pathlib import Path

from cli.running import QUESTION, Output, output


def test_training_that_diverges_at_its_end_is_exit_7_and_leaves_what_was_there(trained: Path, capsys: Output) -> None:
    settings = (trained / "ccot.yaml").read_text()
    before = (trained / "train-phi" / "r0.10" / "manifest.json").read_bytes()
    (trained / "ccot.yaml").write_text(
        settings.replace("taught_epochs: 1,", "taught_epochs: 1, learning_rate: 1.0e+9,")
    )
    output(capsys, "train-phi", code=7)
    assert (trained / "train-phi" / "r0.10" / "manifest.json").read_bytes() == before
    (trained / "ccot.yaml").write_text(settings)
    output(capsys, "train-phi")
    output(capsys, "ask", QUESTION)
