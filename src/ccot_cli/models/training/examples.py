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
    """What ψ must write after that, end of sequence included."""
    num_tokens: int
    """Tokens between query and answer; 0 for none."""
    num_before_end: int | None = None
    """k, if ψ may read more tokens than that; None if `num_tokens` is k."""

    @property
    def length(self) -> int:
        """Tokens of the query, of what comes between query and answer, and of the answer."""
        return len(self.query) + self.num_tokens + len(self.start) + len(self.answer)


ExamplesByEpoch = Callable[[int], Sequence[PsiExample]]
"""A curriculum: an epoch, counted from 0 -> every problem's example in it."""
