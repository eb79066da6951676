"""A stand-in for a model that answers questions, whose pace a test sets."""

from collections.abc import Sequence
from decimal import Decimal
from threading import Event

from ccot_cli.errors import UsageError
from ccot_cli.stages.ask import AskResult
from ccot_cli.stages.serve import Model

CCOT_MODEL, DIRECT_MODEL = Model("ccot", Decimal("0.1")), Model("direct", Decimal(0))
SECONDS = 30.0
"""Longest that a test waits for something that comes at once."""


def result_of(question: str, model: Model = CCOT_MODEL) -> AskResult:
    """What `Answerer` answers to a question."""
    return AskResult(
        answer=question.upper(),
        method=model.method,
        ratio=float(model.ratio),
        contemplation_tokens=3,
        seconds=0.25,
        truncated=False,
        confidence=0.5,
        calibrated=False,
        model="fake",
        in_domain=True,
        text=question.upper(),
        outside="",
        chain=None,
        prompt_tokens=7,
        answer_tokens=2,
    )


class Answerer:
    """Answers with a question's own letters, in capitals, once `gate` is open; refuses "bad", breaks on "break"."""

    def __init__(self) -> None:
        self.gate, self.begun = Event(), Event()
        self.gate.set()
        self.batches: list[tuple[Model, list[str]]] = []
        self.model = CCOT_MODEL

    def load(self, model: Model) -> "Answerer":
        self.model = model
        return self

    def check(self, question: str) -> str:
        if question == "bad":
            raise UsageError("it is bad", fix="mend it")
        return question

    def answer(self, questions: Sequence[str]) -> list[AskResult]:
        self.batches.append((self.model, list(questions)))
        self.begun.set()
        assert self.gate.wait(SECONDS)
        if "break" in questions:
            raise ZeroDivisionError("it broke")
        return [result_of(question, self.model) for question in questions]
