"""What ψ learns from: one example for each problem."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PsiExample:
    """One problem for ψ."""

    query: list[int]
    """What θ encodes."""
    start: list[int]
    """What ψ is given first: <ANS>, or the token that opens an explicit chain."""
    answer: list[int]
    """What ψ must say, end of sequence included."""
    num_tokens: int
    """How many tokens it reads between query and answer; 0 for none."""
    num_before_end: int | None = None
    """k, if more tokens than that are read."""


ExamplesByEpoch = Callable[[int], Sequence[PsiExample]]
"""Every problem's example in an epoch, counted from 0: a curriculum."""
