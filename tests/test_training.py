"""Training of φ, ψ and END against slow, obvious versions of themselves."""

import random
from itertools import islice
from pathlib import Path

import pytest
import torch
from conftest import MakeTheta, shaken
from safetensors.torch import save_file
from torch import nn

from ccot_cli.data.batches import bucketed
from ccot_cli.data.problems import Problem, split_solution
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.word_problems import generate
from ccot_cli.errors import DivergedError
from ccot_cli.models.adapters import PHI, PSI, Adapters
from ccot_cli.models.end import End, fit_end
from ccot_cli.models.gold import gold_states, plan_batches
from ccot_cli.models.layerwise import PhiExample, train_layerwise
from ccot_cli.models.optimise import MAX_BAD_STEPS, Optimiser
from ccot_cli.models.phi import encode_query
from ccot_cli.models.psi_training import PsiExample, PsiTraining, judge_end, last_states, roll_out
from ccot_cli.models.theta import Theta
from ccot_cli.tensors.losses import scaled_mse

LAYER = 2


def encoded_problems(theta: Theta, count: int) -> list[EncodedProblem]:
    problems = []
    for number, problem in enumerate(islice(generate("train", max_steps=3), count)):
        chain, answer = split_solution(problem.solution)
        problems.append(theta.encoder.problem(Problem(str(number), problem.question, chain, answer)))
    return problems


def phi_examples(theta: Theta, count: int, *, dtype: torch.dtype = torch.float32) -> list[PhiExample]:
    """Examples of 2 to 4 gold tokens, from the model's own states."""
    problems = encoded_problems(theta, count)
    states = dict(gold_states(theta, problems, indices=range(theta.num_layers + 1), batch_tokens=4096, dtype=dtype))
    return [PhiExample(problem.query, states[number][: 3 + number % 3]) for number, problem in enumerate(problems)]


# Gold states


def test_gold_states_are_those_of_the_whole_solution_at_every_index(theta: Theta) -> None:
    problems = encoded_problems(theta, 3)
    found = dict(
        gold_states(theta, problems, indices=range(theta.num_layers + 1), batch_tokens=300, dtype=torch.float32)
    )
    for number, problem in enumerate(problems):
        ids = [*problem.query, *problem.chain, *theta.encoder.answer_marker, *problem.answer]
        hidden = theta.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
        start = len(problem.query) - 1
        for index in range(theta.num_layers):  # transformers' last index is after the norm
            expected = hidden[index][0, start : start + 1 + len(problem.chain)]
            torch.testing.assert_close(found[number][:, index], expected)


def test_two_passes_over_gold_states_give_the_same_bits(llama: Theta) -> None:
    problems = encoded_problems(llama, 5)
    every = dict(gold_states(llama, problems, indices=range(5), batch_tokens=400, dtype=torch.bfloat16))
    one = dict(gold_states(llama, problems, indices=[3], batch_tokens=400, dtype=torch.bfloat16))
    rest = dict(gold_states(llama, problems, indices=range(5), batch_tokens=400, dtype=torch.bfloat16, skip={0, 1}))
    assert all(torch.equal(every[number][:, 3:4], one[number]) for number in range(5))
    assert sorted(rest) == [2, 3, 4]
    assert all(torch.equal(every[number], rest[number]) for number in rest)


def test_batches_hold_what_fits_and_every_problem_once() -> None:
    lengths = [5, 100, 7, 8, 30, 6]
    batches = plan_batches(lengths, batch_tokens=32)
    assert sorted(number for batch in batches for number in batch) == list(range(6))
    assert all(len(batch) == 1 or len(batch) * max(lengths[n] for n in batch) <= 32 for batch in batches)


def test_buckets_hold_every_item_once_and_little_padding() -> None:
    lengths = [random.Random(0).randrange(100) for _ in range(512)]
    batches = bucketed(lengths, batch_size=32, shuffler=random.Random(1))
    assert sorted(number for batch in batches for number in batch) == list(range(512))
    spreads = [max(lengths[n] for n in batch) - min(lengths[n] for n in batch) for batch in batches]
    assert max(spreads) < 20


# φ


def train(theta: Theta, examples: list[PhiExample], *, epochs: int = 2) -> tuple[Adapters, list[float]]:
    adapters = shaken(theta)
    reports = train_layerwise(
        theta,
        adapters,
        examples[:-2],
        examples[-2:],
        layer=LAYER,
        epochs=epochs,
        batch_size=3,
        learning_rate=1e-2,
        seed=5,
    )
    return adapters, [report.train_loss for report in reports]


def whole_model_loss(theta: Theta, adapters: Adapters, batch: list[PhiExample], index: int) -> torch.Tensor:
    """Run everything anew: the query under θ, then φ's first `index` layers on all tokens."""
    sequence, _ = encode_query(theta, adapters, [example.query for example in batch], layer=LAYER)
    gold = nn.utils.rnn.pad_sequence([example.gold_JID for example in batch], batch_first=True)
    counts = torch.tensor([len(example.gold_JID) - 1 for example in batch])
    mask = torch.arange(int(counts.max()))[None] < counts[:, None]
    sequence.extend(mask)
    adapters.use(PHI)
    state = theta.blocks.run(theta.blocks.enter(gold[:, :-1, LAYER], sequence), 0, index, sequence)
    return scaled_mse(state, gold[:, 1:, index], mask)


def test_streamed_layer_by_layer_training_equals_the_whole_model_version(make_theta: MakeTheta, theta: Theta) -> None:
    examples = phi_examples(theta, 11)
    streamed, _ = train(theta, examples)
    other = make_theta(theta.name)
    adapters = shaken(other)
    groups = bucketed([len(example.query) for example in examples[:-2]], batch_size=3, shuffler=random.Random(5))
    for index in range(1, other.num_layers + 1):
        names = adapters.names(PHI, layers=range(index - 1, index))
        adapters.train_only(names)
        parameters = {name: p for name, p in adapters.named_parameters() if name in names}
        optimiser = Optimiser(parameters, learning_rate=1e-2, num_steps=2 * len(groups))
        shuffler = random.Random(f"5/{index}")
        for _ in range(2):
            for group in shuffler.sample(groups, len(groups)):
                optimiser.step(whole_model_loss(other, adapters, [examples[n] for n in group], index))
    expected = adapters.state(PHI)
    for name, tensor in streamed.state(PHI).items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-4, rtol=2e-3)


def test_training_a_layer_changes_that_layers_phi_alone(make_theta: MakeTheta, llama: Theta) -> None:
    examples = phi_examples(llama, 8)
    adapters = shaken(llama)

    def snapshot() -> dict[str, torch.Tensor]:
        return {name: parameter.detach().clone() for name, parameter in adapters.named_parameters()}

    before = snapshot()
    training = train_layerwise(
        llama, adapters, examples, examples[:2], layer=LAYER, epochs=1, batch_size=4, learning_rate=1e-2, seed=5
    )
    for layer, _ in enumerate(training):
        after = snapshot()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed
        assert changed <= set(adapters.names(PHI, layers=range(layer, layer + 1)))
        before = after


def test_training_phi_lowers_every_layers_loss(llama: Theta) -> None:
    examples = phi_examples(llama, 14)
    adapters = shaken(llama)
    reports = train_layerwise(
        llama, adapters, examples, examples, layer=LAYER, epochs=20, batch_size=7, learning_rate=1e-2, seed=5
    )
    for report in reports:
        assert report.validation_loss < 0.85 * report.untrained_loss


def test_layers_that_an_earlier_run_trained_are_passed_through(make_theta: MakeTheta) -> None:
    first, second = make_theta("llama"), make_theta("llama")
    examples = phi_examples(first, 8)
    options = {"layer": LAYER, "epochs": 1, "batch_size": 4, "learning_rate": 1e-2, "seed": 5}
    whole, resumed = shaken(first), shaken(second)
    list(train_layerwise(first, whole, examples, examples[:2], **options))  # type: ignore[arg-type]
    list(islice(train_layerwise(second, resumed, examples, examples[:2], **options), 2))  # type: ignore[arg-type]
    list(train_layerwise(second, resumed, examples, examples[:2], num_trained=2, **options))  # type: ignore[arg-type]
    assert all(torch.equal(tensor, whole.state(PHI)[name]) for name, tensor in resumed.state(PHI).items())


# ψ


def psi_training(theta: Theta, adapters: Adapters, examples: list[PsiExample]) -> PsiTraining:
    rolled = dict(roll_out(theta, adapters, examples, layer=LAYER, batch_size=4))
    return PsiTraining(
        theta,
        adapters,
        examples,
        [rolled[number] for number in range(len(examples))],
        layer=LAYER,
        trains_above=True,
        epochs=6,
        batch_size=3,
        learning_rate=5e-2,
        seed=1,
    )


def psi_examples(theta: Theta) -> list[PsiExample]:
    marker = theta.encoder.answer_marker
    problems = encoded_problems(theta, 8)
    return [PsiExample(p.query, marker, p.answer, 1 + number % 3) for number, p in enumerate(problems)]


def test_psi_learns_the_answers_and_the_rollouts_stay_constant(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    examples = psi_examples(llama)
    training = psi_training(llama, adapters, examples)
    losses = list(training.steps())
    assert len(losses) == 18
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    fresh = dict(roll_out(llama, adapters, examples, layer=LAYER, batch_size=4))
    assert all(torch.equal(fresh[number], kept) for number, kept in enumerate(training.rollouts))


def test_without_contemplation_tokens_psi_is_plain_fine_tuning(theta: Theta) -> None:
    adapters = shaken(theta, PSI)
    marker = theta.encoder.answer_marker
    examples = [PsiExample(p.query, marker, p.answer, 0) for p in encoded_problems(theta, 1)]
    options = {"epochs": 1, "batch_size": 1, "learning_rate": 1e-2, "seed": 0}
    training = PsiTraining(theta, adapters, examples, [], layer=LAYER, trains_above=True, **options)  # type: ignore[arg-type]
    found = training.loss([0])
    adapters.use(PSI)
    ids = torch.tensor([[*examples[0].query, *marker, *examples[0].answer]])
    labels = ids.clone()
    labels[:, : len(examples[0].query) + len(marker)] = -100
    expected = theta.model(input_ids=ids, labels=labels).loss
    torch.testing.assert_close(found, expected)
    names = adapters.names(PSI)
    for ours, theirs in zip(
        *(
            torch.autograd.grad(loss, [dict(adapters.named_parameters())[name] for name in names])
            for loss in (found, expected)
        ),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


def test_a_resumed_psi_training_ends_in_the_same_bits(make_theta: MakeTheta, tmp_path: Path) -> None:
    states = []
    for is_interrupted in (False, True):
        theta = make_theta("llama")
        adapters = shaken(theta, PHI)
        training = psi_training(theta, adapters, psi_examples(theta))
        if is_interrupted:
            list(islice(training.steps(), 8))
            save_file(training.optimiser.state(), tmp_path / "checkpoint.safetensors")
            theta = make_theta("llama")
            adapters = shaken(theta, PHI)
            training = psi_training(theta, adapters, psi_examples(theta))
            training.optimiser.resume(tmp_path / "checkpoint.safetensors")
        list(training.steps())
        states.append({**adapters.state(PSI), **adapters.state(PHI)})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_last_states_label_the_last_of_each_problems_tokens(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    examples = psi_examples(llama)
    rolled = dict(roll_out(llama, adapters, examples, layer=LAYER, batch_size=4))
    rollouts = [rolled[number] for number in range(len(examples))]
    states, labels = last_states(llama, adapters, examples, rollouts, layer=LAYER, batch_size=4)
    assert len(states) == sum(example.num_tokens for example in examples)
    assert int(labels.sum()) == len(examples)


# END


def test_end_finds_a_plane_that_separates() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(400, 6, generator=generator) * torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0, 100.0]) + 5
    labels = (states[:, 1] - 5) / 10 + (states[:, 2] - 5) / 0.1 > 0.5
    end = fit_end(states, labels)
    report = judge_end(end, states, labels)
    assert report.accuracy > 0.98
    assert report.true_ends + report.missed_ends == int(labels.sum())


def test_end_survives_saving(tmp_path: Path) -> None:
    end = End(torch.tensor([1.0, -2.0]), torch.tensor(0.5))
    end.save(tmp_path)
    states = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    assert End.load(tmp_path, 2)(states).tolist() == end(states).tolist() == [[True, False]]


# The optimiser


def test_a_loss_that_is_not_finite_changes_nothing_and_several_in_a_row_stop_training() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimiser = Optimiser({"weight": weight}, learning_rate=0.1, num_steps=20)
    optimiser.step(weight.sum() * float("nan"))
    assert weight.tolist() == [1.0, 1.0, 1.0]
    optimiser.step(weight.sum())
    assert weight[0] < 1
    for _ in range(MAX_BAD_STEPS - 1):
        optimiser.step(weight.sum() * float("inf"))
    with pytest.raises(DivergedError):
        optimiser.step(weight.sum() * float("inf"))


def test_the_query_is_never_taught(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    training = psi_training(llama, adapters, psi_examples(llama))
    training.loss([0, 1]).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for name, parameter in adapters.named_parameters() if "lora_" not in name)
