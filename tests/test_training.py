"""Training of φ, ψ and END against slow, obvious versions of themselves."""

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MakeTheta, Resting, encoded_problems, shaken
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ccot_cli.data.batches import bucketed, plan_batches
from ccot_cli.errors import CorruptError, DivergedError, ResourceError
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.selection.gold import GoldExample, gold_states
from ccot_cli.models.selection.predictive import surprisals
from ccot_cli.models.training.contexts import Context, GoldContext, QueryContext, RolloutContext, roll_out, token_states
from ccot_cli.models.training.end import MOST_EXTRA, LateEnds, end_loss, fit_end, judge_end, label_ends
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.optimiser import MAX_BAD_STEPS, Muon, Optimiser, orthogonalise
from ccot_cli.models.training.phi_joint import JointTraining
from ccot_cli.models.training.phi_joint import generate as generate_states
from ccot_cli.models.training.phi_layerwise import rest_bytes, train_layerwise
from ccot_cli.models.training.phi_report import PhiJudge
from ccot_cli.models.training.psi import END_WEIGHT, PsiTraining, UnrolledContext, answer_loss
from ccot_cli.models.training.queries import FreshQueries, KeptQueries, fill_queries, num_bytes
from ccot_cli.names import OptimiserName
from ccot_cli.tensors.losses import scaled_errors, scaled_mse
from ccot_cli.tensors.probes import Logistic, fit_logistic

LAYER = 2


def phi_examples(theta: Theta, count: int, *, dtype: torch.dtype = torch.float32) -> list[GoldExample]:
    """Examples of 2 to 4 gold tokens, from the model's own states."""
    problems = encoded_problems(theta, count)
    states = dict(gold_states(theta, problems, indices=range(theta.num_layers + 1), batch_tokens=4096, dtype=dtype))
    counts = [2 + number % 3 for number in range(count)]
    return [
        GoldExample(problem.query, states[number][: 1 + kept], torch.tensor(problem.chain[1 : 1 + kept]))
        for (number, problem), kept in zip(enumerate(problems), counts, strict=True)
    ]


def descend(optimiser: Optimiser, loss: Tensor) -> float:
    """One step down a loss that is there already."""
    return optimiser.step_on([0], lambda part, whole: loss)


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


def train(theta: Theta, examples: list[GoldExample], *, epochs: int = 2) -> tuple[Adapters, list[float]]:
    adapters = shaken(theta)
    reports = train_layerwise(
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


def whole_model_loss(theta: Theta, adapters: Adapters, batch: list[GoldExample], index: int) -> torch.Tensor:
    """Run everything anew: the query under θ, then φ's first `index` layers on all tokens."""
    sequence, _ = encode_query(adapters, [example.query for example in batch], layer=LAYER)
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
        names = adapters.parameters(PHI, layers=range(index - 1, index))
        adapters.train_only(names)
        parameters = {name: p for name, p in adapters.named_parameters() if name in names}
        optimiser = Optimiser(parameters, learning_rate=1e-2, num_steps=2 * len(groups))
        shuffler = random.Random(f"5/{index}")
        for _ in range(2):
            for group in shuffler.sample(groups, len(groups)):
                descend(optimiser, whole_model_loss(other, adapters, [examples[n] for n in group], index))
    expected = adapters.state(PHI)
    for name, tensor in streamed.state(PHI).items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-4, rtol=2e-3)


def test_streamed_training_needs_one_layer_on_the_device(
    make_theta: MakeTheta, theta: Theta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccot_cli.models.base.adapters.MOST_MERGED_BYTES", 0)  # a layer that rests is never merged
    examples, other = phi_examples(theta, 11), make_theta(theta.name)
    resting = Resting(other)
    expected, expected_losses = train(theta, examples)
    found, losses = train(other, examples)
    assert losses == expected_losses
    assert (resting.most_away, resting.num_away) == (1, 0)
    # φ's matrices have come home with what they learned, θ's as they were.
    one, two = expected.theta.model.state_dict(), found.theta.model.state_dict()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


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
        assert changed <= set(adapters.parameters(PHI, layers=range(layer, layer + 1)))
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


# φ, all layers together


def slow_joint_loss(
    theta: Theta, adapters: Adapters, examples: list[GoldExample], is_gold: Callable[[int, int], bool], *, through: bool
) -> torch.Tensor:
    """One example at a time, the whole rollout run anew for every token, every layer token by token."""
    losses = []
    for number, example in enumerate(examples):
        inputs, count = [example.gold_JID[0, LAYER].float()], len(example.gold_JID) - 1
        for column in range(count):
            sequence, _ = encode_query(adapters, [example.query], layer=LAYER)
            sequence.extend(torch.ones(1, len(inputs), dtype=torch.bool))
            adapters.use(PHI)
            entered = theta.blocks.enter(torch.stack(inputs)[None], sequence)
            states = torch.stack(theta.blocks.run_each(entered, 0, theta.num_layers, sequence))
            is_next_gold = is_gold(number, column)
            own = states[LAYER, 0, -1] if through else states[LAYER, 0, -1].detach()
            inputs.append(example.gold_JID[column + 1, LAYER].float() if is_next_gold else own)
        gold = example.gold_JID[1:].transpose(0, 1)[LAYER:]
        distances = scaled_errors(states[LAYER:, 0], gold).sqrt()
        losses.append(2 * nn.functional.huber_loss(distances, torch.zeros_like(distances)))
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("share", "through"), [(1.0, False), (0.0, True), (0.0, False), (0.5, True), (0.5, False)])
def test_joint_loss_and_gradients_are_those_of_the_slow_version(theta: Theta, share: float, through: bool) -> None:
    examples = phi_examples(theta, 5)
    adapters = shaken(theta, PHI)
    names = adapters.parameters(PHI)
    adapters.train_only(names)
    parameters = [dict(adapters.named_parameters())[name] for name in names]
    queries = fresh_queries(adapters, examples)
    made = generate_states(
        adapters,
        examples,
        queries,
        range(5),
        layer=LAYER,
        gold_share=share,
        seed="4",
        through_rollout=through,
    )
    draws = [random.Random(f"4/{number}") for number in range(5)]
    drawn = [[draw.random() < share for _ in range(made.mask_BK.shape[1])] for draw in draws]
    slow = slow_joint_loss(adapters, examples, lambda number, column: drawn[number][column], through=through)
    torch.testing.assert_close(made.loss(), slow, atol=1e-5, rtol=1e-4)
    ours = torch.autograd.grad(made.loss(), parameters, allow_unused=True)
    theirs = torch.autograd.grad(slow, parameters, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def joint_training(theta: Theta, adapters: Adapters, examples: list[GoldExample], **changes: object) -> JointTraining:
    options = {
        "layer": LAYER,
        "taught_epochs": 2,
        "epochs": 4,
        "batch_size": 4,
        "learning_rate": 2e-2,
        "optimiser": "muon",
        "through_rollout": False,
        "seed": 3,
        **changes,
    }
    return JointTraining(adapters, examples, fresh_queries(adapters, examples), **options)  # type: ignore[arg-type]


def test_without_own_rollouts_every_input_stays_gold(llama: Theta) -> None:
    training = joint_training(llama, shaken(llama), phi_examples(llama, 8), taught_epochs=2, epochs=0)
    assert [training.gold_share for _ in training.steps()] == [1.0] * training.optimiser.num_steps
    assert training.optimiser.num_steps > 0


def test_gold_inputs_give_way_to_own_ones(llama: Theta) -> None:
    examples = phi_examples(llama, 8)
    training = joint_training(llama, shaken(llama), examples)
    shares = []
    for _ in training.steps():
        shares.append(training.gold_share)
    assert len(shares) == 12
    assert shares[2] == 1.0
    assert all(before >= after for before, after in pairwise(shares))
    assert 0 < shares[5] < 1
    assert shares[8:] == [0.0] * 4


def test_joint_training_lowers_the_error_of_rollouts(llama: Theta) -> None:
    examples = phi_examples(llama, 12)
    adapters = shaken(llama)
    queries = fresh_queries(llama, adapters, examples)
    with torch.no_grad():
        before = generate_states(llama, adapters, examples, queries, range(12), layer=LAYER).loss()
    list(joint_training(llama, adapters, examples, taught_epochs=5, epochs=15).steps())
    with torch.no_grad():
        after = generate_states(llama, adapters, examples, queries, range(12), layer=LAYER).loss()
    assert after < 0.6 * before


def test_a_resumed_joint_training_ends_in_the_same_bits(make_theta: MakeTheta, tmp_path: Path) -> None:
    states = []
    for is_interrupted in (False, True):
        theta = make_theta("llama")
        adapters, examples = shaken(theta), phi_examples(theta, 9)
        training = joint_training(adapters, examples)
        if is_interrupted:
            list(islice(training.steps(), 8))
            save_file(training.optimiser.state(), tmp_path / "checkpoint.safetensors")
            theta = make_theta("llama")
            adapters = shaken(theta)
            training = joint_training(adapters, examples)
            training.optimiser.resume(tmp_path / "checkpoint.safetensors")
        list(training.steps())
        states.append(adapters.state(PHI))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_kept_queries_are_the_fresh_ones_to_the_rounding_of_the_file(theta: Theta, tmp_path: Path) -> None:
    adapters = shaken(theta, PHI)
    queries = [problem.query for problem in encoded_problems(theta, 5)]
    fresh = FreshQueries(adapters, queries, LAYER, rounds=True)
    assert sum(fill_queries(adapters, queries, tmp_path / "q", batch_tokens=100)) == 5
    kept = KeptQueries(theta, queries, LAYER, tmp_path / "q")
    assert (tmp_path / "q").stat().st_size == num_bytes(theta, queries)
    (one, first), (other, expected) = kept.encoded([3, 0, 4]), fresh.encoded([3, 0, 4])
    torch.testing.assert_close(first, expected, atol=1e-4, rtol=1e-2)
    assert torch.equal(one.mask_BS, other.mask_BS)
    for layer in range(theta.num_layers):
        for ours, theirs in zip(one.keys_values(layer), other.keys_values(layer), strict=True):
            real_BHNC = one.mask_BS[:, None, :, None]
            torch.testing.assert_close(ours * real_BHNC, theirs * real_BHNC, atol=1e-4, rtol=1e-2)
            assert torch.equal(theirs, theirs.bfloat16().to(theirs.dtype))


def test_the_probe_reads_gold_states_and_not_those_of_an_untrained_generator(llama: Theta) -> None:
    examples = phi_examples(llama, 60)
    # The number that follows is written into the states, as a trained model would have it.
    numbers = [token for token, text in enumerate(names_of(llama)) if text.strip("Ġ ").isdigit()][:4]
    for example in examples:
        for row, token in enumerate(example.next_K.tolist()):
            label = numbers[token % 4]
            example.next_K[row] = label
            example.gold_JID[row + 1, :, numbers.index(label)] += 20
    adapters = shaken(llama)
    judge = PhiJudge(
        llama,
        adapters,
        examples[:40],
        examples[40:],
        fresh_queries(llama, adapters, examples[40:]),
        layer=LAYER,
        batch_size=8,
    )
    report = judge.look()
    assert min(report.gold_read) > 0.95
    assert max(report.generated_read) < 0.7
    assert len(report.losses) == llama.num_layers - LAYER + 1
    assert len(report.position_errors) == 4
    assert report.loss > 0.5
    assert len(report.norms) == 5


def names_of(theta: Theta) -> list[str]:
    return [
        str(name) for name in theta.encoder.tokenizer.convert_ids_to_tokens(list(range(len(theta.encoder.tokenizer))))
    ]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_restart_forgets_the_moments_and_warms_up_again(kind: OptimiserName) -> None:
    def moves(restarts: Sequence[int]) -> list[float]:
        weight = nn.Parameter(torch.zeros(2, 2))
        options = {"learning_rate": 0.1, "num_steps": 400, "kind": kind, "restarts": restarts}
        optimiser, sizes = Optimiser({"weight": weight}, **options), []
        for step in range(204):
            before = weight.detach().clone()
            # From step 200 on downhill is the other way.
            descend(optimiser, (weight * torch.eye(2)).sum() * (1.0 if step < 200 else -1.0))
            sizes.append(float((weight.detach() - before).trace()))
        return sizes

    kept, forgotten = moves([]), moves([200])
    # Old moments still carry the weight down; without them the first step goes up, and a small one at that.
    assert kept[200] < 0 < forgotten[200] < forgotten[201] < forgotten[203]
    assert forgotten[0] == pytest.approx(kept[0] * 2, rel=0.01)


def test_the_rate_is_held_through_a_curriculum_and_falls_in_its_last_stage() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimiser = Optimiser({"weight": weight}, learning_rate=0.1, num_steps=400, restarts=[100, 200])
    moves = []
    for _ in range(400):
        before = weight.detach().clone()
        descend(optimiser, weight.sum())  # every step of AdamW is as long as its rate then
        moves.append(float((before - weight.detach())[0, 0]))
    assert [moves[step] for step in (50, 99, 150, 199)] == pytest.approx([0.1] * 4, rel=1e-3)
    assert moves[100] < 0.05
    assert moves[200] < 0.05
    assert [moves[300], moves[350]] == pytest.approx([0.05, 0.025], rel=1e-3)


# ψ


def rolled_out(theta: Theta, adapters: Adapters, examples: list[PsiExample]) -> list[torch.Tensor]:
    queries, counts = fresh_queries(adapters, examples), [example.num_tokens for example in examples]
    rolled = dict(roll_out(adapters, queries, counts, layer=LAYER, batch_size=4))
    return [rolled[number] for number in range(len(examples))]


def fresh_queries(theta: Theta, adapters: Adapters, examples: Sequence[PsiExample | GoldExample]) -> FreshQueries:
    return FreshQueries(adapters, [example.query for example in examples], LAYER)


def psi_training(
    theta: Theta,
    adapters: Adapters,
    examples: list[PsiExample],
    unfreeze: str = "above",
    epochs: int = 6,
    lessons: Sequence[PsiExample] | None = None,
) -> PsiTraining:
    """Of the examples' rollouts, or of as much of them as the lessons read."""
    rollouts, queries = rolled_out(adapters, examples), fresh_queries(adapters, examples)
    context: Context
    if unfreeze == "all":
        context = UnrolledContext(adapters, queries, LAYER)
    else:
        context = RolloutContext(adapters, queries, rollouts, LAYER, trains_above=unfreeze == "above")
    learned = examples if lessons is None else lessons
    return PsiTraining(adapters, learned, context, epochs=epochs, batch_size=3, learning_rate=5e-2, seed=1)


def psi_examples(theta: Theta) -> list[PsiExample]:
    marker = theta.encoder.answer_marker
    problems = encoded_problems(theta, 8)
    return [PsiExample(p.query, marker, p.answer, 1 + number % 3) for number, p in enumerate(problems)]


def test_psi_learns_the_answers_and_the_rollouts_stay_constant(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    examples = psi_examples(llama)
    training = psi_training(llama, adapters, examples)
    before = rolled_out(llama, adapters, examples)
    losses = list(training.steps())
    assert len(losses) == 18
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    after = rolled_out(llama, adapters, examples)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_without_contemplation_tokens_psi_is_plain_fine_tuning(theta: Theta) -> None:
    adapters = shaken(theta, PSI)
    marker = theta.encoder.answer_marker
    examples = [PsiExample(p.query, marker, p.answer, 0) for p in encoded_problems(theta, 1)]
    options = {"epochs": 1, "batch_size": 1, "learning_rate": 1e-2, "seed": 0}
    training = PsiTraining(adapters, examples, QueryContext(adapters), **options)  # type: ignore[arg-type]
    found = training.share([0], [0])
    adapters.use(PSI)
    ids = torch.tensor([[*examples[0].query, *marker, *examples[0].answer]])
    labels = ids.clone()
    labels[:, : len(examples[0].query) + len(marker)] = -100
    expected = theta.model(input_ids=ids, labels=labels).loss
    torch.testing.assert_close(found, expected)
    names = adapters.parameters(PSI)
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
        training = psi_training(adapters, psi_examples(theta))
        if is_interrupted:
            list(islice(training.steps(), 8))
            save_file(training.optimiser.state(), tmp_path / "checkpoint.safetensors")
            theta = make_theta("llama")
            adapters = shaken(theta, PHI)
            training = psi_training(adapters, psi_examples(theta))
            training.optimiser.resume(tmp_path / "checkpoint.safetensors")
        list(training.steps())
        states.append({**adapters.state(PSI), **adapters.state(PHI)})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_token_states_are_those_of_each_problems_own_rollout(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    examples = psi_examples(llama)
    rollouts, queries = rolled_out(llama, adapters, examples), fresh_queries(llama, adapters, examples)
    lower, last = token_states(RolloutContext(llama, adapters, queries, rollouts, LAYER), examples, batch_size=4)
    for example, low, found in zip(examples, lower, last, strict=True):
        sequence, first = encode_query(llama, adapters, [example.query], layer=LAYER)
        alone = contemplate(llama, adapters, sequence, first, layer=LAYER, max_tokens=example.num_tokens)
        torch.testing.assert_close(found, alone.last_BKD[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(low[:-1], alone.inputs_BKD[0, 1:], atol=1e-5, rtol=1e-4)
        assert len(low) == example.num_tokens


def test_the_last_of_each_problems_tokens_is_labelled_and_what_lies_behind_it_is_left_out() -> None:
    states = [torch.full((count, 2), float(number)) for number, count in enumerate((3, 1, 4))]
    last, labels = label_ends(states, [2, 1, 4])
    assert last[:, 0].tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert labels.tolist() == [False, True, True, False, False, False, True]


def test_psi_reads_as_many_tokens_as_a_lesson_says_and_end_learns_from_those_up_to_k(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    whole = [replace(example, num_tokens=3) for example in psi_examples(llama)[:3]]
    weights = torch.randn(1, llama.model.config.hidden_size + 1, generator=seeded(2))
    for read, last in ((2, 2), (3, 2), (3, 1)):
        lessons = [replace(example, num_tokens=read, num_before_end=last) for example in whole]
        training = psi_training(llama, adapters, whole, lessons=lessons)
        training.end_1W.data.copy_(weights)
        found = float(training.share([0, 1, 2], [0, 1, 2]).detach())
        # Rollouts of no more tokens than that, and the two losses one by one.
        cut = psi_training(llama, adapters, [replace(example, num_tokens=read) for example in whole])
        seen = cut.context.read([0, 1, 2], lessons)
        assert seen.last_BKD is not None
        start, answers = [each.start for each in whole], [each.answer for each in whole]
        answered = answer_loss(llama, adapters, seen.sequence, start, answers)
        labels = torch.tensor([column == last for column in range(1, 1 + last)] * 3)
        ended = end_loss(weights, seen.last_BKD[:, :last].flatten(0, 1), labels)
        assert found == pytest.approx(float((answered + END_WEIGHT * ended).detach()), rel=1e-5)


def test_an_unrolled_step_has_the_loss_of_a_replayed_one_and_teaches_every_layer(theta: Theta) -> None:
    adapters = shaken(theta, PHI, PSI)
    examples = psi_examples(theta)
    replayed = psi_training(adapters, examples).share([0, 1, 2], [0, 1, 2]).detach()
    training = psi_training(adapters, examples, unfreeze="all")
    loss = training.share([0, 1, 2], [0, 1, 2])
    torch.testing.assert_close(loss.detach(), replayed, atol=1e-5, rtol=1e-4)
    loss.backward()  # type: ignore[no-untyped-call]
    taught = {name for name, parameter in adapters.named_parameters() if parameter.grad is not None}
    # What the last layer does with contemplation tokens beyond their keys and values reaches no answer.
    assert taught <= {*adapters.parameters(PHI), *adapters.parameters(PSI)}
    assert taught >= {*adapters.parameters(PHI, layers=range(theta.num_layers - 1)), *adapters.parameters(PSI)}


def test_gold_states_in_the_tokens_place_leave_the_keys_and_values_of_those_states(theta: Theta) -> None:
    adapters = shaken(theta, PHI)
    examples = phi_examples(theta, 3)
    queries = fresh_queries(adapters, examples)
    # Whatever θ is fed, its states, taken for gold, must leave what they left when it ran.
    with torch.no_grad():
        made = generate_states(adapters, examples, queries, range(3), layer=LAYER)
        sequence, first = encode_query(adapters, [example.query for example in examples], layer=LAYER)
        adapters.use(None)
        sequence.extend(made.mask_BK)
        inputs = torch.cat([first[:, None], made.states_BIKD[:, 0, :-1]], dim=1)
        states = theta.blocks.run_each(theta.blocks.enter(inputs, sequence), 0, theta.num_layers, sequence)
    generated = torch.stack(states, dim=2)
    rows = [
        torch.cat([torch.zeros_like(each[:1]), each])[: len(e.gold_JID)]
        for each, e in zip(generated, examples, strict=True)
    ]
    adapters.use(PHI)
    found = GoldContext(adapters, queries, rows).read(range(3)).sequence
    assert torch.equal(found.mask_BS, sequence.mask_BS)
    real_BHSC = sequence.mask_BS[:, None, :, None]
    for layer in range(theta.num_layers):
        for ours, theirs in zip(found.keys_values(layer), sequence.keys_values(layer), strict=True):
            torch.testing.assert_close(ours * real_BHSC, theirs * real_BHSC, atol=2e-4, rtol=1e-3)


# END


def test_end_finds_a_plane_that_separates() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(400, 6, generator=generator) * torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0, 100.0]) + 5
    labels = (states[:, 1] - 5) / 10 + (states[:, 2] - 5) / 0.1 > 0.5
    end = fit_end(fit_logistic(states, labels), [-states], [states])
    report = judge_end(end, states, labels)
    assert report.accuracy > 0.98
    assert report.true_ends + report.missed_ends == int(labels.sum())


def test_logistic_regression_is_solved_to_the_optimum() -> None:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(300, 5, generator=generator) * 3 + 2
    labels = states[:, 0] + 2 * torch.randn(300, generator=generator) > 2
    end = fit_logistic(states, labels, penalty=1e-2)
    scaled = (states - states.mean(dim=0)) / states.std(dim=0, correction=0)
    weight = (end.weight_D * states.std(dim=0, correction=0)).requires_grad_()
    bias = (end.bias + end.weight_D @ states.mean(dim=0)).requires_grad_()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scaled @ weight + bias, labels.float())
    (loss + 1e-2 * weight.square().sum()).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert bias.grad is not None
    assert float(weight.grad.abs().max()) < 1e-4
    assert float(bias.grad.abs()) < 1e-4
    assert float(weight.detach().abs().max()) > 0.1


def test_a_stricter_rule_ends_where_the_logit_is_above_the_threshold() -> None:
    rule, states = Logistic(torch.tensor([1.0, 0.0]), torch.tensor(0.5)), torch.tensor([[[-1.0, 9.0], [1.0, 9.0]]])
    for by, expected in ((0.0, True), (1.4, True), (1.6, False)):
        assert End(rule.stricter(by), rule)(states).tolist() == [[False, expected]]


def test_the_hint_learns_what_the_rule_says_of_tokens_up_to_the_first_end() -> None:
    generator = torch.Generator().manual_seed(0)
    lower = [torch.randn(1 + number % 6, 3, generator=generator) for number in range(400)]
    # The rule sees at L what the hint sees at l, turned round; behind its first END all is turned round once more.
    last = [-each for each in lower]
    rule = Logistic(torch.tensor([0.0, 2.0, 0.0]), torch.tensor(-0.5))
    for low, high in zip(lower, last, strict=True):
        said = (rule.logits(high) > 0).tolist()
        if True in said:
            low[said.index(True) + 1 :] *= -1
    end = fit_end(rule, lower, last)
    chances = [end.chance(each) for each in lower]
    for chance, high in zip(chances, last, strict=True):
        said = (rule.logits(high) > 0).tolist()
        reached = said.index(True) + 1 if True in said else len(said)
        sure = rule.logits(high)[:reached].abs() > 0.3
        assert ((chance[:reached] > 0.5) == torch.tensor(said[:reached]))[sure].all()


def test_end_survives_saving(tmp_path: Path) -> None:
    rule, hint = Logistic(torch.tensor([1.0, -2.0]), torch.tensor(0.5)), Logistic(torch.ones(2), torch.tensor(-1.0))
    end = End(rule, hint)
    end.save(tmp_path)
    states, read = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), End.load(tmp_path, 2)
    assert read(states).tolist() == end(states).tolist() == [[True, False]]
    assert torch.equal(read.chance(states), end.chance(states))
    assert end.chance(torch.tensor([[0.5, 0.5]])).tolist() == [0.5]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"hint_weight": torch.ones(3)}, "does not fit"),
        ({"bias": torch.zeros(1)}, "does not fit"),
        ({"hint_bias": torch.tensor(torch.nan)}, "does not fit"),
        ({"hint_weight": None}, "cannot be read"),
    ],
)
def test_a_damaged_end_is_refused(tmp_path: Path, change: dict[str, Tensor | None], match: str) -> None:
    rule = Logistic(torch.tensor([1.0, -2.0]), torch.tensor(0.5))
    End(rule, Logistic(torch.ones(2), torch.tensor(0.0))).save(tmp_path)
    saved = {**load_file(tmp_path / "end.safetensors"), **change}
    save_file({name: each for name, each in saved.items() if each is not None}, tmp_path / "end.safetensors")
    with pytest.raises(CorruptError, match=match):
        End.load(tmp_path, 2)


# Memory


@pytest.mark.parametrize("work", ["roll out", "token states", "queries", "surprisals", "judge"])
def test_what_does_not_fit_is_done_in_smaller_parts(
    llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    adapters, examples = shaken(llama, PHI, PSI), psi_examples(llama)
    asked, counts = [example.query for example in examples], [example.num_tokens for example in examples]
    queries = FreshQueries(llama, adapters, asked, LAYER)
    states, problems = phi_examples(llama, 5), encoded_problems(llama, 5)

    def done() -> list[Tensor]:
        if work == "surprisals":
            found = sorted(surprisals(llama, problems, batch_tokens=4096))
            return [torch.tensor(each) for _, each in found]
        if work == "queries":
            path = tmp_path / "queries.bin"
            list(fill_queries(llama, adapters, asked, path, batch_tokens=4096))
            return [KeptQueries(llama, asked, LAYER, path).encoded(range(len(asked)))[1]]
        if work == "judge":
            theirs = fresh_queries(llama, adapters, states)
            judge = PhiJudge(llama, adapters, states, states, theirs, layer=LAYER, batch_size=9)
            return [torch.tensor(judge.look().losses)]
        inputs = dict(roll_out(llama, adapters, queries, counts, layer=LAYER, batch_size=9))
        rollouts = [inputs[number] for number in range(len(asked))]
        if work == "roll out":
            return rollouts
        lower, last = token_states(RolloutContext(llama, adapters, queries, rollouts, LAYER), examples, batch_size=9)
        return [*lower, *last]

    expected, enter, refused = done(), llama.blocks.enter, []

    def enter_few(embeds_BTD: Tensor, sequence: Any) -> Tensor:
        if len(embeds_BTD) > 2:
            refused.append(len(embeds_BTD))
            raise MemoryError
        return enter(embeds_BTD, sequence)

    monkeypatch.setattr(llama.blocks, "enter", enter_few)
    found = done()
    assert refused
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-2 if work == "queries" else 1e-4, rtol=1e-3)


# The optimiser


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    matrices = torch.randn(3, 8, 20, generator=seeded(0))
    found = torch.linalg.svdvals(orthogonalise(matrices, Muon.POLYNOMIAL, Muon.ROUNDS))
    assert found.min() > 0.6
    assert found.max() < 1.3


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (8, 8)])
def test_muon_steps_as_pytorchs_own(shape: tuple[int, int]) -> None:
    start, gradients = torch.randn(shape, generator=seeded(1)), torch.randn(4, *shape, generator=seeded(2))
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = Muon([ours], lr=0.1)
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()
    # PyTorch's iteration runs in bfloat16.
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)


def test_a_loss_that_is_not_finite_changes_nothing_and_several_in_a_row_stop_training() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimiser = Optimiser({"weight": weight}, learning_rate=0.1, num_steps=20)
    descend(optimiser, weight.sum() * float("nan"))
    assert weight.tolist() == [1.0, 1.0, 1.0]
    descend(optimiser, weight.sum())
    assert weight[0] < 1
    for _ in range(MAX_BAD_STEPS - 1):
        descend(optimiser, weight.sum() * float("inf"))
    with pytest.raises(DivergedError):
        descend(optimiser, weight.sum() * float("inf"))


def test_the_query_is_read_by_theta_alone_and_never_taught(llama: Theta) -> None:
    examples = psi_examples(llama)[:2]
    plain, _ = encode_query(llama, Adapters(llama), [example.query for example in examples], layer=LAYER)
    columns = plain.mask_BS.shape[1]
    expected = [plain.keys_values(layer) for layer in range(llama.num_layers)]
    adapters = shaken(llama, PHI, PSI)
    sequence = psi_training(llama, adapters, examples).context.read([0, 1], examples).sequence
    for layer, theirs in enumerate(expected):
        for ours, theta_s in zip(sequence.keys_values(layer), theirs, strict=True):
            torch.testing.assert_close(ours[:, :, :columns], theta_s, atol=1e-5, rtol=1e-4)
    alone = fresh_queries(llama, adapters, examples).sequence([0, 1])
    assert not any(each.requires_grad for layer in range(llama.num_layers) for each in alone.keys_values(layer))


def test_the_end_loss_is_that_of_a_linear_classifier_on_states_of_unit_size() -> None:
    last, labels = torch.randn(6, 4, generator=seeded(0)), torch.tensor([False, True, False, False, True, True])
    weights = torch.randn(1, 5, generator=seeded(1))
    losses = []
    for state, is_last in zip(last, labels.tolist(), strict=True):
        logit = float(state / state.norm() * 2 @ weights[0, :4] + weights[0, 4])
        says = torch.sigmoid(torch.tensor(logit if is_last else -logit))
        losses.append(-float(says.log()))
    assert float(end_loss(weights, last, labels)) == pytest.approx(sum(losses) / len(losses), abs=1e-5)


def test_ends_are_as_often_late_as_ends_own_and_never_early() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = [2 + number % 3 for number in range(600)]
    # One channel says how many tokens are left, not clearly: END can be sure of nothing.
    states = [
        torch.stack([torch.tensor([count - 1.0 - column, 1.0]) for column in range(count + MOST_EXTRA)])
        + 0.7 * torch.randn(count + MOST_EXTRA, 2, generator=generator)
        for count in counts
    ]
    ends = LateEnds(states, counts, seed=0)
    assert ends(0) == ends(0)
    assert ends(0) != ends(1)
    assert all(count <= drawn <= count + MOST_EXTRA for drawn, count in zip(ends(0), counts, strict=True))
    end = fit_logistic(*label_ends(states, counts))
    expected = torch.zeros(3)
    for state, count in zip(states, counts, strict=True):
        chance = end.logits(state).sigmoid()
        going_on = torch.cat([torch.ones(1), (1 - chance).cumprod(0)])
        # Right or too early, one too late, and later still.
        late = going_on[count]
        expected += torch.stack([1 - late, late * chance[count], late * (1 - chance[count])])
    assert 0.5 < expected[0] / 600 < 0.95
    assert expected[2] / 600 > 0.005
    off = [drawn - count for epoch in range(20) for drawn, count in zip(ends(epoch), counts, strict=True)]
    found = [off.count(each) / 20 for each in range(3)]
    assert found == pytest.approx(expected.tolist(), rel=0.1)


def test_ends_that_are_certain_are_the_true_ones() -> None:
    counts = [1 + number % 4 for number in range(80)]
    states = [
        torch.tensor([[float(column == count - 1), 1.0] for column in range(count + MOST_EXTRA)]) for count in counts
    ]
    assert LateEnds(states, counts, seed=0)(0) == counts


def test_ends_are_drawn_from_an_end_that_was_fitted_on_other_problems() -> None:
    # Enough random channels to learn every problem by heart: of those that it has seen, END would be sure.
    generator = torch.Generator().manual_seed(0)
    counts = [2] * 20
    states = [torch.randn(2 + MOST_EXTRA, 200, generator=generator) for _ in counts]
    end = fit_logistic(*label_ends(states, counts))
    assert all((end.logits(each) > 0).tolist()[:2] == [False, True] for each in states)
    ends = LateEnds(states, counts, seed=0)
    assert sum(drawn > 2 for epoch in range(10) for drawn in ends(epoch)) > 20


def test_a_single_problem_has_late_ends_too() -> None:
    states = [torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])]
    assert LateEnds(states, [2], seed=0)(0) == [2]


def test_end_is_taught_to_phi_where_phi_learns_with_psi(llama: Theta) -> None:
    adapters = shaken(llama, PHI)
    examples = psi_examples(llama)
    for unfreeze, is_taught in (("above", True), ("all", True), ("none", False)):
        training = psi_training(llama, adapters, examples, unfreeze=unfreeze)
        assert ("end" in training.optimiser.parameters) == is_taught
    # Its weights start at zero; once they are not, the last layer of φ learns from it too.
    training = psi_training(llama, adapters, examples)
    training.end_1W.data.normal_(generator=seeded(2))
    training.share([0, 1, 2], [0, 1, 2]).backward()  # type: ignore[no-untyped-call]
    last = adapters.parameters(PHI, layers=range(llama.num_layers - 1, llama.num_layers))
    assert all(parameter.grad is not None for name, parameter in last.items() if "down_proj" in name)


def trainings(theta: Theta, adapters: Adapters, **changes: object) -> list[JointTraining | PsiTraining]:
    """φ in the middle of its weaning, and ψ with φ's upper layers and END."""
    joint = joint_training(adapters, phi_examples(theta, 7), taught_epochs=0, batch_size=7, **changes)
    examples = psi_examples(theta)
    lessons = [
        replace(each, num_tokens=each.num_tokens + number % 2, num_before_end=each.num_tokens)
        for number, each in enumerate(examples)
    ]
    longest = [replace(each, num_tokens=each.num_tokens + 1) for each in examples]
    psi = psi_training(adapters, longest, lessons=lessons)
    psi.end_1W.data.normal_(generator=seeded(2))
    return [joint, psi]


def gradients_of(training: JointTraining | PsiTraining, parts: list[list[int]]) -> tuple[float, list[Tensor]]:
    whole = [number for part in parts for number in part]
    training.adapters.train_only(training.optimiser.parameters)
    parameters = list(training.optimiser.parameters.values())
    for parameter in parameters:
        parameter.grad = None
    total = 0.0
    for part in parts:
        loss = training.share(part, whole)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, [torch.zeros(1) if each.grad is None else each.grad.clone() for each in parameters]


@pytest.mark.parametrize("kind", [0, 1], ids=["phi", "psi"])
def test_the_shares_of_a_batch_add_up_to_its_loss_and_gradient(llama: Theta, kind: int) -> None:
    training = trainings(llama, shaken(llama, PHI, PSI))[kind]
    loss, whole = gradients_of(training, [[3, 0, 5, 1, 6]])
    shares, parts = gradients_of(training, [[3], [0, 5], [1, 6]])
    assert shares == pytest.approx(loss, rel=1e-5)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-4)
    assert sum(float(each.norm()) for each in whole) > 0


def test_a_layer_in_micro_batches_learns_what_it_learns_in_whole_ones(make_theta: MakeTheta) -> None:
    states = []
    for size in (None, 2):
        theta = make_theta("llama")
        adapters, examples = shaken(theta, PHI), phi_examples(theta, 8)
        options = {"epochs": 1, "batch_size": 5, "learning_rate": 1e-2, "seed": 5, "micro_batch_size": size}
        list(train_layerwise(adapters, examples, examples[:2], layer=LAYER, **options))  # type: ignore[arg-type]
        states.append(adapters.state(PHI))
    for name, whole in states[0].items():
        torch.testing.assert_close(states[1][name], whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("CUDA"), RuntimeError("CPU: not enough memory")])
def test_where_memory_does_not_suffice_a_step_is_taken_in_smaller_parts(fault: Exception) -> None:
    weight, seen = nn.Parameter(torch.ones(2)), []

    def share(part: Sequence[int], whole: Sequence[int]) -> Tensor:
        seen.append(list(part))
        if len(part) > 3:
            raise fault
        return sum((weight * number).sum() for number in part) / len(whole)  # type: ignore[return-value]

    optimiser = Optimiser({"weight": weight}, learning_rate=0.1, num_steps=20)
    assert optimiser.step_on(range(8), share) == pytest.approx(7.0)
    assert [len(part) for part in seen] == [8, 4, 2, 2, 2, 2]
    assert weight.grad is not None
    # Clipped to a norm of 1; nothing of the attempts that failed is left in it.
    assert weight.grad.tolist() == pytest.approx([0.5**0.5] * 2)
    seen.clear()
    optimiser.step_on(range(3), share)
    assert [len(part) for part in seen] == [2, 1]


def test_a_single_example_that_does_not_fit_is_refused() -> None:
    def share(part: Sequence[int], whole: Sequence[int]) -> Tensor:
        raise MemoryError

    optimiser = Optimiser({"weight": nn.Parameter(torch.ones(2))}, learning_rate=0.1, num_steps=20)
    with pytest.raises(ResourceError):
        optimiser.step_on([0, 1], share)


def bytes_of_tensors() -> int:
    gc.collect()
    # `isinstance` asks some objects of torch for attributes that warn.
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.parametrize("in_files", [False, True])
def test_what_is_kept_does_not_grow_from_layer_to_layer(make_theta: MakeTheta, tmp_path: Path, in_files: bool) -> None:
    theta = make_theta("llama")
    adapters, examples = shaken(theta, PHI), phi_examples(theta, 8)
    options = {"epochs": 1, "batch_size": 3, "learning_rate": 1e-2, "seed": 5, "folder": tmp_path if in_files else None}
    training = train_layerwise(adapters, examples, examples[:2], layer=LAYER, **options)  # type: ignore[arg-type]
    kept = [bytes_of_tensors() for _ in training]
    assert len(kept) == theta.num_layers
    assert max(kept) == min(kept)


def test_resting_in_files_changes_nothing(make_theta: MakeTheta, tmp_path: Path) -> None:
    states, reports = [], []
    for folder in (None, tmp_path):
        theta = make_theta("llama")
        adapters, examples = shaken(theta, PHI), phi_examples(theta, 8)
        options = {"epochs": 2, "batch_size": 3, "learning_rate": 1e-2, "seed": 5, "folder": folder}
        training = train_layerwise(adapters, examples, examples[:2], layer=LAYER, **options)  # type: ignore[arg-type]
        reports.append(list(training))
        states.append(adapters.state(PHI))
    assert reports[0] == reports[1]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    # Four batches, and for each its query, states, keys and values.
    assert len(list(tmp_path.iterdir())) == 16
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size >= rest_bytes(theta, [*examples, *examples[:2]])
