"""Fit the draft of an answer's first token."""

from pathlib import Path

import pytest
import torch

from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.training.draft import fit_draft


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
