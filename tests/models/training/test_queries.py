"""Queries that are kept in a file, against those that are run at every use."""

from pathlib import Path

import torch
from conftest import encoded_problems, shaken
from trainers import LAYER

from ccot_cli.models.base.adapters import PHI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training.queries import FreshQueries, KeptQueries, fill_queries, num_bytes


def test_kept_queries_are_the_fresh_ones_to_the_rounding_of_the_file(theta: Theta, tmp_path: Path) -> None:
    adapters = shaken(theta, PHI)
    queries = [problem.query for problem in encoded_problems(theta, 5)]
    fresh = FreshQueries(adapters, queries, LAYER, rounds=True)
    assert sum(fill_queries(adapters, queries, tmp_path / "q", batch_tokens=100)) == 5
    kept = KeptQueries(theta, queries, LAYER, tmp_path / "q")
    assert (tmp_path / "q").stat().st_size == num_bytes(theta, queries)
    (one, first), (other, expected) = kept.encoded([3, 0, 4]), fresh.encoded([3, 0, 4])
    torch.testing.assert_close(first, expected, atol=1e-4, rtol=1e-2)
    assert torch.equal(one.mask_BS, other.mask_BS)
    for layer in range(theta.num_layers):
        for ours, theirs in zip(one.keys_values(layer), other.keys_values(layer), strict=True):
            real_BHNC = one.mask_BS[:, None, :, None]
            torch.testing.assert_close(ours * real_BHNC, theirs * real_BHNC, atol=1e-4, rtol=1e-2)
            assert torch.equal(theirs, theirs.bfloat16().to(theirs.dtype))
