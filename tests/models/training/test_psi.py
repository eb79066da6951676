"""Training ψ: the answer's loss, what it teaches, and END beside it."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from conftest import MakeTheta, encoded_problems, shaken
from rollouts import COUNTS, LAYER, QUERIES, roll
from torch import Tensor
from trainers import gradients, psi_examples, psi_training, rolled_out, seeded

from ccot_cli.config import TrainPsiConfig
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.phi import replay
from ccot_cli.models.decoding.psi import decode
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.training.checkpoints import save_checkpoint
from ccot_cli.models.training.contexts import QueryContext
from ccot_cli.models.training.end import end_loss, label_ends
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import END_WEIGHT, HeldOut, PsiTraining, answer_loss

# The answer's loss


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
    answer_loss(adapters, sequence, [theta.encoder.answer_marker] * 3, answers).backward()  # type: ignore[no-untyped-call]
    taught = {name for name, p in adapters.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    above = {name for name in taught if f".{PHI}." in name}
    assert any(f".{PSI}." in name for name in taught)
    assert above <= set(adapters.parameters(PHI, layers=range(LAYER, theta.num_layers)))
    assert bool(above) == trains_above


def test_without_contemplation_tokens_psi_is_plain_fine_tuning(theta: Theta) -> None:
    adapters = shaken(theta, PSI)
    marker = theta.encoder.answer_marker
    examples = [PsiExample(each.query, marker, each.answer, 0) for each in encoded_problems(theta, 1)]
    training = PsiTraining(adapters, examples, QueryContext(adapters), TrainPsiConfig(epochs=1, batch_size=1))
    found = training.part_loss([0], [0])
    adapters.use(PSI)
    ids = torch.tensor([[*examples[0].query, *marker, *examples[0].answer]])
    labels = ids.clone()
    labels[:, : len(examples[0].query) + len(marker)] = -100
    expected = theta.model(input_ids=ids, labels=labels).loss
    torch.testing.assert_close(found, expected)
    weights = list(adapters.parameters(PSI).values())
    for ours, theirs in zip(*(torch.autograd.grad(loss, weights) for loss in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


# Training


def test_psi_learns_the_answers_and_the_rollouts_stay_constant(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    examples = psi_examples(llama)
    training = psi_training(adapters, examples)
    before = rolled_out(adapters, examples)
    losses = list(training.steps())
    assert len(losses) == 18
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    after = rolled_out(adapters, examples)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_phi_reads_the_query_above_l_with_the_weights_that_the_answer_teaches(theta: Theta) -> None:
    adapters = shaken(theta, PHI, PSI)
    examples = psi_examples(theta)[:1]
    training = psi_training(adapters, examples, reader=PHI)
    training.end_1W.data.normal_(generator=seeded(2))
    parameters = {name: each for name, each in training.optimiser.parameters.items() if name != "end"}
    found = torch.autograd.grad(training.part_loss([0], [0]), list(parameters.values()), allow_unused=True)
    # The same in one pass after the other, with every weight of φ free to learn; those up to l must not.
    adapters.train_only(adapters.parameters(PHI) | adapters.parameters(PSI))
    [example], [inputs_KD] = examples, rolled_out(adapters, examples, reader=PHI)
    sequence, _ = encode_query(adapters, [example.query], layer=LAYER, adapter=PHI)
    sequence.extend(torch.ones(1, len(inputs_KD), dtype=torch.bool))
    last_BKD = theta.blocks.run(theta.blocks.enter(inputs_KD[None], sequence), 0, theta.num_layers, sequence)
    loss = answer_loss(adapters, sequence, [example.start], [example.answer])
    loss = loss + END_WEIGHT * end_loss(training.end_1W, *label_ends(last_BKD.unbind(), [example.num_tokens]))
    expected = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    taught = set()
    for name, ours, theirs in zip(parameters, found, expected, strict=True):
        assert (ours is None) == (theirs is None), name
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)
            taught.add(name)
    assert taught >= set(adapters.parameters(PSI))
    assert any(f".{PHI}." in name for name in taught)


def test_in_bfloat16_psi_learns_what_it_learns_in_float32(make_theta: MakeTheta) -> None:
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        theta = make_theta("llama")
        theta.model.to(dtype)
        adapters = shaken(theta, PHI)
        alone = psi_training(adapters, psi_examples(theta), trains_above=False)
        assert alone.part_loss([0, 1], [0, 1]).dtype == torch.float32
        training = psi_training(adapters, psi_examples(theta), learning_rate=2e-2)
        losses.append(list(training.steps()))
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert sum(losses[1][-3:]) < 0.9 * sum(losses[1][:3])


def test_a_resumed_psi_training_ends_in_the_same_bits(make_theta: MakeTheta, tmp_path: Path) -> None:
    states = []
    for is_interrupted in (False, True):
        theta = make_theta("llama")
        adapters = shaken(theta, PHI)
        training = psi_training(adapters, psi_examples(theta))
        if is_interrupted:
            list(islice(training.steps(), 8))
            save_checkpoint(tmp_path / "checkpoint.safetensors", training.optimiser.state())
            theta = make_theta("llama")
            adapters = shaken(theta, PHI)
            training = psi_training(adapters, psi_examples(theta))
            training.optimiser.resume(tmp_path / "checkpoint.safetensors")
        list(training.steps())
        states.append({**adapters.state(PSI), **adapters.state(PHI)})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_parts_of_a_batch_add_up_to_its_loss_and_gradient(llama: Theta) -> None:
    adapters, examples = shaken(llama, PHI, PSI), psi_examples(llama)
    longest = [replace(each, num_tokens=each.num_tokens + 1) for each in examples]
    learned = [
        replace(each, num_tokens=each.num_tokens + number % 2, num_before_end=each.num_tokens)
        for number, each in enumerate(examples)
    ]
    training = psi_training(adapters, longest, learned=learned)
    training.end_1W.data.normal_(generator=seeded(2))
    loss, expected = gradients(training, [[3, 0, 5, 1, 6]])
    parts, found = gradients(training, [[3], [0, 5], [1, 6]])
    assert parts == pytest.approx(loss, rel=1e-5)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-4)
    assert sum(float(each.norm()) for each in expected) > 0


# Judging


@pytest.mark.parametrize("batch_size", [3, 8])
def test_psi_is_judged_by_what_it_would_write_and_by_its_loss(llama: Theta, batch_size: int) -> None:
    adapters, examples = shaken(llama, PHI, PSI), psi_examples(llama)
    training = psi_training(adapters, examples, batch_size=batch_size)
    every = range(len(examples))
    without_end = float(psi_training(adapters, examples, trains_above=False).part_loss(every, every).detach())
    assert training.judge(HeldOut(examples, training.context)).loss == pytest.approx(without_end, rel=1e-5)
    # The answers of half of the examples are replaced by what ψ writes.
    written = []
    for number, example in enumerate(examples):
        sequence = training.context.read([number], [example]).sequence
        text = decode(adapters, sequence, [example.start], max_tokens=5, may_end=False)
        written.append(replace(example, answer=text.ids[0]) if number % 2 else example)
    assert training.judge(HeldOut(written, training.context)).right == 0.5
    longer = [replace(each, answer=[*each.answer, llama.pad_id]) for each in written]
    assert training.judge(HeldOut(longer, training.context)).right == 0


# END beside ψ


def test_psi_reads_as_many_tokens_as_an_example_says_and_end_learns_from_those_up_to_k(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    longest = [replace(example, num_tokens=3) for example in psi_examples(llama)[:3]]
    weights = torch.randn(1, llama.model.config.hidden_size + 1, generator=seeded(2))
    for read, last in ((2, 2), (3, 2), (3, 1)):
        learned = [replace(example, num_tokens=read, num_before_end=last) for example in longest]
        training = psi_training(adapters, longest, learned=learned)
        training.end_1W.data.copy_(weights)
        found = float(training.part_loss([0, 1, 2], [0, 1, 2]).detach())
        # Rollouts of no more tokens than that, and the two losses one by one.
        cut = psi_training(adapters, [replace(example, num_tokens=read) for example in longest])
        seen = cut.context.read([0, 1, 2], learned)
        assert seen.last_BKD is not None
        start, answers = [each.start for each in longest], [each.answer for each in longest]
        answered = answer_loss(adapters, seen.sequence, start, answers)
        labels = torch.tensor([column == last for column in range(1, 1 + last)] * 3)
        ended = end_loss(weights, seen.last_BKD[:, :last].flatten(0, 1), labels)
        assert float(ended.detach()) > 0.1
        assert found == pytest.approx(float((answered + 0.5 * ended).detach()), rel=1e-5)


def test_end_is_taught_to_phi_if_phi_learns_with_psi(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    examples = psi_examples(llama)
    for trains_above in (False, True):
        training = psi_training(adapters, examples, trains_above=trains_above)
        assert ("end" in training.optimiser.parameters) == trains_above
    # Its weights start at zero; once they are not, the last layer of φ learns from it too.
    training.end_1W.data.normal_(generator=seeded(2))
    training.part_loss([0, 1, 2], [0, 1, 2]).backward()  # type: ignore[no-untyped-call]
    last = adapters.parameters(PHI, layers=range(llama.num_layers - 1, llama.num_layers))
    assert all(parameter.grad is not None for name, parameter in last.items() if "down_proj" in name)


@pytest.mark.parametrize("merges", [True, False])
def test_gradient_checkpointing_changes_no_gradient_and_keeps_less(theta: Theta, merges: bool) -> None:
    examples, adapters = psi_examples(theta), shaken(theta, PHI, PSI)
    adapters.merges = merges
    found, kept = [], []

    def keep(saved: Tensor) -> Tensor:
        kept[-1] += saved.nbytes
        return saved

    for recomputes in (False, True):
        training = psi_training(adapters, examples, gradient_checkpointing=recomputes)
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
            # φ ran before ψ: its layers have to be computed again with its own weights.
            found.append(gradients(training, [[0, 1, 2]]))
    assert found[1][0] == pytest.approx(found[0][0])
    for expected, actual in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)
    assert kept[1] < 0.7 * kept[0]  # the rest is the head, and what enters the layers
    assert training.context.trained
