"""Training with gradients through decoder layers that come to the device one at a time."""

from collections.abc import Callable

import pytest
import torch
from conftest import MakeTheta, Offloaded, shaken
from setups import make_setup
from trainers import gradients, joint_training, phi_examples, psi_examples, psi_training

from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training.phi_joint import JointTraining
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.recipes.coconut import CoconutRecipe
from ccot_cli.models.training.recipes.direct import DirectRecipe

MakeTraining = Callable[[Adapters], JointTraining | PsiTraining]


def taught(adapters: Adapters) -> JointTraining:
    """Train φ from gold inputs."""
    return joint_training(adapters, phi_examples(adapters.theta, 4))


def on_rollouts(adapters: Adapters) -> JointTraining:
    """Train φ on its own rollouts alone."""
    return joint_training(adapters, phi_examples(adapters.theta, 4), taught_epochs=0, epochs=1)


def psi_and_above(adapters: Adapters) -> PsiTraining:
    """Train ψ and φ's layers above l."""
    return psi_training(adapters, psi_examples(adapters.theta))


def direct(adapters: Adapters) -> PsiTraining:
    """Train ψ on the query itself, of which the top layer makes keys and values only."""
    return DirectRecipe().training(make_setup(adapters))


def coconut(adapters: Adapters) -> PsiTraining:
    """Train ψ through thoughts that are fed back."""
    training = CoconutRecipe().training(make_setup(adapters))
    training.optimiser.step_count = training.optimiser.num_steps - 1  # the last stage: all lines are thoughts
    return training


@pytest.mark.parametrize("make", [taught, on_rollouts, psi_and_above, direct, coconut])
def test_layers_that_come_one_at_a_time_pass_the_same_gradients(
    make_theta: MakeTheta, theta: Theta, make: MakeTraining
) -> None:
    found, other = [], make_theta(theta.name)
    offloaded = Offloaded(other)
    for each in (theta, other):
        adapters = shaken(each, PHI, PSI)
        adapters.merges = False  # an offloaded layer is never merged
        found.append(gradients(make(adapters), [[0, 1, 2], [3]]))
    (expected_loss, expected), (loss, actual) = found
    assert loss == pytest.approx(expected_loss)
    for one, another in zip(expected, actual, strict=True):
        torch.testing.assert_close(another, one, atol=1e-6, rtol=1e-4)
    assert any(one.abs().max() > 0 for one in expected)
    assert (offloaded.most_away, offloaded.num_away, offloaded.num_kept) == (1, 0, 0)
    assert offloaded.most_kept == 1
