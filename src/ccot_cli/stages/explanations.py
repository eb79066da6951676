"""Measure how well the decoder's explanations fit the problems' chains, and whether they follow the tokens."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import and_
from statistics import fmean
from typing import NamedTuple

from ccot_cli.data.answers import is_correct, read_last_number
from ccot_cli.data.arithmetic import results_in
from ccot_cli.data.batches import group_alike
from ccot_cli.data.problems import Problem
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import Reply
from ccot_cli.progress import Progress
from ccot_cli.stages.statistics import Proportion, proportion, wilson
from ccot_cli.stages.validation import ask, is_right


@dataclass(frozen=True)
class Recovery:
    """What explanations have of the problems' chains. A proportion is None if there is nothing to count."""

    num_problems: int
    results: Proportion | None
    """Of the results in the chains, the numbers after `=`: those that the explanation has too."""
    results_before_last: Proportion | None
    """The same without each chain's last result, which is the answer."""
    token_f1: float | None
    """Mean over problems of the F1 of the explanation's tokens as guesses of the chain's, whatever their order."""
    agreement: Proportion | None
    """Of the explanations: those whose last number is the answer that was given, right or wrong."""


@dataclass(frozen=True)
class Exchange:
    """What follows if contemplation tokens are replaced by another problem's, the donor's, equally many.

    Counted are pairs with different answers. The proportions are None if there is no pair.
    """

    num_pairs: int
    answer: Proportion | None
    """The answer is the donor's now."""
    explanation: Proportion | None
    """The explanation's last number is the donor's answer now."""
    both: Proportion | None
    """Both of these."""
    agreement: Proportion | None
    """Explanation and answer agree, on the donor's answer or another one."""
    own_results: Proportion | None
    """Of the results in the problem's own chain: those that the explanation has now. So much do the question's numbers
    tell without its tokens."""


@dataclass(frozen=True)
class Explanations:
    """All figures of one method."""

    right: Recovery
    """Problems that were answered right."""
    wrong: Recovery
    """Problems that were answered wrong."""
    exchange: Exchange


def measure_explanations(
    method: CcotMethod, problems: Sequence[Problem], batch_size: int, progress: Progress
) -> Explanations:
    """Explain the answers to all problems, then those to the same problems with each other's tokens.

    Args:
        method: With its decoder loaded.
    """
    method = replace(method, explains=True)
    explained = [
        Explained(problem, reply)
        for batch, replies, _ in ask(method, problems, batch_size, "explanations", progress)
        for problem, reply in zip(batch, replies, strict=True)
    ]
    return Explanations(
        right=_recovery(method, [each for each in explained if each.is_right]),
        wrong=_recovery(method, [each for each in explained if not each.is_right]),
        exchange=_exchange(method, explained, batch_size, progress),
    )


class Explained(NamedTuple):
    """A problem with its answer and explanation."""

    problem: Problem
    reply: Reply

    @property
    def is_right(self) -> bool:
        return is_right(self.problem, self.reply)

    @property
    def text(self) -> str:
        assert self.reply.explanation is not None
        return self.reply.explanation

    @property
    def agrees(self) -> bool:
        return ends_in(self.text, self.reply.answer)


def ends_in(explanation: str, answer: str) -> bool:
    """Tell whether an explanation's last number is an answer."""
    number = read_last_number(explanation)
    return number is not None and is_correct(number, answer)


def _recovery(method: CcotMethod, explained: Sequence[Explained]) -> Recovery:
    tokens = method.theta.encoder.tokenizer

    def ids(text: str) -> list[int]:
        return list(tokens(text, add_special_tokens=False).input_ids)

    chains = [results_in(each.problem.chain) for each in explained]
    return Recovery(
        num_problems=len(explained),
        results=_found(explained, chains),
        results_before_last=_found(explained, [chain[:-1] for chain in chains]),
        token_f1=fmean(f1(ids(each.text), ids(each.problem.chain)) for each in explained) if explained else None,
        agreement=proportion(each.agrees for each in explained),
    )


def _found(explained: Sequence[Explained], chains: Sequence[Sequence[Fraction]]) -> Proportion | None:
    """Count the results that explanations have too, each as often as it occurs."""
    pairs = [(Counter(results_in(each.text)), Counter(chain)) for each, chain in zip(explained, chains, strict=True)]
    total = sum(chain.total() for _, chain in pairs)
    return wilson(sum((has & chain).total() for has, chain in pairs), total) if total else None


def f1(one: Sequence[int], other: Sequence[int]) -> float:
    """Compute the F1 of two texts as bags of tokens; 0 if one is empty."""
    shared = (Counter(one) & Counter(other)).total()
    return 2 * shared / (len(one) + len(other)) if shared else 0.0


def _exchange(method: CcotMethod, explained: Sequence[Explained], batch_size: int, progress: Progress) -> Exchange:
    """Let problems with equally many tokens answer and explain from each other's."""
    shuffled, pairs = replace(method, control="shuffled"), list[tuple[Explained, Explained]]()
    alike = group_alike(explained, lambda each: each.reply.num_contemplation, batch_size=batch_size)
    with progress.task("exchanged tokens", total=len(explained), unit="problems") as advance:
        for batch in alike:
            replies, _ = shuffled.reply([each.problem.question for each in batch])
            # The control gives each row the tokens of the row before.
            for one, reply, donor in zip(batch, replies, [batch[-1], *batch[:-1]], strict=True):
                if not is_correct(one.reply.answer, donor.reply.answer):
                    pairs.append((Explained(one.problem, reply), donor))
            advance(len(batch))
    answers = [is_correct(now.reply.answer, donor.reply.answer) for now, donor in pairs]
    explanations = [ends_in(now.text, donor.reply.answer) for now, donor in pairs]
    return Exchange(
        num_pairs=len(pairs),
        answer=proportion(answers),
        explanation=proportion(explanations),
        both=proportion(map(and_, answers, explanations)),
        agreement=proportion(now.agrees for now, _ in pairs),
        own_results=_found([now for now, _ in pairs], [results_in(now.problem.chain) for now, _ in pairs]),
    )
