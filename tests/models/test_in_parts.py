"""What does not fit into memory is done in smaller parts, wherever no gradient is kept."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import encoded_problems, shaken
from torch import Tensor
from trainers import LAYER, fresh_queries, phi_examples, psi_examples

from ccot_cli.config import TrainPhiConfig
from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.predictive import last_states, surprisals
from ccot_cli.models.training.contexts import RolloutContext, roll_out, token_states
from ccot_cli.models.training.phi_report import PhiJudge
from ccot_cli.models.training.queries import KeptQueries, fill_queries


@pytest.mark.parametrize("work", ["roll out", "token states", "queries", "surprisals", "judge"])
def test_what_does_not_fit_is_done_in_smaller_parts(
    llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    adapters, examples = shaken(llama, PHI, PSI), psi_examples(llama)
    asked, counts = [example.query for example in examples], [example.num_tokens for example in examples]
    queries = fresh_queries(adapters, examples)
    states, problems = phi_examples(llama, 5), encoded_problems(llama, 5)

    def done() -> list[Tensor]:
        if work == "surprisals":
            found = sorted(surprisals(llama, problems, last_states(llama, problems, batch_tokens=4096)))
            return [torch.tensor(each) for _, each in found]
        if work == "queries":
            path = tmp_path / "queries.bin"
            list(fill_queries(adapters, asked, path, batch_tokens=4096))
            return [KeptQueries(llama, asked, LAYER, path).encoded(range(len(asked)))[1]]
        if work == "judge":
            config = TrainPhiConfig(autoregressive_layer=LAYER, batch_size=9)
            judge = PhiJudge(adapters, states, states, fresh_queries(adapters, states), config)
            return [torch.tensor(judge.report().losses)]
        rollouts = roll_out(adapters, queries, counts, layer=LAYER, batch_size=9)
        if work == "roll out":
            return rollouts
        lower, last = token_states(RolloutContext(adapters, queries, rollouts, LAYER), examples, batch_size=9)
        return [*lower, *last]

    expected, enter, refused = done(), llama.blocks.enter, []

    def enter_few(embeds_BTD: Tensor, sequence: Any) -> Tensor:
        if len(embeds_BTD) > 2:
            refused.append(len(embeds_BTD))
            raise MemoryError
        return enter(embeds_BTD, sequence)

    monkeypatch.setattr(llama.blocks, "enter", enter_few)
    found = done()
    assert refused
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-2 if work == "queries" else 1e-4, rtol=1e-3)
