"""Ratios are read as they are written, and name folders."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccot_cli.names import parse_ratio, ratio_name


@given(st.decimals(0, 1, places=4))
def test_a_ratios_name_holds_the_ratio(ratio: Decimal) -> None:
    assert parse_ratio(ratio_name(parse_ratio(ratio))[1:]) == ratio


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.01", "", "a", None, "inf", "1e-9999999", "1e-7", "0.1000001"])
def test_what_is_no_ratio_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="ratio"):
        parse_ratio(value)
