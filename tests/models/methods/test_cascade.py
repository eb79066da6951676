"""A cascade asks its second method what the first one is not sure of, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import pytest

from ccot_cli.models.methods.cascade import Cascade
from ccot_cli.models.methods.method import Reply, Seconds


@dataclass
class Sure:
    """A method whose confidence is the number that a question is; it answers with its own name."""

    name: str
    num_tokens: int
    ratio: Decimal = Decimal("0.1")
    calibration: None = None
    asked: list[list[str]] = field(default_factory=list)

    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        self.asked.append(list(questions))
        replies = [
            Reply(f"{self.name} {each}", self.name, self.num_tokens, 1, is_truncated=False, confidence=float(each))
            for each in questions
        ]
        return replies, Seconds(1, 2, len(questions))


QUESTIONS = ["0.9", "0.2", "0.5", "0.4", "1.0", "0.0"]


@pytest.mark.parametrize(
    ("least", "unsure"),
    [(0.0, []), (0.3, ["0.2", "0.0"]), (0.5, ["0.2", "0.4", "0.0"]), (1.0, ["0.9", "0.2", "0.5", "0.4", "0.0"])],
)
def test_what_is_below_goes_to_the_second_method_in_one_batch(least: float, unsure: list[str]) -> None:
    first, second = Sure("ccot", 3), Sure("cot", 20, Decimal(1))
    cascade = Cascade(first, second, least)
    replies, seconds = cascade.reply(QUESTIONS)
    assert second.asked == ([unsure] if unsure else [])
    assert [reply.answer for reply in replies] == [
        f"{'cot' if each in unsure else 'ccot'} {each}" for each in QUESTIONS
    ]
    assert [reply.is_fallback for reply in replies] == [each in unsure for each in QUESTIONS]
    # Both attempts are paid for.
    assert [reply.num_contemplation for reply in replies] == [23 if each in unsure else 3 for each in QUESTIONS]
    assert seconds == (Seconds(2, 4, 6 + len(unsure)) if unsure else Seconds(1, 2, 6))
    assert (cascade.name, cascade.ratio) == ("ccot, then cot", Decimal("0.1"))
