"""Answer with one method, and with another one where the first is not sure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from ccot_cli.errors import UsageError
from ccot_cli.models.base.history import History
from ccot_cli.models.methods.calibration import Calibration
from ccot_cli.models.methods.method import Method, Reply, Seconds


@dataclass
class Cascade:
    """Asks `first`, and asks `fallback` again what `first` answered with too little confidence.

    Raises:
        UsageError: if the first method writes the whole chain, as the second one would.
    """

    first: Method
    fallback: Method
    min_confidence: float
    """From 0, which never falls back, to 1. A lower confidence is too little."""
    calibration: Calibration | None = None
    """None: both methods have their own."""

    def __post_init__(self) -> None:
        if self.first.ratio == 1:
            raise UsageError(
                f"--min-confidence lets the chain be written where a method is not sure; {self.first.name} always"
                " writes it",
                fix="a --ratio below 1, or leave out --min-confidence",
            )

    @property
    def name(self) -> str:
        return f"{self.first.name}, then {self.fallback.name}"

    @property
    def ratio(self) -> Decimal:
        """That of the first method."""
        return self.first.ratio

    @property
    def training(self) -> dict[str, History | None]:
        """That of the first method."""
        return self.first.training

    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        """Answer a batch; tokens between query and answer, and seconds, are those of both attempts.

        Raises:
            UsageError: if a question is longer than the model's positions.
        """
        replies, seconds = self.first.reply(questions)
        unsure = [number for number, reply in enumerate(replies) if reply.confidence < self.min_confidence]
        if not unsure:
            return replies, seconds
        again, more = self.fallback.reply([questions[number] for number in unsure])
        for number, reply in zip(unsure, again, strict=True):
            count = replies[number].num_contemplation + reply.num_contemplation
            replies[number] = replace(reply, num_contemplation=count, is_fallback=True)
        return replies, seconds + more
