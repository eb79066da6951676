"""Contemplation tokens against Algorithm 2 run without reuse."""

from itertools import count as counting

import pytest
import torch
from conftest import MakeTheta, shaken
from rollouts import COUNTS, LAYER, QUERIES, SCHEDULES, EndAfter, MakeChance, expecting, roll
from torch import Tensor

from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.phi import contemplate, replay
from ccot_cli.models.decoding.query import encode_query


@torch.no_grad()
def slow_rollout(adapters: Adapters, query: list[int], count: int) -> list[list[Tensor]]:
    """Run the query under θ and all tokens under φ again for every token, full depth.

    Returns each token's states at every index.
    """
    theta = adapters.theta
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


@SCHEDULES
def test_cached_batched_half_depth_rollout_equals_the_algorithm_run_anew_for_every_token(
    adapters: Adapters, make_chance: MakeChance
) -> None:
    with torch.no_grad():
        sequence, first = encode_query(adapters, QUERIES, layer=LAYER)
        tokens = contemplate(
            adapters, sequence, first, layer=LAYER, max_tokens=9, is_end=EndAfter(COUNTS), chance=make_chance()
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


def test_a_finished_rollout_replayed_in_one_pass_reproduces_every_token(adapters: Adapters) -> None:
    tokens, _ = roll(adapters, QUERIES, COUNTS)
    sequence, _ = encode_query(adapters, QUERIES, layer=LAYER)
    lower, last = replay(adapters, sequence, tokens.inputs_BKD, tokens.mask_BK, layer=LAYER)
    torch.testing.assert_close(last[tokens.mask_BK], tokens.last_BKD[tokens.mask_BK])
    fed_next = tokens.mask_BK[:, 1:]
    torch.testing.assert_close(lower[:, :-1][fed_next], tokens.inputs_BKD[:, 1:][fed_next])


@torch.no_grad()
def test_no_token_is_generated_after_an_end_that_was_predicted(theta: Theta, adapters: Adapters) -> None:
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


@SCHEDULES
def test_end_stops_each_row_at_its_first_end_wherever_it_is_asked(adapters: Adapters, make_chance: MakeChance) -> None:
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
        stopped = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=9, is_end=is_end, chance=make_chance())
    assert stopped.num_tokens_B.tolist() == [3, 1, 9]
    assert stopped.is_capped_B.tolist() == [False, False, True]
    assert sequence.mask_BS.sum(dim=1).tolist() == [6 + 3, 3 + 1, 5 + 9]


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
    ("make_chance", "generated"),
    [(lambda: None, 3), (lambda: expecting(every=1), 3), (lambda: expecting(every=99), 40)],
    ids=["reference", "all", "none"],
)
def test_rows_at_the_last_position_are_not_waited_for(
    make_theta: MakeTheta, make_chance: MakeChance, generated: int
) -> None:
    theta = make_theta("gpt2")
    adapters, most = shaken(theta, PHI), theta.blocks.num_positions
    assert most is not None
    sequence, first = encode_query(adapters, [[5] * (most - 2), [6] * 4], layer=LAYER)
    is_end = EndAfter([99, 3])
    tokens = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=40, is_end=is_end, chance=make_chance())
    assert tokens.num_tokens_B.tolist() == [2, 3]
    assert tokens.is_capped_B.tolist() == [True, False]
    assert sum(is_end.asked) == generated
