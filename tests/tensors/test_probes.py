"""Linear probes and classifiers."""

import pytest
import torch

from ccot_cli.tensors.probes import fit_logistic, fit_probe


def test_logistic_regression_is_solved_to_the_optimum() -> None:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(300, 5, generator=generator) * 3 + 2
    labels = states[:, 0] + 2 * torch.randn(300, generator=generator) > 2
    end = fit_logistic(states, labels, penalty=3.0)
    scaled = (states - states.mean(dim=0)) / states.std(dim=0, correction=0)
    weight = (end.weight_D * states.std(dim=0, correction=0)).requires_grad_()
    bias = (end.bias + end.weight_D @ states.mean(dim=0)).requires_grad_()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scaled @ weight + bias, labels.float())
    (loss + 3.0 / 300 * weight.square().sum()).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert bias.grad is not None
    assert float(weight.grad.abs().max()) < 1e-4
    assert float(bias.grad.abs()) < 1e-4
    assert float(weight.detach().abs().max()) > 0.1


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_a_probe_reads_the_same_from_states_of_any_size(size: float) -> None:
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 4, (120,), generator=generator)
    # As many states as a probe has weights for a class: without a penalty it would fit their noise.
    states = torch.randn(120, 119, generator=generator)
    states[:, :4] += 3 * torch.nn.functional.one_hot(labels, 4)
    train, held_out = slice(None, 90), slice(90, None)
    rights = []
    for factor in (1.0, size):
        probe = fit_probe(states[train] * factor, labels[train])
        rights.append(probe.is_right(states[held_out] * factor, labels[held_out]).float().mean())
    assert rights[0] == rights[1]
    assert rights[0] > 0.5


def test_the_penalty_of_a_logistic_regression_does_not_grow_with_the_states() -> None:
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(200, 3, generator=generator)
    labels = states[:, 0] + torch.randn(200, generator=generator) > 0
    once, often = fit_logistic(states, labels), fit_logistic(states.repeat(50, 1), labels.repeat(50))
    without = fit_logistic(states, labels, penalty=0.0)
    # Of few states it moves the weights, of many hardly.
    assert (often.weight_D - without.weight_D).norm() < 0.1 * (once.weight_D - without.weight_D).norm()
