"""Selectors on disk."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
import torch
from conftest import encoded_problems
from safetensors.torch import save_file

from ccot_cli.errors import CorruptError
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.scorer import Scorer
from ccot_cli.models.selection.selector import Selector, predictive_selector
from ccot_cli.tensors.select import num_kept

RATIO = Decimal("0.2")


def selectors(theta: Theta) -> list[Selector]:
    """Make one of every kind that holds something to save."""
    scores_V = torch.randn(theta.model.config.vocab_size, generator=torch.Generator().manual_seed(2))
    return [
        Selector("last", RATIO, theta.encoder),
        Selector("random", RATIO, theta.encoder, seed=4),
        predictive_selector(theta, encoded_problems(theta, 6), RATIO, scores_V),
        Selector("learned", RATIO, theta.encoder, layer=2, scorer=Scorer(theta, "linear", 3)),
        Selector("learned", RATIO, theta.encoder, layer=1, scorer=Scorer(theta, "mlp", 3)),
    ]


@pytest.mark.parametrize("which", range(5))
def test_a_saved_selector_chooses_as_before(llama: Theta, tmp_path: Path, which: int) -> None:
    selector = selectors(llama)[which]
    selector.save(tmp_path)
    again = Selector.load(llama, tmp_path)
    states_MD = torch.randn(200, llama.model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    for problem in encoded_problems(llama, 6):
        chain_MD = states_MD[: len(problem.chain)]
        positions = selector.positions(problem, states_MD=chain_MD)
        assert again.positions(problem, states_MD=chain_MD) == positions
        assert len(positions) == num_kept(RATIO, len(problem.chain))
    (tmp_path / "selector.json").write_text("{}")
    with pytest.raises(CorruptError, match="selector"):
        Selector.load(llama, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"ratio": "0.x"},
        {"ratio": "7"},
        {"name": "none"},
        {"name": "predictive"},
        {"name": "learned"},
        {"rounds": 1},  # beside scores of another vocabulary
    ],
)
def test_a_selector_that_could_not_select_is_refused(llama: Theta, tmp_path: Path, changes: dict[str, object]) -> None:
    fields = {"name": "even", "ratio": "0.2", "seed": 0}
    (tmp_path / "selector.json").write_text(json.dumps(fields))
    assert Selector.load(llama, tmp_path).name == "even"
    (tmp_path / "selector.json").write_text(json.dumps(fields | changes))
    save_file({"scores": torch.zeros(3)}, tmp_path / "announcements.safetensors")
    with pytest.raises(CorruptError, match="cannot be read"):
        Selector.load(llama, tmp_path)
