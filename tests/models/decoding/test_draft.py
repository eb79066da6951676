"""The draft of an answer's first token: when it pays, and what is saved."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ccot_cli.errors import CorruptError
from ccot_cli.models.decoding.draft import FILE_NAME, Draft
from ccot_cli.tensors.probes import Probe


def test_a_batch_is_drafted_for_if_all_of_its_rows_may_well_be_right() -> None:
    weights = torch.zeros(2, 1), torch.tensor([5])
    assert [Draft(Probe(*weights), share).pays(8) for share in (0.0, 0.7, 0.8, 1.0)] == [False, False, True, True]
    assert Draft(Probe(*weights), 0.3).pays(1)


@pytest.mark.parametrize("damage", ["width", "vocabulary", "tokens", "fewer", "none", "share", "shares", "lost"])
def test_a_draft_of_another_model_is_refused(tmp_path: Path, damage: str) -> None:
    draft = Draft(Probe(torch.randn(9, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6)), 0.5)
    draft.save(tmp_path)
    assert torch.equal(Draft.load(tmp_path, 8, 6).probe.weights_DC, draft.probe.weights_DC)
    path, width, vocabulary = tmp_path / FILE_NAME, 8, 6
    saved = load_file(path)
    if damage == "width":
        width = 9
    elif damage == "vocabulary":
        vocabulary = 5
    elif damage == "tokens":
        save_file({**saved, "tokens": saved["tokens"].float()}, path)
    elif damage == "fewer":
        save_file({**saved, "tokens": saved["tokens"][1:]}, path)
    elif damage == "none":
        save_file({**saved, "weights": saved["weights"][:, :0], "tokens": saved["tokens"][:0]}, path)
    elif damage == "share":
        save_file({**saved, "share": torch.tensor(float("nan"))}, path)
    elif damage == "shares":
        save_file({**saved, "share": torch.ones(2)}, path)
    else:
        path.unlink()
    with pytest.raises(CorruptError, match=FILE_NAME):
        Draft.load(tmp_path, width, vocabulary)
