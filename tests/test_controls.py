"""Controls and baselines: what stands in the contemplation tokens' place."""

from pathlib import Path

import pytest
import torch
from conftest import shaken

from ccot_cli.errors import CorruptError
from ccot_cli.models.adapters import PHI, PSI, Adapters
from ccot_cli.models.controls import CONTROLS, Control, Replacement
from ccot_cli.models.pause import PauseContext, add_pauses, fresh_pause, load_pause, save_pause
from ccot_cli.models.phi import Contemplation, contemplate, encode_query
from ccot_cli.models.psi import answer_loss
from ccot_cli.models.psi_training import Context, PsiExample, QueryContext
from ccot_cli.models.theta import Theta

LAYER = 2
QUERIES = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
COUNTS = torch.tensor([3, 1, 2])


def generated(
    theta: Theta, adapters: Adapters, queries: list[list[int]], counts: torch.Tensor
) -> tuple[torch.Tensor, Contemplation]:
    """Keys and values that the tokens left, all layers stacked, and the tokens."""
    sequence, first = encode_query(theta, adapters, queries, layer=LAYER)
    tokens = contemplate(theta, adapters, sequence, first, layer=LAYER, max_tokens=3, num_tokens_B=counts, chunk=3)
    return left_by(sequence), tokens


def left_by(sequence) -> torch.Tensor:  # type: ignore[no-untyped-def]
    return torch.stack([tensor for layer in range(4) for tensor in sequence.keys_values(layer)])


@torch.no_grad()
def replaced(
    theta: Theta, adapters: Adapters, kind: Control, queries: list[list[int]], tokens: Contemplation
) -> torch.Tensor:
    sequence = Replacement(theta, adapters, LAYER, kind)(queries, tokens)
    assert torch.equal(sequence.mask_BS[:, -3:], tokens.mask_BK)
    return left_by(sequence)


@pytest.mark.parametrize("kind", CONTROLS)
def test_a_control_leaves_the_query_and_changes_every_token(theta: Theta, kind: Control) -> None:
    adapters = shaken(theta, PHI)
    with torch.no_grad():
        before, tokens = generated(theta, adapters, QUERIES, COUNTS)
    after = replaced(theta, adapters, kind, QUERIES, tokens)
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
        before, tokens = generated(theta, adapters, queries, torch.tensor([3, 3, 3]))
    torch.testing.assert_close(replaced(theta, adapters, "shuffled", queries, tokens), before, atol=1e-4, rtol=1e-3)


def test_shuffled_tokens_are_the_neighbours(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    queries = [[5, 6, 7], [9, 10, 11]]
    with torch.no_grad():
        before, tokens = generated(llama, adapters, queries, torch.tensor([3, 3]))
    after = replaced(llama, adapters, "shuffled", queries, tokens)
    torch.testing.assert_close(after[:, 0, :, -3:], before[:, 1, :, -3:], atol=1e-4, rtol=1e-3)


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


# PAUSE


def examples(theta: Theta, counts: list[int]) -> list[PsiExample]:
    marker = theta.encoder.answer_marker
    return [PsiExample(query, marker, [20, 21], count) for query, count in zip(QUERIES, counts, strict=True)]


def pause_loss(
    theta: Theta, adapters: Adapters, rows: list[PsiExample], pause_1D: torch.nn.Parameter | None
) -> torch.Tensor:
    context: Context = QueryContext(theta, adapters, rows)
    if pause_1D is not None:
        context = PauseContext(theta, adapters, rows, pause_1D)
    sequence = context.sequence(range(len(rows)))
    return answer_loss(theta, adapters, sequence, [row.start for row in rows], [row.answer for row in rows])


def test_no_pause_tokens_are_answering_at_once(theta: Theta) -> None:
    rows, adapters = examples(theta, [0, 0, 0]), shaken(theta, PSI)
    found, expected = (pause_loss(theta, adapters, rows, pause) for pause in (fresh_pause(theta), None))
    torch.testing.assert_close(found, expected)


def test_pause_tokens_are_those_of_the_models_own_forward_pass(theta: Theta) -> None:
    pause = torch.nn.Parameter(
        torch.randn(1, theta.model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    )
    [row] = examples(theta, [3, 0, 0])[:1]
    adapters = shaken(theta, PSI)
    adapters.use(PSI)
    embedding = theta.model.get_input_embeddings()
    ends = torch.tensor([[*row.start, *row.answer]])
    embeds = torch.cat([embedding(torch.tensor([row.query])), pause.expand(1, 3, -1), embedding(ends)], dim=1)
    logits = theta.model(inputs_embeds=embeds).logits[:, -len(row.answer) - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits[0], torch.tensor(row.answer))
    torch.testing.assert_close(pause_loss(theta, adapters, [row], pause), expected, atol=1e-5, rtol=1e-4)


def test_the_pause_token_learns(llama: Theta) -> None:
    pause = fresh_pause(llama)
    pause_loss(llama, shaken(llama, PSI), examples(llama, [3, 1, 2]), pause).backward()  # type: ignore[no-untyped-call]
    assert pause.grad is not None
    assert pause.grad.abs().max() > 0


def test_rows_may_have_different_numbers_of_pause_tokens(llama: Theta) -> None:
    adapters = shaken(llama, PSI)
    sequence, _ = encode_query(llama, adapters, QUERIES, layer=LAYER, adapter=PSI)
    add_pauses(llama, sequence, fresh_pause(llama), [2, 0, 1])
    assert sequence.mask_BS.sum(dim=1).tolist() == [6, 2, 4]


def test_a_pause_token_survives_saving_and_a_broken_one_is_refused(llama: Theta, tmp_path: Path) -> None:
    pause = fresh_pause(llama)
    save_pause(pause, tmp_path)
    assert torch.equal(load_pause(tmp_path, 32), pause)
    with pytest.raises(CorruptError, match="width 64"):
        load_pause(tmp_path, 64)
    (tmp_path / "pause.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(CorruptError, match="cannot be read"):
        load_pause(tmp_path, 32)
