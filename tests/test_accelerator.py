"""The mock device itself."""

from collections.abc import Iterator

import pytest
import torch
from accelerator import Away, Mixed, mock_device
from torch import nn


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with mock_device(monkeypatch) as name:
        yield name


def test_the_mock_device_refuses_what_a_gpu_does(device: str) -> None:
    there, here = torch.ones(3, 4, device=device), torch.ones(3, 4)
    assert isinstance(there, Away)
    assert not isinstance(there.cpu(), Away)
    assert (there + 1 + torch.tensor(1.0)).tolist() == (here + 2).tolist()
    assert there[torch.tensor([0, 2])].tolist() == there[torch.tensor([0, 2], device=device)].tolist()
    for mix in (
        lambda: there + here,
        lambda: there @ here.T,
        lambda: torch.cat([there, here]),
        lambda: here[torch.tensor([0, 2], device=device)],
        lambda: there.index_put_((torch.tensor([0]),), torch.zeros(1, 4)),
        lambda: there.masked_fill(here > 0, 0.0),
    ):
        with pytest.raises(Mixed):
            mix()


def test_what_is_learned_there_is_what_is_learned_here(device: str) -> None:
    torch.manual_seed(0)
    ends = []
    for place in ("cpu", device):
        layer = nn.Linear(4, 2)
        with torch.no_grad():
            layer.weight.copy_(torch.arange(8.0).view(2, 4) / 8)
            layer.bias.zero_()
        layer.to(place)
        optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            layer(torch.eye(4, device=place)).square().sum().backward()
            optimiser.step()
        ends.append(layer.weight.tolist())
    assert ends[0] == ends[1]
    assert ends[0] != (torch.arange(8.0).view(2, 4) / 8).tolist()
