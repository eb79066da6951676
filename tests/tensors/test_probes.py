"""Linear probes and classifiers."""

import torch

from ccot_cli.tensors.probes import fit_logistic


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
