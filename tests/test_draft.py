"""The draft of an answer's first token."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ccot_cli.errors import CorruptError
from ccot_cli.models.draft import FILE_NAME, Draft, fit_draft


def test_a_draft_reads_tokens_off_states(tmp_path: Path) -> None:
    torch.manual_seed(0)
    centres, tokens = torch.randn(3, 8), torch.tensor([7, 5, 40])
    place = torch.arange(60) % 3
    draft = fit_draft(centres[place] + 0.1 * torch.randn(60, 8), tokens[place])
    others = centres[place] + 0.1 * torch.randn(60, 8)
    assert draft(others).tolist() == tokens[place].tolist()
    draft.save(tmp_path)
    assert torch.equal(Draft.load(tmp_path, 8, 41)(others), draft(others))


@pytest.mark.parametrize("damage", ["width", "vocabulary", "tokens", "fewer", "none", "lost"])
def test_a_draft_of_another_model_is_refused(tmp_path: Path, damage: str) -> None:
    fit_draft(torch.randn(6, 8), torch.arange(6)).save(tmp_path)
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
        save_file({"weights": saved["weights"][:, :0], "tokens": saved["tokens"][:0]}, path)
    else:
        path.unlink()
    with pytest.raises(CorruptError, match=FILE_NAME):
        Draft.load(tmp_path, width, vocabulary)
