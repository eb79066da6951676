"""Training all layers of φ together against a version that runs one example and one token at a time."""

import random
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from conftest import MakeTheta, shaken
from torch import nn
from trainers import LAYER, fresh_queries, gradients, joint_training, phi_examples, seeded

from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training import phi_joint
from ccot_cli.models.training.checkpoints import save_checkpoint
from ccot_cli.models.training.end import label_ends
from ccot_cli.models.training.phi_joint import END_WEIGHT, generate
from ccot_cli.tensors.losses import scaled_errors
from ccot_cli.tensors.probes import fit_logistic


def slow_loss(
    adapters: Adapters, examples: list[GoldExample], is_gold: Callable[[int, int], bool], reader: str | None
) -> torch.Tensor:
    """Read the query and run the whole rollout again for every token of every example, every layer token by token."""
    theta, losses = adapters.theta, []
    for number, example in enumerate(examples):
        inputs, count = [], len(example.gold_JID) - 1
        for column in range(count):
            sequence, first_BD = encode_query(adapters, [example.query], layer=LAYER, adapter=reader)
            sequence.extend(torch.ones(1, 1 + len(inputs), dtype=torch.bool))
            adapters.use(PHI)
            entered = theta.blocks.enter(torch.stack([first_BD[0], *inputs])[None], sequence)
            states = torch.stack(theta.blocks.run_each(entered, 0, theta.num_layers, sequence))
            gold, own = example.gold_JID[column + 1, LAYER].float(), states[LAYER, 0, -1].detach()
            inputs.append(gold if is_gold(number, column) else own)
        gold = example.gold_JID[1:].transpose(0, 1)[LAYER:]
        distances = scaled_errors(states[LAYER:, 0], gold).sqrt()
        losses.append(2 * nn.functional.huber_loss(distances, torch.zeros_like(distances)))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("reader", [None, PHI])
@pytest.mark.parametrize("gold_fraction", [1.0, 0.0, 0.5])
def test_joint_loss_and_gradients_are_those_of_the_slow_version(
    theta: Theta, gold_fraction: float, reader: str | None
) -> None:
    examples, adapters = phi_examples(theta, 5), shaken(theta, PHI)
    parameters = adapters.parameters(PHI)
    adapters.train_only(parameters)
    queries = fresh_queries(adapters, examples, reader=reader)
    made = generate(adapters, examples, queries, range(5), layer=LAYER, gold_fraction=gold_fraction, seed="4")
    draws = [random.Random(f"4/{number}") for number in range(5)]
    drawn = [[draw.random() < gold_fraction for _ in range(made.mask_BK.shape[1])] for draw in draws]
    slow = slow_loss(adapters, examples, lambda number, column: drawn[number][column], reader)
    torch.testing.assert_close(made.loss(), slow, atol=1e-5, rtol=1e-4)
    ours = torch.autograd.grad(made.loss(), list(parameters.values()), allow_unused=True)
    theirs = torch.autograd.grad(slow, list(parameters.values()), allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("reader", [None, PHI])
@torch.no_grad()
def test_states_without_gradients_are_those_with_them(theta: Theta, reader: str | None) -> None:
    examples, adapters = phi_examples(theta, 5), shaken(theta, PHI)
    queries = fresh_queries(adapters, examples, reader=reader)
    found = generate(adapters, examples, queries, range(5), layer=LAYER)
    with torch.enable_grad():
        expected = generate(adapters, examples, queries, range(5), layer=LAYER)
    torch.testing.assert_close(found.errors(), expected.errors(), atol=1e-4, rtol=1e-3)


def test_without_own_rollouts_every_input_stays_gold(llama: Theta) -> None:
    training = joint_training(shaken(llama), phi_examples(llama, 8), taught_epochs=2, epochs=0)
    assert [training.gold_fraction for _ in training.steps()] == [1.0] * training.optimiser.num_steps
    assert training.optimiser.num_steps > 0


def test_a_phi_that_is_not_taught_is_never_fed_gold_states(llama: Theta) -> None:
    training = joint_training(shaken(llama, PHI), phi_examples(llama, 8), taught_epochs=0)
    assert [training.gold_fraction for _ in training.steps()] == [0.0] * training.optimiser.num_steps


def test_gold_inputs_give_way_to_own_ones(llama: Theta) -> None:
    training = joint_training(shaken(llama), phi_examples(llama, 8))
    fractions = [training.gold_fraction for _ in training.steps()]
    assert len(fractions) == 12
    assert fractions[2] == 1.0
    assert all(before >= after for before, after in pairwise(fractions))
    assert 0 < fractions[5] < 1
    assert fractions[8:] == [0.0] * 4


def test_joint_training_lowers_the_error_of_rollouts(llama: Theta) -> None:
    examples, adapters = phi_examples(llama, 12), shaken(llama)
    queries = fresh_queries(adapters, examples)
    with torch.no_grad():
        before = generate(adapters, examples, queries, range(12), layer=LAYER).loss()
    list(joint_training(adapters, examples, taught_epochs=5, epochs=15).steps())
    with torch.no_grad():
        after = generate(adapters, examples, queries, range(12), layer=LAYER).loss()
    assert after < 0.6 * before


def test_a_batch_has_the_loss_of_its_states_and_that_of_end(llama: Theta) -> None:
    training = joint_training(shaken(llama, PHI), examples := phi_examples(llama, 5), taught_epochs=1)
    training.end_1W.data = torch.randn(training.end_1W.shape, generator=seeded(0))
    made = generate(
        training.adapters, examples, training.queries, range(5), layer=LAYER, gold_fraction=training.gold_fraction
    )
    losses = []
    for states_KD, example in zip(made.states_BIKD[:, -1], examples, strict=True):
        last = len(example.next_K) - 1
        for column in range(last + 1):
            unit_D = states_KD[column] / states_KD[column].square().mean().sqrt()
            logit = training.end_1W[0, :-1] @ unit_D + training.end_1W[0, -1]
            losses.append(-nn.functional.logsigmoid(logit if column == last else -logit))
    expected = made.loss() + END_WEIGHT * torch.stack(losses).mean()
    torch.testing.assert_close(training.part_loss(range(5), range(5)), expected, atol=1e-5, rtol=1e-4)


def test_joint_training_teaches_phi_to_show_its_last_token(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for weight in (0.0, END_WEIGHT):
        monkeypatch.setattr(phi_joint, "END_WEIGHT", weight)
        theta = make_theta("llama")
        examples, adapters = phi_examples(theta, 24), shaken(theta)
        list(joint_training(adapters, examples, taught_epochs=2, epochs=10).steps())
        with torch.no_grad():
            made = generate(adapters, examples, fresh_queries(adapters, examples), range(24), layer=LAYER)
        counts = [len(example.next_K) for example in examples]
        last_MD, is_last_M = label_ends(made.states_BIKD[:, -1].unbind(), counts)
        rule = fit_logistic(last_MD, is_last_M, penalty=0.1 * len(last_MD))
        losses.append(float(nn.functional.binary_cross_entropy_with_logits(rule.logits(last_MD), is_last_M.float())))
    assert losses[1] < 0.9 * losses[0]


def test_in_bfloat16_phi_learns_what_it_learns_in_float32(make_theta: MakeTheta) -> None:
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        theta = make_theta("llama")
        examples = phi_examples(theta, 12, dtype=torch.bfloat16)  # as they are stored
        theta.model.to(dtype)
        training = joint_training(shaken(theta), examples, epochs=6)
        assert training.part_loss([0, 1], [0, 1]).dtype == torch.float32
        losses.append(list(training.steps()))
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert sum(losses[1][-6:]) < 0.7 * sum(losses[1][:6])


def test_a_resumed_joint_training_ends_in_the_same_bits(make_theta: MakeTheta, tmp_path: Path) -> None:
    states = []
    for is_interrupted in (False, True):
        theta = make_theta("llama")
        adapters, examples = shaken(theta), phi_examples(theta, 9)
        training = joint_training(adapters, examples)
        if is_interrupted:
            list(islice(training.steps(), 8))
            save_checkpoint(tmp_path / "checkpoint.safetensors", training.optimiser.state())
            theta = make_theta("llama")
            adapters = shaken(theta)
            training = joint_training(adapters, examples)
            training.optimiser.resume(tmp_path / "checkpoint.safetensors")
        list(training.steps())
        states.append(adapters.state(PHI))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_parts_of_a_batch_add_up_to_its_loss_and_gradient(llama: Theta) -> None:
    # In the middle of its weaning: some inputs are gold, some φ's own.
    training = joint_training(shaken(llama, PHI), phi_examples(llama, 7), taught_epochs=1, batch_size=7)
    training.optimiser.step_count = 1
    assert 0 < training.gold_fraction < 1
    loss, expected = gradients(training, [[3, 0, 5, 1, 6]])
    parts, found = gradients(training, [[3], [0, 5], [1, 6]])
    assert parts == pytest.approx(loss, rel=1e-5)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-4)
    assert sum(float(each.norm()) for each in expected) > 0
