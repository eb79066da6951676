"""A random model has the shape that was asked for."""

import pytest

from ccot_cli.errors import UsageError
from ccot_cli.models.base.random_model import read_shape


@pytest.mark.parametrize("text", ["", "16", "16x", "0x64", "16x500", "x64", "-1x64", "16x512x2", "llama3"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a shape"):
        read_shape(text)


def test_the_paper_s_model_has_its_size() -> None:
    layers, width, inner, _, vocabulary = read_shape("llama2-7b")
    assert layers * (4 * width**2 + 3 * width * inner) + 2 * vocabulary * width == pytest.approx(6.74e9, rel=1e-3)
