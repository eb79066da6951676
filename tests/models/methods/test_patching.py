"""One contemplation token, replaced."""

import pytest
import torch
from conftest import shaken
from torch import Tensor

from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.phi import Contemplation, contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.controls import token_states
from ccot_cli.models.methods.patching import patch

LAYER, COUNT = 2, 3
QUERIES = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]


@torch.no_grad()
def generated(adapters: Adapters, reader: str | None = None) -> tuple[CachedSequence, Contemplation, Tensor]:
    """Generate three tokens for each query; returns their states at every index too."""
    sequence, first = encode_query(adapters, QUERIES, layer=LAYER, adapter=reader)
    tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=COUNT)
    return sequence, tokens, token_states(adapters, QUERIES, tokens, reader=reader)


def keys_and_values(sequence: CachedSequence) -> Tensor:
    return torch.stack([tensor for layer in range(4) for tensor in sequence.keys_values(layer)])


@pytest.mark.parametrize("reader", [None, PHI])
def test_a_token_replaced_by_itself_changes_nothing(theta: Theta, reader: str | None) -> None:
    adapters = shaken(theta, PHI)
    sequence, tokens, states = generated(adapters, reader)
    for place in range(COUNT):
        patched = patch(adapters, QUERIES, tokens, states, place, layer=LAYER, reader=reader)
        assert torch.equal(patched.mask_BS, sequence.mask_BS)
        # Padding is attended to by nothing, and its keys differ.
        for row, query in enumerate(QUERIES):
            found, expected = (keys_and_values(each)[:, row, :, -len(query) - COUNT :] for each in (patched, sequence))
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_a_patch_changes_its_token_and_those_after_it_alone(theta: Theta) -> None:
    adapters = shaken(theta, PHI)
    sequence, tokens, states = generated(adapters)
    before = keys_and_values(sequence)
    for place in range(COUNT):
        after = keys_and_values(patch(adapters, QUERIES, tokens, states.roll(-1, dims=0), place, layer=LAYER))
        first = place - COUNT
        for row, query in enumerate(QUERIES):
            kept = slice(-len(query) - COUNT, first)
            torch.testing.assert_close(after[:, row, :, kept], before[:, row, :, kept], atol=1e-4, rtol=1e-3)
        for column in range(first, 0):
            assert not torch.allclose(after[:, :, :, column], before[:, :, :, column], atol=1e-2)


def test_the_next_token_is_fed_the_donor_s_state(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    _, tokens, states = generated(adapters)
    donors = states.roll(-1, dims=0)
    fed: list[Tensor] = []
    llama.blocks.layers[0].register_forward_pre_hook(lambda _, given: fed.append(given[0]))
    patch(adapters, QUERIES, tokens, donors, 1, layer=LAYER)
    # The queries, the tokens before it, the donors' token, and the next one, which φ generates.
    torch.testing.assert_close(fed[-2][:, 0], donors[:, 0, 1])
    torch.testing.assert_close(fed[-1][:, 0], donors[:, LAYER, 1])
