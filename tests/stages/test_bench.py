"""The benchmark does what its numbers say; how fast it is, no test asks."""

from decimal import Decimal

import pytest

from ccot_cli.config import Settings
from ccot_cli.errors import UsageError
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
