"""Answer questions with one trained method."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from ccot_cli.config import Settings
from ccot_cli.data.arithmetic import false_step
from ccot_cli.data.batches import cut
from ccot_cli.data.domain import Domain, doubt
from ccot_cli.errors import UsageError
from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER
from ccot_cli.models.methods.cascade import Cascade
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.method import Method, Reply, reply_in_parts
from ccot_cli.names import CCOT, EMBEDDED_MIN_CONFIDENCE
from ccot_cli.stages.methods import Methods, find_methods, needs_theta_alone, no_tokens
from ccot_cli.stages.patching import swapped_answers
from ccot_cli.stages.thoughts import Checked, CheckedThought, check_thoughts, load_gold
from ccot_cli.workspace.workspace import Workspace

BATCH_SIZE = 32
DOMAIN_FILE = EMBEDDED_FOLDER / "domain.json"


@dataclass(frozen=True)
class AskResult:
    """One answered question."""

    answer: str
    method: str
    ratio: float
    contemplation_tokens: int
    seconds: float
    """Wall-clock time without loading: a batch's time divided by its number of questions."""
    truncated: bool
    """Whether a cap on tokens cut it short."""
    confidence: float
    """The probability that the answer is right, if that was calibrated on validation problems.

    Else the least probability that the model gave to a number's token in the answer, or in the chain if one was
    written. 0 if there is no number.
    """
    calibrated: bool
    model: str
    text: str
    """All decoded text: the answer, and at r = 1 the explicit chain before it."""
    in_domain: bool | None
    """Whether the model has learned questions like this and came to an answer of which it is sure enough.

    None if it has no record of them.
    """
    outside: str
    """Why it is a guess: it is not in the domain, it is not sure enough, or its chain is false; else empty."""
    chain: str | None
    """The text again, if the method writes a chain; else None."""
    prompt_tokens: int
    answer_tokens: int
    is_fallback: bool = False
    """Whether the method was not sure, and the chain's answer is given instead."""
    is_unsure: bool = False
    """Whether it is a guess only because its confidence is low or a step of its chain is false."""
    thoughts: list[CheckedThought] | None = None
    """What each contemplation token says; None if that was not asked for, or another method answered."""
    verified: bool | None = None
    """Whether the answer is the last verified number of the thoughts; None without thoughts."""
    explanation: str | None = None
    """The chain that the decoder reads from the contemplation tokens; None if that was not asked for."""

    def printed(self) -> dict[str, Any]:
        """Return what `--format json` prints."""
        hidden = {"text", "outside", "prompt_tokens", "answer_tokens", "is_unsure", "is_fallback"}
        hidden.update(name for name in ("chain", "thoughts", "verified", "explanation") if getattr(self, name) is None)
        return {name: value for name, value in asdict(self).items() if name not in hidden}


class Asker:
    """A loaded method that answers questions. Load once, ask often."""

    def __init__(
        self,
        workspace: Workspace | None,
        settings: Settings,
        ratio: Decimal | None,
        method: str | None = None,
        *,
        shows_thoughts: bool = False,
        swap_with: str | None = None,
        explains: bool = False,
        min_confidence: float | None = None,
        methods: Methods | None = None,
    ) -> None:
        """Load a method.

        Args:
            method: By default CCoT.
            shows_thoughts: Whether results say what each contemplation token says.
            swap_with: Another question: with thoughts, results also say what the answer would be with one of its
                tokens.
            explains: Whether results have the chain that the decoder reads from the contemplation tokens.
            min_confidence: Where an answer has less, from 0 to 1, write the chain and give its answer instead. By
                default `EMBEDDED_MIN_CONFIDENCE` of the methods in the package if neither a ratio nor a method is named
                and only the answer is asked for; else the chain is never written.
            methods: The workspace's methods, if they were found already; loading unloads another of them.

        Raises:
            MissingError: if the method was not trained, or not at that ratio, or has no decoder to explain with.
            UsageError: if there is no method of that name, or it has no contemplation tokens to read.
        """
        if methods is None:
            names, ratios = [method] if method not in (None, CCOT) else [], [ratio] if ratio is not None else []
            methods = find_methods(workspace, settings, may_have_none=needs_theta_alone(names, ratios))
        self.domain = Domain.load(DOMAIN_FILE) if methods.are_shipped else None
        recorded = self.domain.least_confidence if self.domain else None
        self.least_confidence = max(min_confidence or 0.0, recorded or 0.0)
        is_plain = ratio is None and method is None and not shows_thoughts and not explains
        if min_confidence is None and is_plain and methods.are_shipped:
            min_confidence = EMBEDDED_MIN_CONFIDENCE
        self.model = methods.theta.name
        self.theta = methods.theta
        fallback = None if min_confidence is None else methods.fallback()
        self.method: Method = methods.find(method or CCOT, ratio).load()
        if shows_thoughts:
            self.method = _reading_thoughts(self.method, workspace)
        if explains:
            self.method = methods.explaining(self.method)
        self.swap_with = None if swap_with is None else self.check(swap_with)
        self.cascade = Cascade(self.method, fallback, min_confidence or 0.0) if fallback else None

    @property
    def could_fall_back(self) -> bool:
        """Whether `--min-confidence` would have the chain written where the method is not sure."""
        return self.cascade is None and self.method.ratio != 1

    def check(self, question: str) -> str:
        """Return a question without white space around it.

        Raises:
            UsageError: if it is empty, or longer than the model can read.
        """
        question = question.strip()
        if not question:
            raise UsageError(
                "the question is empty", fix='ccot ask "Mia has 12 pens. ... How many pens does Mia have?"'
            )
        length, longest = len(self.theta.encoder.query(question)), self.theta.longest_query
        if longest is not None and length > longest:
            raise UsageError(
                f"the question has {length:,} tokens, but {self.model} reads at most {longest:,}",
                fix="ask a shorter question",
            )
        return question

    def ask(self, question: str) -> AskResult:
        """Answer one question.

        Raises:
            UsageError: if it is empty, or longer than the model can read.
        """
        [result] = self.answer([self.check(question)])
        return result

    def ask_all(self, questions: Sequence[str]) -> list[AskResult]:
        """Answer many questions, faster than one by one. The results are in the order of the questions.

        Raises:
            UsageError: if one is empty, or longer than the model can read. Then none is answered.
        """
        return self.answer([self.check(question) for question in questions])

    def answer(self, questions: Sequence[str]) -> list[AskResult]:
        """Answer checked questions in batches of similar length. The results are in the order of the questions."""
        order = sorted(range(len(questions)), key=lambda number: len(questions[number]))
        results: dict[int, AskResult] = {}
        for batch in cut(order, BATCH_SIZE):
            results.update(zip(batch, self._answer_batch([questions[number] for number in batch]), strict=True))
        return [results[number] for number in range(len(questions))]

    def _answer_batch(self, questions: Sequence[str]) -> list[AskResult]:
        started = time.perf_counter()
        replies, _ = reply_in_parts(self.cascade or self.method, questions)
        seconds = (time.perf_counter() - started) / len(questions)
        return [self._result(*each, seconds) for each in zip(questions, replies, strict=True)]

    def _result(self, question: str, reply: Reply, seconds: float) -> AskResult:
        method = self.cascade.fallback if self.cascade and reply.is_fallback else self.method
        chain = reply.text.strip() if isinstance(method, ChainMethod) else None
        outside, unsure = self._outside(question, reply), self._unsure(reply.confidence, chain or "")
        checked = None if reply.thoughts is None else self._check_thoughts(question, reply)
        return AskResult(
            answer=" ".join(reply.answer.split()),
            method=method.name,
            ratio=float(method.ratio),
            contemplation_tokens=reply.num_contemplation,
            seconds=seconds,
            truncated=reply.is_truncated,
            confidence=reply.confidence,
            calibrated=method.calibration is not None,
            model=self.model,
            text=reply.text.strip(),
            in_domain=None if self.domain is None else not (outside or unsure),
            outside=outside or unsure,
            chain=chain,
            prompt_tokens=len(self.theta.encoder.query(question)),
            answer_tokens=reply.num_answer,
            is_fallback=reply.is_fallback,
            is_unsure=bool(unsure) and not outside,
            thoughts=checked and checked.thoughts,
            verified=checked and checked.is_answer_verified,
            explanation=reply.explanation,
        )

    def _unsure(self, confidence: float, chain: str) -> str:
        """Say why an answer is a guess although it may be in the domain; return an empty text if it is not."""
        if step := false_step(chain):
            return f"a step of the chain is false: {step}"
        # Below what was asked for, or below what the record asks for, even the chain's answer is a guess.
        return doubt(confidence) if confidence < self.least_confidence else ""

    def _check_thoughts(self, question: str, reply: Reply) -> Checked:
        checked = check_thoughts(question, reply)
        if self.swap_with is None or not isinstance(self.method, CcotMethod):
            return checked
        swapped = swapped_answers(self.method, question, self.swap_with, count=len(checked.thoughts))
        pairs = zip_longest(checked.thoughts, swapped)
        return checked._replace(thoughts=[replace(thought, swapped=answer) for thought, answer in pairs])

    def _outside(self, question: str, reply: Reply) -> str:
        """Say why a question is not in the domain; return an empty text if it is, or if there is no record."""
        if self.domain is None:
            return ""
        if reason := self.domain.outside(question):
            return reason
        if reply.is_truncated:
            return "the answer did not come to an end"
        # A chain may end without `####`; its last number is then taken for the answer.
        return "" if reply.answer and reply.num_answer else "there is no final answer"


def _reading_thoughts(method: Method, workspace: Workspace | None) -> CcotMethod:
    """Let a method read its contemplation tokens, and compare them to the workspace's gold states.

    Raises:
        UsageError: if it generates none.
    """
    if not isinstance(method, CcotMethod):
        raise no_tokens("--show-thoughts", method)
    layer = method.info.autoregressive_layer
    gold = None if workspace is None else load_gold(workspace, method.theta, method.ratio, layer)
    return replace(method, reads_thoughts=True, gold=gold)
