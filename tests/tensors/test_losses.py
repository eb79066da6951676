"""Training losses."""

import torch

from ccot_cli.tensors.losses import huber, scaled_mse


def test_scaled_error_is_one_for_the_mean_and_zero_for_the_target() -> None:
    z = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([[[1.0]], [[100.0]]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    mean = z.mean(dim=-1, keepdim=True).expand_as(z)
    torch.testing.assert_close(scaled_mse(mean, z, mask), torch.tensor(1.0))
    assert scaled_mse(z, z, mask) == 0


def test_scaled_error_averages_over_a_problems_tokens_before_the_batch() -> None:
    z = torch.tensor([[[1.0, -1.0], [1.0, -1.0]], [[1.0, -1.0], [1.0, -1.0]]])
    z_hat = z.clone()
    z_hat[0, 0] += 1.0  # variance of [1, -1] is 1, so an error of 1 at one of two tokens
    mask = torch.tensor([[True, True], [True, False]])
    torch.testing.assert_close(scaled_mse(z_hat, z, mask), torch.tensor(0.25))


def test_masked_tokens_have_no_part_in_the_loss() -> None:
    z = torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(0))
    poisoned = z.clone()
    poisoned[0, 1] = 1e6
    mask = torch.tensor([[True, False]])
    assert scaled_mse(poisoned, z, mask) == 0


def test_huber_is_the_square_near_zero_and_the_distance_far_away() -> None:
    distances = torch.tensor([0.0, 0.3, 1.0, 2.0, 1e4], requires_grad=True)
    found = huber(distances.square())
    torch.testing.assert_close(found, 2 * torch.nn.functional.huber_loss(distances, torch.zeros(5), reduction="none"))
    found.sum().backward()
    torch.testing.assert_close(distances.grad, torch.tensor([0.0, 0.6, 2.0, 2.0, 2.0]))


def test_errors_of_half_precision_states_are_computed_in_float32() -> None:
    z, z_hat = torch.randn(2, 2, 3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    mask = torch.ones(2, 3, dtype=torch.bool)
    torch.testing.assert_close(scaled_mse(z_hat, z, mask), scaled_mse(z_hat.float(), z.float(), mask), rtol=0, atol=0)
