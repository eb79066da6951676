"""What ψ reads before it answers: rollouts, queries under θ, gold states."""

import torch
from conftest import shaken
from trainers import LAYER, fresh_queries, phi_examples, psi_examples, psi_training, rolled_out

from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.training.contexts import GoldContext, RolloutContext, token_states
from ccot_cli.models.training.phi_joint import generate


def test_token_states_are_those_of_each_problems_own_rollout(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    examples = psi_examples(llama)
    rollouts, queries = rolled_out(adapters, examples), fresh_queries(adapters, examples)
    lower, last = token_states(RolloutContext(adapters, queries, rollouts, LAYER), examples, batch_size=4)
    for example, low, found in zip(examples, lower, last, strict=True):
        sequence, first = encode_query(adapters, [example.query], layer=LAYER)
        alone = contemplate(adapters, sequence, first, layer=LAYER, max_tokens=example.num_tokens)
        torch.testing.assert_close(found, alone.last_BKD[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(low[:-1], alone.inputs_BKD[0, 1:], atol=1e-5, rtol=1e-4)
        assert len(low) == example.num_tokens


def test_the_query_is_read_by_theta_alone_and_never_taught(llama: Theta) -> None:
    examples = psi_examples(llama)[:2]
    plain, _ = encode_query(Adapters(llama), [example.query for example in examples], layer=LAYER)
    columns = plain.mask_BS.shape[1]
    expected = [plain.keys_values(layer) for layer in range(llama.num_layers)]
    adapters = shaken(llama, PHI, PSI)
    sequence = psi_training(adapters, examples).context.read([0, 1], examples).sequence
    for layer, theirs in enumerate(expected):
        for ours, theta_s in zip(sequence.keys_values(layer), theirs, strict=True):
            torch.testing.assert_close(ours[:, :, :columns], theta_s, atol=1e-5, rtol=1e-4)
    alone = fresh_queries(adapters, examples).sequence([0, 1])
    assert not any(each.requires_grad for layer in range(llama.num_layers) for each in alone.keys_values(layer))


def test_gold_states_in_the_tokens_place_leave_the_keys_and_values_of_those_states(theta: Theta) -> None:
    adapters = shaken(theta, PHI)
    examples = phi_examples(theta, 3)
    queries = fresh_queries(adapters, examples)
    # Whatever θ is fed, its states, taken for gold, must leave what they left when it ran.
    with torch.no_grad():
        made = generate(adapters, examples, queries, range(3), layer=LAYER)
        sequence, first = encode_query(adapters, [example.query for example in examples], layer=LAYER)
        adapters.use(None)
        sequence.extend(made.mask_BK)
        inputs = torch.cat([first[:, None], made.states_BIKD[:, 0, :-1]], dim=1)
        states = theta.blocks.run_each(theta.blocks.enter(inputs, sequence), 0, theta.num_layers, sequence)
    generated = torch.stack(states, dim=2)
    rows = [
        torch.cat([torch.zeros_like(each[:1]), each])[: len(example.gold_JID)]
        for each, example in zip(generated, examples, strict=True)
    ]
    adapters.use(PHI)
    found = GoldContext(adapters, queries, rows).read(range(3), []).sequence
    assert torch.equal(found.mask_BS, sequence.mask_BS)
    real_BHSC = sequence.mask_BS[:, None, :, None]
    for layer in range(theta.num_layers):
        for ours, theirs in zip(found.keys_values(layer), sequence.keys_values(layer), strict=True):
            torch.testing.assert_close(ours * real_BHSC, theirs * real_BHSC, atol=2e-4, rtol=1e-3)
