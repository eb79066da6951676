"""Queries under θ: keys and values, and z_0."""

import pytest
import torch
from rollouts import LAYER, QUERIES

from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.psi import decode
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.tensors.masks import pad_left


@torch.no_grad()
@pytest.mark.parametrize("layer", [1, LAYER, 4])
def test_queries_in_several_passes_leave_what_one_pass_leaves(
    theta: Theta, adapters: Adapters, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters.use(None)
    ids, mask = pad_left(QUERIES, fill=theta.pad_id)
    together = CachedSequence.empty(3, theta.device)
    lower = theta.blocks.run_ids(ids, mask, together, last=layer)
    theta.blocks.run(lower, layer, theta.num_layers, together)
    monkeypatch.setattr("ccot_cli.models.base.theta.CPU_PASS_TOKENS", 13)  # two rows of six columns, and one
    rows: list[int] = []
    theta.blocks.layers[0].register_forward_hook(lambda _layer, inputs, _output: rows.append(len(inputs[0])))
    sequence, first = encode_query(adapters, QUERIES, layer=layer)
    assert rows == [2, 1]
    torch.testing.assert_close(first, lower[:, -1])
    assert torch.equal(sequence.mask_BS, mask)
    for index in range(theta.num_layers):
        for found, wanted in zip(sequence.keys_values(index), together.keys_values(index), strict=True):
            torch.testing.assert_close(found.transpose(1, 2)[mask], wanted.transpose(1, 2)[mask])


@torch.no_grad()
def test_a_text_may_begin_without_a_query(theta: Theta, adapters: Adapters) -> None:
    adapters.use(None)
    start = [[7]]
    prompt = torch.tensor(start)
    expected = theta.model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=theta.eos_id,
        pad_token_id=theta.eos_id,
    )[0, 1:].tolist()
    for queries in ([[]], [[], [5, 6]]):
        sequence, _ = encode_query(adapters, queries, layer=LAYER)
        found = decode(adapters, sequence, start * len(queries), max_tokens=6, adapter=None).ids[0]
        assert found == [token for token in expected if token != theta.eos_id]
