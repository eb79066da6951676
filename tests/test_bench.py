"""The benchmark does what its numbers say; how fast it is, no test asks."""

from decimal import Decimal

import pytest
import torch

from ccot_cli.config import Settings
from ccot_cli.errors import UsageError
from ccot_cli.models.base.random_model import random_theta, read_shape
from ccot_cli.progress import Progress
from ccot_cli.stages import bench

LENGTHS = bench.Lengths(query=9, chain=20, answer=3)
RATIOS = [Decimal("0.1"), Decimal("0.25")]


@pytest.fixture(scope="module")
def result() -> bench.BenchResult:
    return bench.run(
        Settings(), shape="4x64", ratios=RATIOS, batches=[1, 3], lengths=LENGTHS, repeats=2, progress=Progress()
    )


def test_every_method_is_timed_at_every_batch_size(result: bench.BenchResult) -> None:
    assert [(each.method, each.ratio, each.batch, each.tokens) for each in result.timings] == [
        (method, ratio, batch, tokens)
        for batch in (1, 3)
        for method, ratio, tokens in (
            ("generate", 1.0, 20),
            ("cot", 1.0, 20),
            ("direct", 0.0, 0),
            ("ccot", 0.1, 2),
            ("ccot", 0.25, 5),
        )
    ]
    assert all(len(each.seconds) == 2 and min(each.seconds) > 0 for each in result.timings)
    assert (result.num_layers, result.autoregressive_layer) == (4, 2)


def test_ratios_lie_between_their_extremes(result: bench.BenchResult) -> None:
    assert len(result.ratios) == 2 * (1 + 2 * len(RATIOS))
    assert all(0 < each.low <= each.median <= each.high for each in result.ratios)


def test_more_tokens_cost_more_bytes_and_operations(result: bench.BenchResult) -> None:
    cost = {(each.method, each.ratio, each.batch): each for each in result.timings}
    for batch in (1, 3):
        order = [
            cost["direct", 0.0, batch],
            cost["ccot", 0.1, batch],
            cost["ccot", 0.25, batch],
            cost["cot", 1.0, batch],
        ]
        assert [each.gigabytes for each in order] == sorted({each.gigabytes for each in order})
        assert [each.gigaflops for each in order] == sorted({each.gigaflops for each in order})
    # Three rows compute three times as much, and read the weights once.
    one, three = cost["cot", 1.0, 1], cost["cot", 1.0, 3]
    assert three.gigaflops == pytest.approx(3 * one.gigaflops)
    assert one.gigabytes < three.gigabytes < 1.1 * one.gigabytes


def test_the_operations_of_a_chain_are_those_of_its_matrices() -> None:
    result = bench.run(
        Settings(), shape="2x64", ratios=RATIOS[:1], batches=[1], lengths=LENGTHS, repeats=1, progress=Progress()
    )
    theta = random_theta("2x64", device=torch.device("cpu"), dtype=torch.float32)
    matrices = sum(each.numel() for each in theta.blocks.layers.parameters())
    head = theta.model.get_output_embeddings().weight.numel()
    [chain] = [each for each in result.timings if each.method == "cot"]
    assert chain.gigaflops == pytest.approx(2 * ((9 + 23) * matrices + 23 * head) / 1e9)


@pytest.mark.parametrize("text", ["", "16", "16x", "0x64", "16x500", "x64", "-1x64", "16x512x2", "llama3"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no shape"):
        read_shape(text)


def test_the_paper_s_model_has_its_size() -> None:
    layers, width, inner, _, vocabulary = read_shape("llama2-7b")
    assert layers * (4 * width**2 + 3 * width * inner) + 2 * vocabulary * width == pytest.approx(6.74e9, rel=1e-3)


def test_a_layer_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="2 layers"):
        bench.run(
            Settings(),
            shape="2x64",
            ratios=RATIOS,
            batches=[1],
            lengths=LENGTHS,
            layer=3,
            repeats=1,
            progress=Progress(),
        )
