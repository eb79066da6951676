"""The optimiser: Muon, rates and restarts, bad steps, micro-batches."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from trainers import descend, seeded

from ccot_cli.errors import DivergedError, ResourceError
from ccot_cli.models.training import optimiser
from ccot_cli.models.training.optimiser import MAX_BAD_STEPS, Muon, Optimiser, orthogonalise
from ccot_cli.names import OptimiserName

# Muon


@pytest.mark.parametrize("in_bfloat16", [False, True])
def test_orthogonalised_matrices_have_singular_values_near_one(
    in_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimiser, "multiplies_bfloat16", lambda device: in_bfloat16)
    matrices = torch.randn(3, 8, 20, generator=seeded(0))
    orthogonal = orthogonalise(matrices, Muon.POLYNOMIAL, Muon.ROUNDS)
    found = torch.linalg.svdvals(orthogonal)
    assert found.min() > 0.6
    assert found.max() < 1.3
    assert orthogonal.dtype == torch.float32
    assert torch.equal(orthogonal, orthogonal.bfloat16().float()) == in_bfloat16


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


def test_muon_steps_down_the_published_nesterov_momentum() -> None:
    start, *gradients = torch.randn(3, 6, 10, generator=seeded(1))
    weight = nn.Parameter(start.clone())
    muon, momentum = Muon([weight], lr=0.1), torch.zeros_like(start)
    for gradient in gradients:
        weight.grad = gradient.clone()
        muon.step()
        momentum = 0.95 * momentum + 0.05 * gradient
        direction = 0.05 * gradient + 0.95 * momentum
        start = start - 0.1 * 0.2 * 10**0.5 * orthogonalise(direction[None], (3.4445, -4.7750, 2.0315), 5)[0]
    torch.testing.assert_close(weight.detach(), start, atol=1e-5, rtol=1e-5)


# Rates and restarts


def test_the_rate_rises_for_a_twentieth_of_the_steps_and_then_falls_to_zero() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimiser, moves = Optimiser({"weight": weight}, learning_rate=0.1, num_steps=400), []
    for _ in range(400):
        before = weight.detach().clone()
        descend(optimiser, weight.sum())  # every step of AdamW is as long as its rate then
        moves.append(float((before - weight.detach())[0, 0]))
    rises = [min(1.0, (step + 1) / 20) for step in range(400)]
    assert moves == pytest.approx([0.1 * rise * (1 - step / 400) for step, rise in enumerate(rises)], rel=1e-3)


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


# Bad steps


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


# Micro-batches


def test_the_last_step_s_rate_and_gradient_are_told() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimiser = Optimiser({"weight": weight}, learning_rate=0.1, num_steps=100)
    told = []
    for number in range(7):
        descend(optimiser, 3 * weight.sum() * (float("nan") if number == 6 else 1))
        told.append((optimiser.rate, optimiser.norm))
    assert [rate for rate, _ in told[:5]] == pytest.approx([0.1 * (n + 1) / 5 * (1 - n / 100) for n in range(5)])
    assert [norm for _, norm in told[:6]] == pytest.approx([6.0] * 6)
    assert told[6][1] is None


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("CUDA"), RuntimeError("CPU: not enough memory")])
def test_if_memory_does_not_suffice_a_step_is_taken_in_smaller_parts(fault: Exception) -> None:
    weight, seen = nn.Parameter(torch.ones(2)), []

    def part_loss(part: Sequence[int], whole: Sequence[int]) -> Tensor:
        seen.append(list(part))
        if len(part) > 3:
            raise fault
        return sum((weight * number).sum() for number in part) / len(whole)  # type: ignore[return-value]

    optimiser = Optimiser({"weight": weight}, learning_rate=0.1, num_steps=20)
    assert optimiser.step_on(range(8), part_loss) == pytest.approx(7.0)
    assert [len(part) for part in seen] == [8, 4, 2, 2, 2, 2]
    assert weight.grad is not None
    # Clipped to a norm of 1; nothing of the attempts that failed is left in it.
    assert weight.grad.tolist() == pytest.approx([0.5**0.5] * 2)
    seen.clear()
    optimiser.step_on(range(3), part_loss)
    assert [len(part) for part in seen] == [2, 1]


def test_a_single_example_that_does_not_fit_is_refused() -> None:
    def part_loss(part: Sequence[int], whole: Sequence[int]) -> Tensor:
        raise MemoryError

    optimiser = Optimiser({"weight": nn.Parameter(torch.ones(2))}, learning_rate=0.1, num_steps=20)
    with pytest.raises(ResourceError):
        optimiser.step_on([0, 1], part_loss)
