"""Controls: what stands in the contemplation tokens' place."""

import pytest
import torch
from conftest import shaken

from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.phi import Contemplation, contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.controls import CONTROLS, Control, Replacement

LAYER = 2
QUERIES = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
COUNTS = torch.tensor([3, 1, 2])


def generated(
    theta: Theta, adapters: Adapters, queries: list[list[int]], counts: torch.Tensor
) -> tuple[torch.Tensor, Contemplation]:
    """Keys and values that the tokens left, all layers stacked, and the tokens."""
    sequence, first = encode_query(adapters, queries, layer=LAYER)
    tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=3, num_tokens_B=counts)
    return left_by(sequence), tokens


def left_by(sequence) -> torch.Tensor:  # type: ignore[no-untyped-def]
    return torch.stack([tensor for layer in range(4) for tensor in sequence.keys_values(layer)])


@torch.no_grad()
def replaced(
    theta: Theta, adapters: Adapters, kind: Control, queries: list[list[int]], tokens: Contemplation
) -> torch.Tensor:
    sequence = Replacement(adapters, LAYER, kind)(queries, tokens)
    assert torch.equal(sequence.mask_BS[:, -3:], tokens.mask_BK)
    return left_by(sequence)


@pytest.mark.parametrize("kind", CONTROLS)
def test_a_control_leaves_the_query_and_changes_every_token(theta: Theta, kind: Control) -> None:
    adapters = shaken(theta, PHI)
    with torch.no_grad():
        before, tokens = generated(adapters, QUERIES, COUNTS)
    after = replaced(adapters, kind, QUERIES, tokens)
    torch.testing.assert_close(after[:, :, :, :-3], before[:, :, :, :-3], atol=1e-5, rtol=1e-4)
    for row, column in tokens.mask_BK.nonzero().tolist():
        # In the first layer too, whose keys are made of what was fed; z_0 itself is not changed by an untrained φ.
        first = 0 if kind != "untrained" else 2
        assert not torch.allclose(after[first:, row, :, column - 3], before[first:, row, :, column - 3], atol=1e-3)


def test_zeroed_tokens_are_the_same_whatever_was_asked(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    with torch.no_grad():
        _, tokens = generated(llama, adapters, [[5, 6, 7], [9, 10, 11]], torch.tensor([3, 3]))
    after = replaced(llama, adapters, "zeroed", [[5, 6, 7], [9, 10, 11]], tokens)
    torch.testing.assert_close(after[:, 0, :, -3:], after[:, 1, :, -3:])


def test_shuffled_tokens_of_the_same_question_are_the_original_ones(theta: Theta) -> None:
    adapters = shaken(theta, PHI)
    queries = [[5, 6, 7, 8]] * 3
    with torch.no_grad():
        before, tokens = generated(adapters, queries, torch.tensor([3, 3, 3]))
    torch.testing.assert_close(replaced(adapters, "shuffled", queries, tokens), before, atol=1e-4, rtol=1e-3)


def test_shuffled_tokens_are_the_neighbours(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    queries = [[5, 6, 7], [9, 10, 11]]
    with torch.no_grad():
        before, tokens = generated(llama, adapters, queries, torch.tensor([3, 3]))
    after = replaced(llama, adapters, "shuffled", queries, tokens)
    torch.testing.assert_close(after[:, 0, :, -3:], before[:, 1, :, -3:], atol=1e-4, rtol=1e-3)


def test_where_the_neighbour_has_no_more_tokens_its_last_one_stands(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    queries = [[5, 6, 7], [9, 10, 11]]
    with torch.no_grad():
        before, tokens = generated(llama, adapters, queries, torch.tensor([3, 1]))
    after = replaced(llama, adapters, "shuffled", queries, tokens)
    # Values, which have no positions.
    for column in (-3, -2, -1):
        torch.testing.assert_close(after[1::2, 0, :, column], before[1::2, 1, :, -3], atol=1e-4, rtol=1e-3)


def test_noise_has_each_state_s_norm(llama: Theta) -> None:
    states = (
        torch.randn(2, 5, 3, 32, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 6)[None, :, None, None]
    )
    noise = Replacement(llama, shaken(llama, PHI), LAYER, "noise")._changed(states, torch.ones(2, 3, dtype=torch.bool))
    torch.testing.assert_close(noise.norm(dim=-1), states.norm(dim=-1))
    assert float(torch.cosine_similarity(noise, states, dim=-1).abs().max()) < 0.7


def test_a_question_alone_cannot_be_shuffled(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    with torch.no_grad():
        _, tokens = generated(llama, adapters, [[5, 6, 7]], torch.tensor([3]))
    with pytest.raises(UsageError, match="alone"):
        replaced(llama, adapters, "shuffled", [[5, 6, 7]], tokens)


def test_untrained_tokens_are_thetas_own_rollout(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    with torch.no_grad():
        _, tokens = generated(llama, adapters, QUERIES, COUNTS)
        sequence, state = encode_query(llama, adapters, QUERIES, layer=LAYER)
        for column in range(3):
            sequence.extend(tokens.mask_BK[:, column : column + 1])
            states = llama.blocks.run_each(state[:, None], 0, llama.num_layers, sequence)
            state = states[LAYER][:, 0]
    torch.testing.assert_close(
        replaced(llama, adapters, "untrained", QUERIES, tokens), left_by(sequence), atol=1e-5, rtol=1e-4
    )
