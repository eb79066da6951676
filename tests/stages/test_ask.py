"""Questions are checked before they are asked, and those that the model has not learned are told apart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import pytest
import torch

from ccot_cli import load
from ccot_cli.errors import UsageError
from ccot_cli.models.decoding.end import End
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.method import Reply, Seconds
from ccot_cli.stages.ask import Asker
from ccot_cli.tensors.probes import Logistic
from stages.runs import RATIO, MakeRun


@pytest.mark.parametrize("question", ["", "  \n ", "pens " * 2000])
def test_an_empty_or_endless_question_is_refused(make_run: MakeRun, question: str) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    with pytest.raises(UsageError):
        Asker(run.workspace, run.settings, Decimal(0)).check(question)


def test_from_python_a_workspace_answers_as_it_does_from_the_command_line(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    question = "Mia has 12 pens. How many pens does Mia have?"
    expected = Asker(run.workspace, run.settings, Decimal(0)).ask(question)
    for folder in (run.workspace.root, str(run.workspace.root)):
        found = load(folder, ratio=0).ask(question)
        assert replace(found, seconds=0) == replace(expected, seconds=0)
    assert (found.method, found.model) == ("direct", run.settings.model.name)
    assert (found.in_domain, found.outside) == (None, "")


QUESTION = "Mia has 12 pens. She buys 7 more and gives away 4. How many pens does Mia have now?"


def test_tokens_are_swapped_as_far_as_the_answer_had_some_even_if_end_would_differ_now(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    asker = Asker(run.workspace, run.settings, RATIO, shows_thoughts=True, swap_with="How many pens are 3 pens?")
    assert isinstance(asker.method, CcotMethod)
    never = Logistic(torch.zeros(asker.theta.model.config.hidden_size), torch.tensor(-1.0))
    asker.method = replace(asker.method, end=End(never, never))
    [reply], _ = asker.method.reply([QUESTION])
    assert reply.thoughts is not None
    assert len(reply.thoughts) > 1
    shorter = replace(reply, num_contemplation=1, thoughts=reply.thoughts[:1])
    [thought] = asker._check_thoughts(QUESTION, shorter).thoughts
    assert isinstance(thought.swapped, str)


@dataclass(frozen=True)
class Replies:
    """A method that gives one reply to every question."""

    fixed: Reply
    name: str = "cot"
    ratio: Decimal = Decimal(1)
    calibration: None = None

    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        return [self.fixed for _ in questions], Seconds(0, 0, 0)


def test_the_shipped_model_says_which_questions_it_has_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = load(ratio=1)
    known, unknown = asker.ask_all([QUESTION, "What is the capital of France?"])
    assert (known.answer, known.in_domain, known.outside) == ("15", True, "")
    assert (unknown.in_domain, unknown.outside) == (False, "there is no number in it")
    replies = {
        "": Reply("15", "#### 15", 9, 1, is_truncated=False, confidence=0.9),
        "the answer did not come to an end": Reply("15", "#### 15", 9, 1, is_truncated=True, confidence=0.9),
        # The last number of a chain without `####` is taken for its answer.
        "there is no final answer": Reply("15", "That is 15.", 9, 0, is_truncated=False, confidence=0.9),
    }
    for reason, reply in replies.items():
        monkeypatch.setattr(asker, "method", Replies(reply))
        assert (asker.ask(QUESTION).outside, asker.ask(QUESTION).is_unsure) == (reason, False)
        assert asker.ask(QUESTION).in_domain == (not reason)
    monkeypatch.setattr(asker, "method", Replies(Reply("", " ", 3, 1, is_truncated=False, confidence=0.9)))
    assert asker.ask(QUESTION).outside == "there is no final answer"
    assert asker.domain is not None
    assert asker.least_confidence == asker.domain.least_confidence
    monkeypatch.setattr(asker, "least_confidence", 0.5)
    for confidence, reason in ((0.5, ""), (0.419, "the model is not sure of a number (confidence 0.41)")):
        reply = Reply("15", "#### 15", 9, 1, is_truncated=False, confidence=confidence)
        monkeypatch.setattr(asker, "method", Replies(reply))
        found = asker.ask(QUESTION)
        assert (found.outside, found.is_unsure, found.in_domain) == (reason, bool(reason), not reason)


def test_an_answer_whose_chain_has_a_false_step_is_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = load(ratio=1)
    assert asker.ask(QUESTION).outside == ""
    reply = Reply("17", "12 + 7 = 17\n#### 17", 9, 1, is_truncated=False, confidence=0.9)
    assert isinstance(asker.method, ChainMethod)
    monkeypatch.setattr(ChainMethod, "reply", lambda *_: ([reply], Seconds(0, 0, 0)))
    found = asker.ask(QUESTION)
    assert (found.outside, found.is_unsure) == ("a step of the chain is false: 12 + 7 = 17", True)
    assert found.in_domain is False
