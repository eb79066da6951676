"""φ and ψ against slow, obvious versions of themselves."""

from collections.abc import Callable
from itertools import count as counting
from typing import Any

import pytest
import torch
from conftest import MakeTheta, as_theta, shaken, tiny_config
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerFast

from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.blocks import Blocks
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.end import Chance
from ccot_cli.models.decoding.phi import Contemplation, contemplate, replay
from ccot_cli.models.decoding.psi import Text, decode
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.training import queries
from ccot_cli.models.training.psi import answer_loss
from ccot_cli.tensors.masks import pad_left

QUERIES = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17, 18]]
COUNTS = [3, 7, 5]
LAYER = 2


@pytest.fixture
def adapters(theta: Theta) -> Adapters:
    return shaken(theta, PHI, PSI)


@torch.no_grad()
def roll(
    theta: Theta, adapters: Adapters, queries: list[list[int]], counts: list[int]
) -> tuple[Contemplation, CachedSequence]:
    sequence, first = encode_query(adapters, queries, layer=LAYER)
    tokens = contemplate(
        adapters,
        sequence,
        first,
        layer=LAYER,
        max_tokens=max(counts),
        num_tokens_B=torch.tensor(counts),
    )
    return tokens, sequence


@torch.no_grad()
def slow_rollout(theta: Theta, adapters: Adapters, query: list[int], count: int) -> list[list[Tensor]]:
    """Algorithm 2 without reuse: for every token the query under θ and all tokens under φ are run anew, full depth.

    Returns each token's states at every index.
    """
    adapters.use(None)
    ids = torch.tensor([query])
    sequence = CachedSequence.empty(1, theta.device)
    inputs = [theta.blocks.run_ids(ids, torch.ones_like(ids).bool(), sequence, last=LAYER)[:, -1]]
    for _ in range(count):
        adapters.use(None)
        sequence = CachedSequence.empty(1, theta.device)
        theta.blocks.run_ids(ids, torch.ones_like(ids).bool(), sequence)
        adapters.use(PHI)
        sequence.extend(torch.ones(1, len(inputs)).bool())
        states = [theta.blocks.enter(torch.stack(inputs, dim=1), sequence)]
        for index in range(theta.num_layers):
            states.append(theta.blocks.run(states[-1], index, index + 1, sequence))
        inputs.append(states[LAYER][:, -1])
    return [[state[0, token] for state in states] for token in range(count)]


def expecting(*, every: int) -> Chance:
    """Expects END at every so many tokens, in all rows."""
    place = counting(1)
    return lambda lower_BD: torch.full((len(lower_BD),), float(next(place) % every == 0))


class EndAfter:
    """Says END after so many tokens of each row, whatever their states are."""

    def __init__(self, counts: list[int]) -> None:
        self._left_B = torch.tensor(counts)
        self.asked: list[int] = []

    def __call__(self, last_BTD: Tensor) -> Tensor:
        self.asked.append(last_BTD.shape[1])
        found_BT = torch.arange(1, last_BTD.shape[1] + 1) == self._left_B[:, None]
        self._left_B = self._left_B - last_BTD.shape[1]
        return found_BT


LOOKS = pytest.mark.parametrize(
    "looks",
    [lambda: None, lambda: expecting(every=1), lambda: expecting(every=3), lambda: expecting(every=99)],
    ids=["reference", "all", "third", "none"],
)
Looks = Callable[[], Chance | None]


@LOOKS
def test_cached_batched_half_depth_rollout_equals_the_algorithm_run_anew_for_every_token(
    theta: Theta, adapters: Adapters, looks: Looks
) -> None:
    with torch.no_grad():
        sequence, first = encode_query(adapters, QUERIES, layer=LAYER)
        tokens = contemplate(
            adapters, sequence, first, layer=LAYER, max_tokens=9, is_end=EndAfter(COUNTS), chance=looks()
        )
    assert tokens.num_tokens_B.tolist() == COUNTS
    assert sequence.mask_BS.sum(dim=1).tolist() == [len(each) + k for each, k in zip(QUERIES, COUNTS, strict=True)]
    for row, (query, count) in enumerate(zip(QUERIES, COUNTS, strict=True)):
        expected = slow_rollout(adapters, query, count)
        for place in range(count):
            torch.testing.assert_close(tokens.last_BKD[row, place], expected[place][-1], atol=2e-5, rtol=1e-4)
            if place + 1 < count:
                fed = tokens.inputs_BKD[row, place + 1]
                torch.testing.assert_close(fed, expected[place][LAYER], atol=2e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("layer", [1, LAYER, 4])
def test_queries_in_several_passes_leave_what_one_pass_leaves(
    theta: Theta, adapters: Adapters, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters.use(None)
    ids, mask = pad_left(QUERIES, fill=theta.pad_id)
    whole = CachedSequence.empty(3, theta.device)
    lower = theta.blocks.run_ids(ids, mask, whole, last=layer)
    theta.blocks.run(lower, layer, theta.num_layers, whole)
    monkeypatch.setattr(queries, "PASS_TOKENS", 13)  # two rows of six columns, and one
    sequence, first = encode_query(adapters, QUERIES, layer=layer)
    torch.testing.assert_close(first, lower[:, -1])
    assert torch.equal(sequence.mask_BS, mask)
    for index in range(theta.num_layers):
        for found, wanted in zip(sequence.keys_values(index), whole.keys_values(index), strict=True):
            torch.testing.assert_close(found.transpose(1, 2)[mask], wanted.transpose(1, 2)[mask])


def test_a_finished_rollout_replayed_in_one_pass_reproduces_every_token(theta: Theta, adapters: Adapters) -> None:
    tokens, _ = roll(adapters, QUERIES, COUNTS)
    sequence, _ = encode_query(adapters, QUERIES, layer=LAYER)
    lower, last = replay(adapters, sequence, tokens.inputs_BKD, tokens.mask_BK, layer=LAYER)
    torch.testing.assert_close(last[tokens.mask_BK], tokens.last_BKD[tokens.mask_BK])
    fed_next = tokens.mask_BK[:, 1:]
    torch.testing.assert_close(lower[:, :-1][fed_next], tokens.inputs_BKD[:, 1:][fed_next])


VARYING = pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 100.0},
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0},
    ],
    ids=["dynamic", "longrope"],
)


def varying_config(tokenizer: PreTrainedTokenizerFast, rope: dict[str, Any]) -> PretrainedConfig:
    """A Llama whose rotary embedding changes beyond nine tokens."""
    config = tiny_config("llama", len(tokenizer))
    config.max_position_embeddings = 9
    config.rope_parameters = {**rope, "rope_theta": 10.0, "original_max_position_embeddings": 9}
    return config


@torch.no_grad()
@VARYING
def test_ropes_that_change_with_length_rotate_each_token_by_its_own(
    tokenizer: PreTrainedTokenizerFast, rope: dict[str, Any]
) -> None:
    config = varying_config(tokenizer, rope)
    queries, counts = [[5, 6, 7, 8, 9, 10]], [6]

    def inputs(**how: Any) -> Tensor:
        # What a model has rotated before counts too.
        theta = as_theta(config, tokenizer)
        assert theta.blocks.rope_varies
        adapters = shaken(theta, PHI)
        sequence, first = encode_query(adapters, queries, layer=LAYER)
        tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=20, **how)
        return torch.cat([tokens.inputs_BKD, tokens.last_BKD], dim=-1)

    one_by_one = inputs(is_end=EndAfter(counts))
    assert one_by_one.shape[1] == 6
    torch.testing.assert_close(inputs(is_end=EndAfter(counts), chance=expecting(every=4))[:, :6], one_by_one)
    torch.testing.assert_close(inputs(num_tokens_B=torch.tensor(counts)), one_by_one)
    # The same frequencies throughout would have made others of it.
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10.0}
    constant = as_theta(config, tokenizer)
    assert not constant.blocks.rope_varies
    adapters = shaken(constant, PHI)
    sequence, first = encode_query(constant, adapters, queries, layer=LAYER)
    tokens = contemplate(constant, adapters, sequence, first, layer=LAYER, max_tokens=6)
    assert (one_by_one[..., :32] - tokens.inputs_BKD).abs().amax(dim=(0, 2))[-1] > 0.1


@torch.no_grad()
@VARYING
def test_a_draft_does_not_lengthen_what_is_rotated_by_its_length(
    tokenizer: PreTrainedTokenizerFast, rope: dict[str, Any]
) -> None:
    config, start = varying_config(tokenizer, rope), [[11]]

    def text(draft: Tensor | None, query: list[int]) -> Text:
        theta = as_theta(config, tokenizer)
        sequence, _ = encode_query(theta, shaken(theta), [query], layer=LAYER)
        return decode(theta, Adapters(theta), sequence, start, max_tokens=3, adapter=None, draft_B=draft)

    for seed in range(20):
        query = [5 + (seed * each) % 37 for each in range(1, 9)]
        assert text(torch.tensor([7]), query) == text(None, query)


@torch.no_grad()
def test_no_token_is_generated_behind_an_end_that_was_foretold(theta: Theta, adapters: Adapters) -> None:
    sequence, first = encode_query(adapters, QUERIES, layer=LAYER)
    is_end, place = EndAfter(COUNTS), counting(1)

    def chance(lower_BD: Tensor) -> Tensor:
        at = next(place)
        return torch.tensor([float(count == at) for count in COUNTS])

    tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=9, is_end=is_end, chance=chance)
    # All rows together, at the longest's last token.
    assert is_end.asked == [max(COUNTS)]
    assert tokens.num_tokens_B.tolist() == COUNTS
    assert tokens.inputs_BKD.shape[1] == max(COUNTS)
    columns = max(map(len, QUERIES)) + max(COUNTS)
    assert {keys.shape[2] for keys, _ in map(sequence.keys_values, range(theta.num_layers))} == {columns}


@LOOKS
def test_end_stops_each_row_at_its_first_end_wherever_it_is_asked(
    theta: Theta, adapters: Adapters, looks: Looks
) -> None:
    free, _ = roll(adapters, QUERIES, [9, 9, 9])
    # A classifier that says END at the third, first and no token of the three rows.
    marks = {(0, 2), (1, 0), (0, 5)}
    ends = [free.last_BKD[row, place] for row, place in marks]

    def is_end(last_BKD: Tensor) -> Tensor:
        found = torch.zeros(last_BKD.shape[:2], dtype=torch.bool)
        for state in ends:
            found |= (last_BKD - state).abs().amax(dim=-1) < 1e-4
        return found

    with torch.no_grad():
        sequence, first = encode_query(adapters, QUERIES, layer=LAYER)
        stopped = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=9, is_end=is_end, chance=looks())
    assert stopped.num_tokens_B.tolist() == [3, 1, 9]
    assert stopped.is_capped_B.tolist() == [False, False, True]
    assert sequence.mask_BS.sum(dim=1).tolist() == [6 + 3, 3 + 1, 5 + 9]


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
    found = decode(adapters, sequence, [marker] * 3, max_tokens=4).ids
    for query, count, ids in zip(QUERIES, COUNTS, found, strict=True):
        said: list[int] = []
        while len(said) < 4 and theta.eos_id not in said:
            _, sequence = roll(adapters, [query], [count])
            adapters.use(PSI)
            fed = torch.tensor([[*marker, *said]])
            states = theta.blocks.run_ids(fed, torch.ones_like(fed).bool(), sequence)
            said.append(int(theta.blocks.logits(states)[0, -1].argmax()))
        assert ids == [token for token in said if token != theta.eos_id]


@torch.no_grad()
@pytest.mark.parametrize("limit", [1, 2, 6])
@pytest.mark.parametrize("right", [(True, True, True), (False, True, False), (False, False, False), None])
def test_a_draft_changes_no_answer(
    theta: Theta, adapters: Adapters, right: tuple[bool, ...] | None, limit: int, monkeypatch: pytest.MonkeyPatch
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
    run_ids = Blocks.run_ids

    def watched(self: Blocks, ids_BT: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        passes.append(ids_BT.shape[1])
        return run_ids(self, ids_BT, *args, **kwargs)

    monkeypatch.setattr(Blocks, "run_ids", watched)
    found = decode(adapters, sequence, start, max_tokens=limit, draft_B=torch.tensor(draft))
    assert found == plain
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


def test_decoding_ends_where_a_row_is_done(theta: Theta, adapters: Adapters) -> None:
    start = [theta.encoder.answer_marker] * 3
    _, sequence = roll(adapters, QUERIES, COUNTS)
    free = decode(adapters, sequence, start, max_tokens=6).ids
    _, sequence = roll(adapters, QUERIES, COUNTS)
    found = decode(adapters, sequence, start, max_tokens=6, is_done=lambda ids: ids[:2] == free[1][:2])
    assert found.ids == [row[:2] if row[:2] == free[1][:2] else row for row in free]
    assert len(found.ids[1]) == 2 < len(free[1])


def test_gpt2_contemplates_up_to_its_last_position(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    adapters, most = shaken(theta, PHI), theta.blocks.num_positions
    assert most is not None
    with torch.no_grad():
        sequence, first = encode_query(adapters, [[5] * (most - 3), [6] * (most - 5)], layer=LAYER)
        tokens = contemplate(adapters, sequence.copy(), first, layer=LAYER, max_tokens=9)
        assert tokens.num_tokens_B.tolist() == [3, 5]
        end, chance = EndAfter([9, 9]), expecting(every=2)
        tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=9, is_end=end, chance=chance)
        assert tokens.num_tokens_B.tolist() == [3, 5]
        assert tokens.is_capped_B.tolist() == [True, True]
        sequence, first = encode_query(adapters, [[5] * most], layer=LAYER)
        with pytest.raises(UsageError, match="positions"):
            contemplate(adapters, sequence, first, layer=LAYER, max_tokens=9)


@torch.no_grad()
@pytest.mark.parametrize(
    ("looks", "generated"),
    [(lambda: None, 3), (lambda: expecting(every=1), 3), (lambda: expecting(every=99), 40)],
    ids=["reference", "all", "none"],
)
def test_rows_at_the_last_position_are_not_waited_for(make_theta: MakeTheta, looks: Looks, generated: int) -> None:
    theta = make_theta("gpt2")
    adapters, most = shaken(theta, PHI), theta.blocks.num_positions
    assert most is not None
    sequence, first = encode_query(adapters, [[5] * (most - 2), [6] * 4], layer=LAYER)
    is_end = EndAfter([99, 3])
    tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=40, is_end=is_end, chance=looks())
    assert tokens.num_tokens_B.tolist() == [2, 3]
    assert tokens.is_capped_B.tolist() == [True, False]
    assert sum(is_end.asked) == generated


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


def test_the_answer_loss_is_the_mean_log_likelihood_of_its_tokens(theta: Theta, adapters: Adapters) -> None:
    marker, answers = theta.encoder.answer_marker, [[21, 22, theta.eos_id], [23, theta.eos_id], [24, theta.eos_id]]
    _, sequence = roll(adapters, QUERIES, COUNTS)
    with torch.no_grad():
        found = answer_loss(adapters, sequence, [marker] * 3, answers)
    total, count = 0.0, 0
    for query, k, answer in zip(QUERIES, COUNTS, answers, strict=True):
        _, sequence = roll(adapters, [query], [k])
        adapters.use(PSI)
        fed = [*marker, *answer]
        with torch.no_grad():
            ids = torch.tensor([fed])
            states = theta.blocks.run_ids(ids, torch.ones_like(ids).bool(), sequence)
            log_p = theta.blocks.logits(states)[0].log_softmax(dim=-1)
        for offset, token in enumerate(answer):
            total -= log_p[len(marker) - 1 + offset, token].item()
            count += 1
    assert found.item() == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("trains_above", [True, False])
def test_the_answer_teaches_phi_above_the_autoregressive_layer_only(
    theta: Theta, adapters: Adapters, trains_above: bool
) -> None:
    tokens, _ = roll(adapters, QUERIES, COUNTS)
    adapters.train_only([*adapters.parameters(PHI), *adapters.parameters(PSI)])
    with torch.no_grad():
        sequence, _ = encode_query(adapters, QUERIES, layer=LAYER)
    replay(adapters, sequence, tokens.inputs_BKD, tokens.mask_BK, layer=LAYER, trains_above=trains_above)
    answers = [[21, theta.eos_id]] * 3
    answer_loss(adapters, sequence, [theta.encoder.answer_marker] * 3, answers).backward()
    taught = {name for name, p in adapters.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    above = {name for name in taught if f".{PHI}." in name}
    assert any(f".{PSI}." in name for name in taught)
    assert above <= set(adapters.parameters(PHI, layers=range(LAYER, theta.num_layers)))
    assert bool(above) == trains_above
