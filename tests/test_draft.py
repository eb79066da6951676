"""The draft of an answer's first token."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ccot_cli.errors import CorruptError
from ccot_cli.models.decoding.draft import FILE_NAME, Draft
from ccot_cli.models.training.draft import fit_draft
from ccot_cli.tensors.probes import Probe


def test_a_draft_reads_tokens_off_states(tmp_path: Path) -> None:
    torch.manual_seed(0)
    centres, tokens = torch.randn(3, 8), torch.tensor([7, 5, 40])
    place = torch.arange(60) % 3
    others, changed = centres[place] + 0.1 * torch.randn(60, 8), tokens[place]
    changed[:15] = 7  # of which every third is
    draft = fit_draft(centres[place] + 0.1 * torch.randn(60, 8), tokens[place], validation=(others, changed))
    assert draft(others).tolist() == tokens[place].tolist()
    assert draft.accuracy == pytest.approx(50 / 60)
    draft.save(tmp_path)
    loaded = Draft.load(tmp_path, 8, 41)
    assert torch.equal(loaded(others), draft(others))
    assert loaded.accuracy == pytest.approx(draft.accuracy)


def test_a_batch_is_drafted_for_where_all_of_its_rows_may_well_be_right() -> None:
    weights = torch.zeros(2, 1), torch.tensor([5])
    assert [Draft(Probe(*weights), share).pays(8) for share in (0.0, 0.7, 0.8, 1.0)] == [False, False, True, True]
    assert Draft(Probe(*weights), 0.3).pays(1)


@pytest.mark.parametrize("damage", ["width", "vocabulary", "tokens", "fewer", "none", "share", "shares", "lost"])
def test_a_draft_of_another_model_is_refused(tmp_path: Path, damage: str) -> None:
    states = torch.randn(6, 8), torch.arange(6)
    fit_draft(*states, validation=states).save(tmp_path)
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
    elif damage == "share":
        save_file({**saved, "share": torch.tensor(float("nan"))}, path)
    elif damage == "shares":
        save_file({**saved, "share": torch.ones(2)}, path)
    else:
        path.unlink()
    with pytest.raises(CorruptError, match=FILE_NAME):
        Draft.load(tmp_path, width, vocabulary)
