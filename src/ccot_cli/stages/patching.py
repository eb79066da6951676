"""Replace one contemplation token by another question's, and see whether the answer follows.

Questions are paired that have equally many steps and equally many contemplation tokens, and are both answered right. At
one place after the other, the token is replaced by the other question's (the donor's): the keys and values of its
states at every index, and the state at index l that the next token is fed. φ generates the rest anew, and ψ answers.

Arithmetic predicts where the answer moves: if both tokens' top numbers are results of their chains, the chain is
computed again with the donor's result in the place of its own. Such a replacement counts if the prediction is a whole
number that is neither question's answer, so that no other account leads to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from ccot_cli.data.answers import is_correct, read_after_marker
from ccot_cli.data.arithmetic import equations_in, recompute, write_number
from ccot_cli.data.problems import Problem
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.decoding.phi import Contemplation, contemplate
from ccot_cli.models.decoding.psi import decode
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import Reply
from ccot_cli.models.methods.patching import patch
from ccot_cli.stages.statistics import Proportion, proportion
from ccot_cli.stages.thoughts import result_of


@dataclass(frozen=True)
class Solved:
    """A problem that was answered right, and what its contemplation tokens say."""

    problem: Problem
    reply: Reply

    @property
    def kind(self) -> tuple[int, int]:
        """Problems of one kind are paired: numbers of steps and of contemplation tokens."""
        return self.problem.num_steps, self.reply.num_contemplation


@dataclass(frozen=True)
class Case:
    """One token of one question, replaced."""

    place: int
    """Which one, from 0."""
    has_moved: bool
    """Whether the answer is another one than before."""
    is_predicted: bool | None
    """Whether it is what arithmetic predicts; None if arithmetic predicts nothing that counts."""
    is_donors: bool
    """Whether it is the donor's answer."""


def predict(one: Solved, donor: Solved, place: int) -> Fraction | None:
    """Predict the answer with the donor's result in the place of a token's own; None if no prediction counts."""
    assert one.reply.thoughts is not None
    assert donor.reply.thoughts is not None
    own, other = result_of(one.reply.thoughts[place]), result_of(donor.reply.thoughts[place])
    steps = equations_in(one.problem.chain)
    results = [step.result for step in steps]
    if (
        own is None
        or own not in results
        or other is None
        or other not in [step.result for step in equations_in(donor.problem.chain)]
    ):
        return None
    predicted = recompute(steps, results.index(own), other)
    if predicted is None or predicted.denominator != 1 or predicted < 0:
        return None
    answers = one.problem.answer, donor.problem.answer
    return None if any(is_correct(write_number(predicted), answer) for answer in answers) else predicted


@torch.no_grad()
def swapped_answers(method: CcotMethod, question: str, donor: str, *, count: int) -> list[str]:
    """Answer a question with one contemplation token after the other replaced by another question's.

    Args:
        count: How many tokens the question has.

    Returns:
        An answer for each of its tokens that the donor has too.
    """
    queries, donors = ([method.theta.encoder.query(each)] for each in (question, donor))
    tokens = _generate(method, queries, count)
    donor_tokens = method.generate(*method.read(donors))
    donor_BIKD = method.token_states(donors, donor_tokens)
    places = range(min(count, int(donor_tokens.num_tokens_B)))
    return [each for place in places for each in _patched_answers(method, queries, tokens, donor_BIKD, place)]


def _generate(method: CcotMethod, queries: list[list[int]], count: int) -> Contemplation:
    """Generate so many contemplation tokens for each query, whatever END says."""
    layer = method.info.autoregressive_layer
    return contemplate(method.adapters, *method.read(queries), layer=layer, max_tokens=count)


def _patched_answers(
    method: CcotMethod, queries: list[list[int]], tokens: Contemplation, donor_BIKD: Tensor, place: int
) -> list[str]:
    """Answer queries with the donors' token at one place."""
    layer = method.info.autoregressive_layer
    sequence = patch(method.adapters, queries, tokens, donor_BIKD, place, layer=layer, reader=method.reader)
    return answers(method, sequence)


@torch.no_grad()
def replace_each(method: CcotMethod, batch: Sequence[Solved]) -> Iterator[Case]:
    """Replace every token of problems of one kind by the next problem's, one at a time."""
    count = batch[0].reply.num_contemplation
    queries = [method.theta.encoder.query(each.problem.question) for each in batch]
    tokens = _generate(method, queries, count)
    donors = [*batch[1:], batch[0]]
    donor_BIKD = method.token_states(queries, tokens).roll(-1, dims=0)
    for place in range(count):
        patched = _patched_answers(method, queries, tokens, donor_BIKD, place)
        for one, donor, answer in zip(batch, donors, patched, strict=True):
            predicted = predict(one, donor, place)
            yield Case(
                place=place,
                has_moved=not is_correct(answer, one.problem.answer),
                is_predicted=None if predicted is None else is_correct(answer, write_number(predicted)),
                is_donors=is_correct(answer, donor.problem.answer),
            )


def answers(method: CcotMethod, sequence: CachedSequence) -> list[str]:
    """Answer under ψ from queries and tokens."""
    encoder = method.theta.encoder
    start = [encoder.answer_marker] * len(sequence.mask_BS)
    text = decode(method.adapters, sequence, start, max_tokens=method.decoding.max_answer_tokens)
    return [read_after_marker(encoder.decode(ids)) or "" for ids in text.ids]


@dataclass(frozen=True)
class Moves:
    """Where answers moved when a token was replaced, each with a Wilson 95 % interval; None if there is no case."""

    moved: Proportion | None
    """Of all replacements: the answer is another one."""
    told_moved: Proportion | None
    """Of those where arithmetic predicts another answer: it moved."""
    told_predicted: Proportion | None
    """Of the same: to that answer."""
    told_donors: Proportion | None
    """Of the same: to the donor's answer."""


def count_moves(cases: Sequence[Case]) -> Moves:
    """Count where the answers moved."""
    told = [case for case in cases if case.is_predicted is not None]
    return Moves(
        moved=proportion(case.has_moved for case in cases),
        told_moved=proportion(case.has_moved for case in told),
        told_predicted=proportion(bool(case.is_predicted) for case in told),
        told_donors=proportion(case.is_donors for case in told),
    )
