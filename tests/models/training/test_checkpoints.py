"""A checkpoint gives back what was saved, or is refused."""

import random
from pathlib import Path

import pytest
import torch

from ccot_cli.errors import CorruptError
from ccot_cli.models.training.checkpoints import load_checkpoint, save_checkpoint
from ccot_cli.models.training.loop import read_lines, write_lines

TENSORS = {
    "step": torch.tensor(7),
    "parameter/a": torch.arange(6.0).reshape(2, 3).T,
    "momentum/a": torch.ones(3, dtype=torch.bfloat16),
    "empty": torch.empty(0, 4),
}


def test_what_was_saved_comes_back_bit_by_bit(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", TENSORS)
    found = load_checkpoint(tmp_path / "x")
    assert found.keys() == TENSORS.keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in TENSORS.items()
    )


def test_every_flipped_bit_and_every_cut_is_refused(tmp_path: Path) -> None:
    path, generator = tmp_path / "run" / "x", random.Random(0)
    path.parent.mkdir()
    save_checkpoint(path, TENSORS)
    sound = path.read_bytes()
    flipped = [sound[:at] + bytes([sound[at] ^ 1 << at % 8]) + sound[at + 1 :] for at in range(len(sound))]
    for damaged in (*flipped, *(sound[:length] for length in generator.sample(range(len(sound)), 50)), sound + b"\0"):
        path.write_bytes(damaged)
        try:
            found = load_checkpoint(path)
        except CorruptError as error:
            assert str(path.parent) in error.fix  # noqa: PT017
        else:
            # White space of the header may differ; what it describes may not.
            assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
            assert found.keys() == TENSORS.keys()


@pytest.mark.parametrize("text", ["{", '{"step": NaN}', '{"step": 1, "step": 2}', "[1]", "7"])
def test_a_damaged_log_is_refused(tmp_path: Path, text: str) -> None:
    write_lines(tmp_path / "log.jsonl", [{"step": 1}])
    assert read_lines(tmp_path / "log.jsonl") == [{"step": 1}]
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1}}\n{text}\n')
    with pytest.raises(CorruptError, match=r"log\.jsonl is damaged"):
        read_lines(tmp_path / "log.jsonl")


def test_a_log_that_lost_lines_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "log.jsonl", [{"step": 1}, {"step": 2}])
    assert len(read_lines(tmp_path / "log.jsonl", at_least=2)) == 2
    with pytest.raises(CorruptError, match=r"log\.jsonl is damaged"):
        read_lines(tmp_path / "log.jsonl", at_least=3)
