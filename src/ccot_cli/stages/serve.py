"""Answer the questions of many clients: a queue with an end, batches for one method, and one thread that computes.

A model is what a client names: a method at a ratio, such as `ccot-0.1`.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from decimal import Decimal
from heapq import nsmallest
from threading import Condition, Thread
from types import TracebackType
from typing import NamedTuple, Protocol

from ccot_cli.config import Settings
from ccot_cli.errors import BusyError, CcotError, UsageError
from ccot_cli.models.methods.loading import fixed_ratio
from ccot_cli.names import CCOT, GOLD, parse_ratio
from ccot_cli.stages.ask import BATCH_SIZE, Asker, AskResult
from ccot_cli.stages.methods import find_methods
from ccot_cli.workspace.workspace import Workspace


class Answering(Protocol):
    """Answers questions with one method, such as `Asker`."""

    def check(self, question: str) -> str: ...

    def answer(self, questions: Sequence[str]) -> list[AskResult]: ...


class Model(NamedTuple):
    """What a client can name."""

    method: str
    ratio: Decimal
    may_fall_back: bool = False
    """Whether it is what answers if only `ccot` is named, and writes the chain where it is not sure."""

    @property
    def id(self) -> str:
        """Its name: `ccot-0.1`, also `ccot-0` and `ccot-1`; `pause-0.1`; `coconut`, if the ratio is fixed."""
        if self.may_fall_back:
            return CCOT
        if self.method in (CCOT, "direct", "cot"):
            return f"{CCOT}-{self.ratio:f}"
        return self.method if fixed_ratio(self.method) is not None else f"{self.method}-{self.ratio:f}"


def split_name(name: str) -> tuple[str, Decimal | None]:
    """Split a model's name into a method and a ratio: `pause-0.1`, `cot`."""
    method, _, ratio = name.rpartition("-")
    try:
        return (method, parse_ratio(ratio)) if method else (name, None)
    except ValueError:
        return name, None


class Models:
    """The methods of a workspace, or those in the package. Each is loaded once, on its first question, and kept.

    All share θ's weights. Only the thread that computes may call `load`.

    Raises:
        MissingError: if the workspace has no trained method yet.
    """

    def __init__(self, workspace: Workspace | None, settings: Settings) -> None:
        self._methods = find_methods(workspace, settings)
        self._askers: dict[str, Asker] = {}
        # The ceiling reads chains, which questions do not have.
        self.all = [Model(each.name, each.ratio) for each in self._methods.choose() if each.name != GOLD]
        if self._methods.are_shipped:
            self.all.insert(0, self.find(CCOT))

    @property
    def unusable(self) -> list[CcotError]:
        """Why methods that were trained are not served."""
        return [*self._methods.unusable.values()]

    @property
    def default(self) -> Model:
        """CCoT at the usual ratio, or the trained one that is nearest to it; without CCoT, the first method.

        Raises:
            CcotError: if there is none.
        """
        if not self.all or any(model.method == CCOT for model in self.all):
            return self.find(CCOT)
        return self.all[0]

    def find(self, name: str, method: str | None = None, ratio: Decimal | None = None) -> Model:
        """Find the model that a client names.

        Args:
            name: Such as `ccot-0.1`, `cot` or `ccot`, which answers as `ccot ask` does if no method is named.
            method: Wins over the one of the name, as does `ratio`.

        Raises:
            CcotError: if it was not trained.
        """
        named, named_ratio = split_name(name)
        found = self._methods.find(method or named, named_ratio if ratio is None else ratio)
        is_plain = (name, method, ratio) == (CCOT, None, None)
        return Model(found.name, found.ratio, may_fall_back=is_plain and self._methods.are_shipped)

    def load(self, model: Model) -> Asker:
        """Return what answers for a model, loaded on the first call.

        Raises:
            CcotError: if its files are damaged, or memory is short.
        """
        if model.id not in self._askers:
            methods = replace(self._methods, theta=self._methods.theta.twin())
            named = (None, None) if model.may_fall_back else (model.ratio, model.method)
            self._askers[model.id] = Asker(methods.workspace, methods.settings, *named, methods=methods)
        return self._askers[model.id]


class QueueFullError(BusyError):
    def __init__(self, size: int) -> None:
        super().__init__(f"{size:,} questions wait already", fix="ask again later, or ccot serve --queue with more")


class StoppingError(BusyError):
    def __init__(self) -> None:
        super().__init__("the server is stopping", fix="ccot serve")


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A question that waits for its answer."""

    model: Model
    question: str
    future: "Future[AskResult]" = field(default_factory=Future)


class AnswerQueue:
    """Questions that wait, and the thread that answers them; a context, whose end answers what still waits.

    The thread takes the question that has waited longest, and with it those for the same model that are nearest to it
    in length, up to a batch: padding costs time. It waits for no others to come.
    """

    def __init__(self, load: Callable[[Model], Answering], *, size: int, first: Model | None = None) -> None:
        """Start no thread yet.

        Args:
            load: Returns what answers for a model; called in the thread. On a CPU, a question was answered in 40
                instead of 30 ms where another thread had computed before, so this thread loads models too.
            size: Most questions that wait, besides those that are being answered.
            first: A model to load before questions are taken; on entering, its loading's error is raised.
        """
        self._load, self._size, self._first = load, size, first
        self._is_ready: Future[None] = Future()
        self._waiting: list[_Waiting] = []
        self._changed = Condition()
        self._is_stopping = False
        self._thread = Thread(target=self._work, name="answers", daemon=True)

    def __enter__(self) -> "AnswerQueue":
        self._thread.start()
        self._is_ready.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def submit(self, model: Model, question: str) -> "Future[AskResult]":
        """Let a question wait. Its future has the result, or the error; if cancelled, it waits no longer.

        Raises:
            QueueFullError: if too many wait.
            StoppingError: after `stop`.
        """
        with self._changed:
            if self._is_stopping:
                raise StoppingError
            self._waiting = [each for each in self._waiting if not each.future.cancelled()]
            if len(self._waiting) >= self._size:
                raise QueueFullError(self._size)
            waiting = _Waiting(model, question)
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.future

    def stop(self) -> None:
        """Take no more questions. Those that wait are still answered."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def _work(self) -> None:
        try:
            if self._first:
                self._load(self._first)
        except BaseException as error:
            self._is_ready.set_exception(error)
            return
        self._is_ready.set_result(None)
        while (batch := self._next_batch()) is not None:
            running = [each for each in batch if each.future.set_running_or_notify_cancel()]
            try:
                _answer(self._load, running)
            except Exception as error:  # One batch's error must not end the thread.
                if not isinstance(error, CcotError):
                    logging.getLogger(__name__).exception("a batch of %d questions failed", len(running))
                for each in running:
                    if not each.future.done():
                        each.future.set_exception(error)

    def _next_batch(self) -> list[_Waiting] | None:
        """Wait for questions and take a batch; return None if there are none and no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_stopping)
            if not self._waiting:
                return None
            oldest = self._waiting[0]
            alike = [each for each in self._waiting if each.model == oldest.model]
            # Of equally near ones the first come first, and so does the oldest.
            batch = nsmallest(BATCH_SIZE, alike, key=lambda each: abs(len(each.question) - len(oldest.question)))
            self._waiting = [each for each in self._waiting if each not in batch]
        return batch


def _answer(load: Callable[[Model], Answering], waiting: Sequence[_Waiting]) -> None:
    """Answer questions for one model. One that is refused gets its own error."""
    if not waiting:
        return
    asker = load(waiting[0].model)
    accepted, questions = [], []
    for each in waiting:
        try:
            questions.append(asker.check(each.question))
            accepted.append(each)
        except UsageError as error:
            each.future.set_exception(error)
    for each, result in zip(accepted, asker.answer(questions), strict=True):
        each.future.set_result(result)
