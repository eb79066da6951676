"""Decoder layers that rest in one place and come to another, one at a time."""

import pytest
import torch
from conftest import MakeTheta, Offloaded

from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


@torch.no_grad()
def run(theta: Theta) -> torch.Tensor:
    """Run the ids through all layers by hand."""
    return theta.blocks.run_ids(IDS, torch.ones_like(IDS).bool(), CachedSequence.empty(1, theta.device))


def test_offloaded_layers_come_one_at_a_time_and_compute_the_same(make_theta: MakeTheta, theta: Theta) -> None:
    other = make_theta(theta.name)
    offloaded = Offloaded(other)
    expected, found = run(theta), run(other)
    assert torch.equal(found, expected)
    assert torch.equal(other.model(input_ids=IDS).logits, theta.model(input_ids=IDS).logits)
    other.blocks.verify()
    assert (offloaded.most_away, offloaded.num_away) == (1, 0)


def test_a_layer_that_fails_goes_home_and_one_that_is_held_stays(llama: Theta) -> None:
    offloaded, sequence = Offloaded(llama), CachedSequence.empty(1, llama.device)
    sequence.extend(torch.ones(1, 3).bool())
    with pytest.raises(RuntimeError):  # five channels for a model of 32
        llama.blocks.run(torch.ones(1, 3, 5), 0, 1, sequence)
    assert offloaded.num_away == 0
    with llama.blocks.holding(1):
        assert offloaded.num_away == 1
        llama.blocks.run(torch.ones(1, 3, 32), 1, 2, sequence)
        assert offloaded.num_away == 1
    assert offloaded.num_away == 0


def test_a_layer_for_which_there_is_no_room_stays_at_home(llama: Theta, monkeypatch: pytest.MonkeyPatch) -> None:
    offloaded, moved = Offloaded(llama), torch.Tensor.to

    def to(tensor: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        if options.get("copy") and tensor.shape == (48, 32):  # some have come by then
            raise torch.OutOfMemoryError
        return moved(tensor, *args, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(torch.Tensor, "to", to)
    with pytest.raises(torch.OutOfMemoryError):
        llama.model(input_ids=IDS)
    with pytest.raises(torch.OutOfMemoryError), llama.blocks.holding(0):
        pass
    monkeypatch.undo()
    assert offloaded.num_away == 0
    llama.blocks.verify()


def test_what_is_not_in_a_layer_moves_at_once(theta: Theta) -> None:
    theta.blocks.to(torch.device("meta"), offload=True)
    places = {name: tensor.device.type for name, tensor in theta.model.state_dict().items()}
    assert {name for name, place in places.items() if place == "cpu"} == {
        name for name in places if any(f".{each}." in name for each in ("layers", "h"))
    }
    assert theta.device.type == "meta"
    assert theta.blocks.rotary is None or theta.blocks.rotary.inv_freq.device.type == "meta"
