"""Controls: what replaces the contemplation tokens."""

import pytest
import torch
from conftest import shaken

from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.phi import Contemplation, contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.controls import CONTROLS, Control, replace_tokens

LAYER = 2
READERS = pytest.mark.parametrize("reader", [None, PHI])
QUERIES = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
COUNTS = torch.tensor([3, 1, 2])


def generated(
    adapters: Adapters, queries: list[list[int]], counts: torch.Tensor, *, reader: str | None = None
) -> tuple[torch.Tensor, Contemplation]:
    """Generate tokens; returns the keys and values that they left, all layers stacked, and the tokens."""
    sequence, first = encode_query(adapters, queries, layer=LAYER, adapter=reader)
    tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=counts)
    return left_by(sequence), tokens


def left_by(sequence: CachedSequence) -> torch.Tensor:
    """Stack all layers' keys and values."""
    return torch.stack([tensor for layer in range(4) for tensor in sequence.keys_values(layer)])


@torch.no_grad()
def replaced(
    adapters: Adapters,
    kind: Control,
    queries: list[list[int]],
    tokens: Contemplation,
    *,
    reader: str | None = None,
) -> torch.Tensor:
    """Replace the tokens; returns the keys and values of all layers."""
    sequence, _ = replace_tokens(adapters, queries, tokens, kind, layer=LAYER, reader=reader)
    assert torch.equal(sequence.mask_BS[:, -3:], tokens.mask_BK)
    return left_by(sequence)


@READERS
@pytest.mark.parametrize("kind", CONTROLS)
def test_a_control_leaves_the_query_and_changes_every_token(theta: Theta, kind: Control, reader: str | None) -> None:
    adapters = shaken(theta, PHI)
    with torch.no_grad():
        before, tokens = generated(adapters, QUERIES, COUNTS, reader=reader)
    after = replaced(adapters, kind, QUERIES, tokens, reader=reader)
    torch.testing.assert_close(after[:, :, :, :-3], before[:, :, :, :-3], atol=1e-5, rtol=1e-4)
    for row, column in tokens.mask_BK.nonzero().tolist():
        # In the first layer too, whose keys are made of what was fed; z_0 itself is not changed by an untrained φ.
        first = 0 if kind != "untrained" else 2
        assert not torch.allclose(after[first:, row, :, column - 3], before[first:, row, :, column - 3], atol=1e-3)


def test_zeroed_tokens_are_the_same_whatever_was_asked(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    with torch.no_grad():
        _, tokens = generated(adapters, [[5, 6, 7], [9, 10, 11]], torch.tensor([3, 3]))
    after = replaced(adapters, "zeroed", [[5, 6, 7], [9, 10, 11]], tokens)
    torch.testing.assert_close(after[:, 0, :, -3:], after[:, 1, :, -3:])


@READERS
def test_shuffled_tokens_of_the_same_question_are_the_original_ones(theta: Theta, reader: str | None) -> None:
    adapters = shaken(theta, PHI)
    queries = [[5, 6, 7, 8]] * 3
    with torch.no_grad():
        before, tokens = generated(adapters, queries, torch.tensor([3, 3, 3]), reader=reader)
    after = replaced(adapters, "shuffled", queries, tokens, reader=reader)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-3)


def test_shuffled_tokens_are_the_neighbours(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    queries = [[5, 6, 7], [9, 10, 11]]
    with torch.no_grad():
        before, tokens = generated(adapters, queries, torch.tensor([3, 3]))
    after = replaced(adapters, "shuffled", queries, tokens)
    torch.testing.assert_close(after[:, 0, :, -3:], before[:, 1, :, -3:], atol=1e-4, rtol=1e-3)


@torch.no_grad()
def test_the_states_at_l_are_those_of_what_replaces_the_tokens(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    queries, exists = [[5, 6, 7], [9, 10, 11]], torch.ones(2, 3).bool()
    _, tokens = generated(adapters, queries, torch.tensor([3, 3]))
    lower = {kind: replace_tokens(adapters, queries, tokens, kind, layer=LAYER)[1] for kind in CONTROLS}
    torch.testing.assert_close(lower["shuffled"], tokens.lower_BKD.flip(0), atol=1e-4, rtol=1e-3)
    assert not lower["zeroed"].any()
    torch.testing.assert_close(lower["noise"].norm(dim=-1), tokens.lower_BKD.norm(dim=-1), atol=1e-4, rtol=1e-3)
    sequence, first_BD = encode_query(adapters, queries, layer=LAYER)
    adapters.use(None)
    _, expected_BKD = llama.blocks.feed_back(sequence, first_BD, exists, layer=LAYER)
    torch.testing.assert_close(lower["untrained"], expected_BKD)


def test_if_the_neighbour_has_no_more_tokens_its_last_one_is_repeated(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    queries = [[5, 6, 7], [9, 10, 11]]
    with torch.no_grad():
        before, tokens = generated(adapters, queries, torch.tensor([3, 1]))
    after = replaced(adapters, "shuffled", queries, tokens)
    # Values, which have no positions.
    for column in (-3, -2, -1):
        torch.testing.assert_close(after[1::2, 0, :, column], before[1::2, 1, :, -3], atol=1e-4, rtol=1e-3)


def test_noise_has_each_state_s_norm(llama: Theta, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters, placed = shaken(llama, PHI), []
    with torch.no_grad():
        _, tokens = generated(adapters, QUERIES, COUNTS)
        sequence, _ = encode_query(adapters, QUERIES, layer=LAYER)
        adapters.use(PHI)
        sequence.extend(tokens.mask_BK)
        entered = llama.blocks.enter(tokens.inputs_BKD, sequence)
        states = torch.stack(llama.blocks.run_each(entered, 0, llama.num_layers, sequence), dim=1)
    monkeypatch.setattr(llama.blocks, "place", lambda states_BITD, sequence: placed.append(states_BITD))
    replace_tokens(adapters, QUERIES, tokens, "noise", layer=LAYER)
    [noise] = placed
    exists = tokens.mask_BK[:, None].expand(noise.shape[:3])
    torch.testing.assert_close(noise.norm(dim=-1)[exists], states.norm(dim=-1)[exists], atol=1e-5, rtol=1e-4)
    assert float(torch.cosine_similarity(noise, states, dim=-1)[exists].abs().max()) < 0.7


def test_a_batch_of_one_question_cannot_be_shuffled(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    with torch.no_grad():
        _, tokens = generated(adapters, [[5, 6, 7]], torch.tensor([3]))
    with pytest.raises(UsageError, match="one question"):
        replaced(adapters, "shuffled", [[5, 6, 7]], tokens)


@READERS
def test_untrained_tokens_are_thetas_own_rollout(llama: Theta, reader: str | None) -> None:
    adapters = shaken(llama, PHI)
    with torch.no_grad():
        _, tokens = generated(adapters, QUERIES, COUNTS, reader=reader)
        sequence, state = encode_query(adapters, QUERIES, layer=LAYER, adapter=reader)
        adapters.use(None)
        for column in range(3):
            sequence.extend(tokens.mask_BK[:, column : column + 1])
            states = llama.blocks.run_each(state[:, None], 0, llama.num_layers, sequence)
            state = states[LAYER][:, 0]
    torch.testing.assert_close(
        replaced(adapters, "untrained", QUERIES, tokens, reader=reader), left_by(sequence), atol=1e-5, rtol=1e-4
    )
