"""Gold states where memory is short."""

import pytest
import torch
from conftest import MakeTheta

from ccot_cli.data.problems import Problem
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.selection.gold import gold_states


def test_where_memory_is_short_hidden_states_come_from_smaller_batches(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch
) -> None:
    theta = make_theta("llama")
    told = [Problem("", "Mia has 3 pens. " * count, "3 + 4 = 7", "7") for count in range(1, 6)]
    problems = [theta.encoder.problem(each) for each in told]
    options = {"indices": range(theta.num_layers + 1), "batch_tokens": 4096, "dtype": torch.float32}
    expected = dict(gold_states(theta, problems, **options))  # type: ignore[arg-type]
    sizes, enter = [], theta.blocks.enter

    def short(inputs_BTD: torch.Tensor, sequence: CachedSequence) -> torch.Tensor:
        sizes.append(len(inputs_BTD))
        if len(inputs_BTD) > 2:
            raise MemoryError
        return enter(inputs_BTD, sequence)

    monkeypatch.setattr(theta.blocks, "enter", short)
    found = dict(gold_states(theta, problems, **options))  # type: ignore[arg-type]
    assert sizes == [5, 2, 3, 1, 2]
    assert found.keys() == expected.keys()
    for number, states in expected.items():
        torch.testing.assert_close(found[number], states, atol=1e-5, rtol=1e-4)
