"""Which layer is fed back if the settings leave it open."""

import pytest
import torch
from torch import Tensor

from ccot_cli.models.selection.layer import lowest_sufficient, probe_accuracy


@pytest.mark.parametrize(
    ("accuracies", "layer"),
    [
        ([0.1, 0.5, 0.9, 0.95, 0.94, 1.0], 3),
        ([0.1, 0.96, 0.2, 0.2, 1.0], 1),  # the lowest one, whatever comes after
        ([0.1, 0.2, 0.3, 1.0], 2),  # none is enough: L-1
        ([0.1, 0.2, 0.3, 0.31], 2),  # L itself is too high
        ([0.98, 1.0, 1.0], None),  # the embedding tells it
        ([0.0, 0.0, 0.0], None),
        ([0.1, 1.0], None),
        ([], None),
    ],
)
def test_the_lowest_layer_that_holds_nearly_as_much_as_the_last(accuracies: list[float], layer: int | None) -> None:
    assert lowest_sufficient(accuracies) == layer


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_probe_reads_what_is_there_at_any_scale(scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    code_CD = torch.randn(5, 16, generator=generator)

    def states(count: int) -> tuple[Tensor, Tensor]:
        label_M = torch.randint(5, (count,), generator=generator)
        noise_MD = torch.randn(count, 16, generator=generator)
        return (scale * (code_CD[label_M] + 0.3 * noise_MD)).bfloat16(), label_M + 30

    train, held_out = states(300), states(100)
    assert probe_accuracy(train, held_out) > 0.95
    assert probe_accuracy((train[0][:, :1], train[1]), (held_out[0][:, :1], held_out[1])) < 0.6
