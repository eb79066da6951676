"""Training φ layer by layer, as a stream, against running the whole model for every step."""

import gc
import random
from itertools import islice
from math import inf, nan
from pathlib import Path

import pytest
import torch
from conftest import MakeTheta, Offloaded, shaken
from torch import nn
from trainers import LAYER, descend, layerwise_config, phi_examples

from ccot_cli.data.batches import bucketed
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training import phi_layerwise
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.models.training.phi_layerwise import stored_bytes, train_layerwise
from ccot_cli.tensors.losses import scaled_mse


def train(theta: Theta, examples: list[GoldExample], *, merges: bool = True) -> tuple[Adapters, list[float]]:
    """Train two epochs on all but the last two examples; returns each layer's loss."""
    adapters = shaken(theta)
    adapters.merges = merges
    reports = train_layerwise(adapters, examples[:-2], examples[-2:], layerwise_config(epochs=2))
    return adapters, [report.train_loss for report in reports]


def whole_model_loss(adapters: Adapters, batch: list[GoldExample], index: int) -> torch.Tensor:
    """Run the query under θ, then φ's first `index` layers on all tokens, and compare."""
    blocks = adapters.theta.blocks
    sequence, _ = encode_query(adapters, [example.query for example in batch], layer=LAYER)
    gold = nn.utils.rnn.pad_sequence([example.gold_JID for example in batch], batch_first=True)
    counts = torch.tensor([len(example.gold_JID) - 1 for example in batch])
    mask = torch.arange(int(counts.max()))[None] < counts[:, None]
    sequence.extend(mask)
    adapters.use(PHI)
    state = blocks.run(blocks.enter(gold[:, :-1, LAYER], sequence), 0, index, sequence)
    return scaled_mse(state, gold[:, 1:, index], mask)


def test_streamed_layer_by_layer_training_equals_the_whole_model_version(make_theta: MakeTheta, theta: Theta) -> None:
    examples = phi_examples(theta, 11)
    streamed, _ = train(theta, examples)
    other = make_theta(theta.name)
    adapters = shaken(other)
    groups = bucketed([len(example.query) for example in examples[:-2]], batch_size=3, shuffler=random.Random(5))
    for index in range(1, other.num_layers + 1):
        parameters = adapters.parameters(PHI, layers=range(index - 1, index))
        adapters.train_only(parameters)
        optimiser = Optimiser(parameters, learning_rate=1e-2, num_steps=2 * len(groups))
        shuffler, lowest = random.Random(f"5/{index}"), inf
        for _ in range(2):
            for group in shuffler.sample(groups, len(groups)):
                descend(optimiser, whole_model_loss(adapters, [examples[n] for n in group], index))
            if (loss := whole_model_loss(adapters, examples[-2:], index).item()) < lowest:
                lowest = loss
                optimiser.keep()
        optimiser.restore()
    expected = adapters.state(PHI)
    for name, tensor in streamed.state(PHI).items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-4, rtol=2e-3)


def test_streamed_training_needs_one_layer_on_the_device(make_theta: MakeTheta, theta: Theta) -> None:
    examples, other = phi_examples(theta, 11), make_theta(theta.name)
    offloaded = Offloaded(other)
    # An offloaded layer is never merged.
    expected, expected_losses = train(theta, examples, merges=False)
    found, losses = train(other, examples, merges=False)
    assert losses == expected_losses
    assert (offloaded.most_away, offloaded.num_away) == (1, 0)
    one, two = expected.state(PHI), found.state(PHI)
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def test_training_a_layer_changes_that_layers_phi_alone(llama: Theta) -> None:
    examples, adapters = phi_examples(llama, 8), shaken(llama)

    def snapshot() -> dict[str, torch.Tensor]:
        return {name: parameter.detach().clone() for name, parameter in adapters.named_parameters()}

    before = snapshot()
    training = train_layerwise(adapters, examples, examples[:2], layerwise_config(batch_size=4))
    for layer, _ in enumerate(training):
        after = snapshot()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed
        assert changed <= set(adapters.parameters(PHI, layers=range(layer, layer + 1)))
        before = after


def test_training_phi_lowers_every_layers_loss(llama: Theta) -> None:
    examples = phi_examples(llama, 14)
    reports = train_layerwise(shaken(llama), examples, examples, layerwise_config(epochs=20, batch_size=7))
    for report in reports:
        assert report.validation_loss < 0.85 * report.untrained_loss


def test_a_layer_ends_with_the_weights_that_do_best_on_validation_examples(llama: Theta) -> None:
    examples, adapters = phi_examples(llama, 10), shaken(llama)
    config = layerwise_config(epochs=12, batch_size=4, learning_rate=0.1)
    reports = list(train_layerwise(adapters, examples[:4], examples[4:], config))
    # So few examples are soon known by heart.
    assert any(report.kept_epoch < config.epochs for report in reports)
    for report in reports:
        loss = whole_model_loss(adapters, examples[4:], report.layer).item()
        assert loss == pytest.approx(report.validation_loss, rel=1e-4)


def test_a_validation_loss_that_is_no_number_is_the_worst(llama: Theta, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, losses = phi_examples(llama, 8), iter([1.0, nan, 0.6, nan, 0.5, 0.7] * llama.num_layers)
    monkeypatch.setattr(phi_layerwise, "_validation_loss", lambda *_: next(losses))
    reports = list(train_layerwise(shaken(llama), examples, examples[:2], layerwise_config(epochs=5)))
    assert [(report.kept_epoch, report.validation_loss) for report in reports] == [(4, 0.5)] * llama.num_layers


def test_in_bfloat16_every_layer_learns_what_it_learns_in_float32(make_theta: MakeTheta) -> None:
    reports = []
    for dtype in (torch.float32, torch.bfloat16):
        theta = make_theta("llama")
        examples = phi_examples(theta, 14, dtype=torch.bfloat16)  # as they are stored
        theta.model.to(dtype)
        adapters = shaken(theta)
        reports.append(list(train_layerwise(adapters, examples, examples, layerwise_config(epochs=20, batch_size=7))))
    for expected, found in zip(*reports, strict=True):
        assert found.untrained_loss == pytest.approx(expected.untrained_loss, rel=0.01)
        assert found.validation_loss == pytest.approx(expected.validation_loss, rel=0.06)
        assert found.validation_loss < 0.85 * found.untrained_loss


def test_layers_that_an_earlier_run_trained_are_passed_through(make_theta: MakeTheta) -> None:
    first, second = make_theta("llama"), make_theta("llama")
    examples, config = phi_examples(first, 8), layerwise_config(batch_size=4)
    uninterrupted, resumed = shaken(first), shaken(second)
    list(train_layerwise(uninterrupted, examples, examples[:2], config))
    list(islice(train_layerwise(resumed, examples, examples[:2], config), 2))
    list(train_layerwise(resumed, examples, examples[:2], config, num_trained=2))
    expected = uninterrupted.state(PHI)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in resumed.state(PHI).items())


def test_a_layer_in_micro_batches_learns_what_it_learns_in_whole_ones(make_theta: MakeTheta) -> None:
    states = []
    for size in (None, 2):
        theta = make_theta("llama")
        adapters, examples = shaken(theta, PHI), phi_examples(theta, 8)
        list(train_layerwise(adapters, examples, examples[:2], layerwise_config(batch_size=5, micro_batch_size=size)))
        states.append(adapters.state(PHI))
    for name, expected in states[0].items():
        torch.testing.assert_close(states[1][name], expected, atol=1e-5, rtol=1e-4)


def bytes_of_tensors() -> int:
    """Count the bytes of all tensors that are alive."""
    gc.collect()
    # `isinstance` asks some objects of torch for attributes that warn.
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.parametrize("in_files", [False, True])
def test_what_is_kept_does_not_grow_from_layer_to_layer(make_theta: MakeTheta, tmp_path: Path, in_files: bool) -> None:
    theta = make_theta("llama")
    adapters, examples = shaken(theta, PHI), phi_examples(theta, 8)
    folder = tmp_path if in_files else None
    training = train_layerwise(adapters, examples, examples[:2], layerwise_config(), folder=folder)
    kept = [bytes_of_tensors() for _ in training]
    assert len(kept) == theta.num_layers
    assert max(kept) == min(kept)


def test_resting_in_files_changes_nothing(make_theta: MakeTheta, tmp_path: Path) -> None:
    states, reports = [], []
    for folder in (None, tmp_path):
        theta = make_theta("llama")
        adapters, examples = shaken(theta, PHI), phi_examples(theta, 8)
        training = train_layerwise(adapters, examples, examples[:2], layerwise_config(epochs=2), folder=folder)
        reports.append(list(training))
        states.append(adapters.state(PHI))
    assert reports[0] == reports[1]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    # Four batches, and for each its query, states, keys and values.
    assert len(list(tmp_path.iterdir())) == 16
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size >= stored_bytes(theta, [*examples, *examples[:2]])
