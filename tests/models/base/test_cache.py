"""A cache that grows in place against one that copies."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from ccot_cli.models.base.cache import GrowingLayer, empty_cache


def columns(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, 3, number, 4, generator=generator), torch.rand(2, 3, number, 4, generator=generator)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 30)),
            st.tuples(st.just("append with gradients"), st.integers(1, 5)),
            st.tuples(st.just("shorten"), st.integers(1, 40)),
        ),
        max_size=12,
    )
)
def test_it_holds_what_a_cache_that_copies_holds(steps: list[tuple[str, int]]) -> None:
    expected, found = DynamicCache(), empty_cache()
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for seed, (what, number) in enumerate([("append", 3), *steps]):
        if what == "shorten":
            found.layers[0].shorten(number)
            kept = min(number, expected.get_seq_length())
            expected.layers[0].keys = expected.layers[0].keys[:, :, :kept]
            expected.layers[0].values = expected.layers[0].values[:, :, :kept]
        else:
            with torch.set_grad_enabled(what == "append with gradients"):
                returned = found.update(*columns(number, seed), 0)
                for mine, theirs in zip(returned, expected.update(*columns(number, seed), 0), strict=True):
                    assert torch.equal(mine, theirs)
        held.append((found.layers[0].keys, found.layers[0].keys.clone()))
    # Whoever holds an earlier view still sees what it saw.
    assert all(torch.equal(view, then) for view, then in held)


def test_without_gradients_most_columns_are_written_in_place() -> None:
    layer = GrowingLayer()
    with torch.no_grad():
        layer.update(*columns(3, 0))
        places = {layer.update(*columns(1, seed))[0].data_ptr() for seed in range(1, 15)}
    assert len(places) == 1
