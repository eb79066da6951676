"""Answers decoded under ψ against ψ without a cache, and against transformers' own generation."""

import pytest
import torch
from conftest import MakeTheta, shaken
from rollouts import COUNTS, LAYER, QUERIES, roll

from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.psi import decode
from ccot_cli.models.decoding.query import encode_query


def test_answers_of_a_batch_equal_those_one_by_one(theta: Theta, adapters: Adapters) -> None:
    marker = theta.encoder.answer_marker
    _, sequence = roll(adapters, QUERIES, COUNTS)
    together = decode(adapters, sequence, [marker] * 3, max_tokens=6).ids
    for query, count, ids in zip(QUERIES, COUNTS, together, strict=True):
        _, sequence = roll(adapters, [query], [count])
        assert decode(adapters, sequence, [marker], max_tokens=6).ids == [ids]


@torch.no_grad()
def test_answers_are_those_of_psi_run_anew_for_every_token(theta: Theta, adapters: Adapters) -> None:
    marker = theta.encoder.answer_marker
    _, sequence = roll(adapters, QUERIES, COUNTS)
    found = decode(adapters, sequence, [marker] * 3, max_tokens=4)
    for query, count, ids, chances in zip(QUERIES, COUNTS, found.ids, found.chances, strict=True):
        said: list[int] = []
        expected: list[float] = []
        while len(said) < 4 and theta.eos_id not in said:
            _, sequence = roll(adapters, [query], [count])
            adapters.use(PSI)
            fed = torch.tensor([[*marker, *said]])
            states = theta.blocks.run_ids(fed, torch.ones_like(fed).bool(), sequence)
            chances_V = theta.blocks.logits(states)[0, -1].softmax(dim=-1)
            said.append(int(chances_V.argmax()))
            expected.append(chances_V.max().item())
        assert ids == [token for token in said if token != theta.eos_id]
        assert chances == pytest.approx(expected[: len(ids)], rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("limit", [1, 2, 6])
@pytest.mark.parametrize("right", [(True, True, True), (False, True, False), (False, False, False), None])
def test_a_draft_changes_no_answer(
    theta: Theta, adapters: Adapters, right: tuple[bool, ...] | None, limit: int
) -> None:
    start = [theta.encoder.answer_marker] * 3
    _, sequence = roll(adapters, QUERIES, COUNTS)
    plain = decode(adapters, sequence, start, max_tokens=limit)
    # Neither right nor wrong: the end of sequence, which may be what a row says.
    firsts = [row[0] if row else theta.eos_id for row in plain.ids]
    assert len(set(firsts)) > 1
    shifts = [not each for each in right or ()]
    draft = [t + shift for t, shift in zip(firsts, shifts, strict=True)] if right else [theta.eos_id] * 3
    _, sequence = roll(adapters, QUERIES, COUNTS)
    passes: list[int] = []
    theta.blocks.layers[0].register_forward_hook(lambda _layer, inputs, _output: passes.append(inputs[0].shape[1]))
    found = decode(adapters, sequence, start, max_tokens=limit, draft_B=torch.tensor(draft))
    assert found == plain
    for chances, others in zip(found.chances, plain.chances, strict=True):
        assert chances == pytest.approx(others, rel=1e-4)
    said = max(len(row) + (not capped) for row, capped in zip(plain.ids, plain.is_capped, strict=True))
    saved = limit > 1 and right is not None and all(right)
    assert passes == [len(start[0]) + 1, *[1] * (said - 1 - saved)]


@torch.no_grad()
def test_a_draft_asks_for_no_position_that_is_not_there(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    adapters, most, marker = shaken(theta, PSI), theta.blocks.num_positions, theta.encoder.answer_marker
    assert most is not None
    for free in range(4):
        queries, found = [[5] * (most - len(marker) - free), [6] * 4], []
        for drafts in (None, True):
            sequence, _ = encode_query(adapters, queries, layer=LAYER)
            draft = torch.tensor([row[0] for row in found[0].ids]) if drafts else None
            found.append(decode(adapters, sequence, [marker] * 2, max_tokens=5, may_end=False, draft_B=draft))
        assert found[0] == found[1]
        assert [len(row) for row in found[0].ids] == [min(5, free + 1), 5]


def test_decoding_ends_when_a_row_is_done(theta: Theta, adapters: Adapters) -> None:
    start = [theta.encoder.answer_marker] * 3
    _, sequence = roll(adapters, QUERIES, COUNTS)
    free = decode(adapters, sequence, start, max_tokens=6).ids
    _, sequence = roll(adapters, QUERIES, COUNTS)
    found = decode(adapters, sequence, start, max_tokens=6, is_done=lambda ids: ids[:2] == free[1][:2])
    assert found.ids == [row[:2] if row[:2] == free[1][:2] else row for row in free]
    assert len(found.ids[1]) == 2 < len(free[1])


def test_gpt2_is_never_asked_beyond_its_last_position(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    query = [5] * (theta.blocks.num_positions - 6)
    start, adapters = [[7, 8]], Adapters(theta)
    with torch.no_grad():
        sequence, _ = encode_query(adapters, [query], layer=LAYER)
        found = decode(adapters, sequence, start, max_tokens=64, adapter=None, may_end=False)
    with pytest.raises(UsageError, match="positions"):
        encode_query(adapters, [query * 2], layer=LAYER)
    assert len(found.ids[0]) <= 5
    assert found.is_capped == [True]
    sequence.extend(torch.ones(1, 6, dtype=torch.bool))
    full = decode(adapters, sequence, start, max_tokens=64, adapter=None)
    assert (full.ids, full.is_capped) == ([[]], [True])


@torch.no_grad()
def test_a_row_near_the_last_position_cuts_no_other(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    adapters, last = shaken(theta, PHI, PSI), theta.blocks.num_positions
    assert last is not None
    queries, marker = [[5, 6, 7], [8] * (last - 12), [9] * (last - 3)], theta.encoder.answer_marker
    said = []
    for batch in (queries, *([query] for query in queries)):
        sequence, first = encode_query(adapters, batch, layer=LAYER)
        tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=20, reserved=len(marker) + 4)
        text = decode(adapters, sequence, [marker] * len(batch), max_tokens=16, may_end=False)
        said.append([*zip(tokens.num_tokens_B.tolist(), text.ids, text.is_capped, strict=True)])
    assert said[0] == [row for alone in said[1:] for row in alone]
    counts, ids, is_capped = zip(*said[0], strict=True)
    room = 12 - len(marker) - 4
    assert counts == (20, room, 1)
    assert [len(each) for each in ids][:2] == [16, 5]
    assert all(is_capped)


def test_without_contemplation_an_untrained_psi_answers_as_generate_does(theta: Theta) -> None:
    adapters = Adapters(theta)
    adapters.add(PSI, rank=4, alpha=8, seed=2)
    marker = theta.encoder.answer_marker
    for query in QUERIES:
        prompt = torch.tensor([[*query, *marker]])
        expected = theta.model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=theta.eos_id,
            pad_token_id=theta.eos_id,
        )[0, prompt.shape[1] :].tolist()
        sequence, _ = encode_query(adapters, [query], layer=LAYER)
        found = decode(adapters, sequence, [marker], max_tokens=8)
        assert found.ids == [[token for token in expected if token != theta.eos_id]]


@torch.no_grad()
def test_a_row_ends_at_any_end(theta: Theta, adapters: Adapters) -> None:
    start = [theta.encoder.answer_marker] * 3
    _, sequence = roll(adapters, QUERIES, COUNTS)
    plain = decode(adapters, sequence, start, max_tokens=6)
    end = plain.ids[0][2]
    theta.encoder.ends |= {end}
    _, sequence = roll(adapters, QUERIES, COUNTS)
    found = decode(adapters, sequence, start, max_tokens=6)
    assert found.ids == [row[: row.index(end)] if end in row else row for row in plain.ids]
    assert not found.is_capped[0]
