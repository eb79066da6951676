"""The learned scorer, as it is used."""

import torch
from conftest import MakeTheta

from ccot_cli.models.selection.scorer import Scorer, chain_scores


@torch.no_grad()
def test_stored_states_are_scored_in_the_norm_s_own_precision(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    states = torch.randn(5, theta.model.config.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = chain_scores(Scorer(theta, "linear", seed=0), states)
    theta.model.bfloat16()
    found = chain_scores(Scorer(theta, "linear", seed=0), states)
    assert float(expected.abs().max()) > 0.2
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)
