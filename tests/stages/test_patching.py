"""The experiment that replaces tokens: what it predicts, whom it pairs, and how it counts."""

import pytest
import torch
from conftest import MakeTheta, shaken

from ccot_cli.config import DecodingConfig
from ccot_cli.data.problems import Problem
from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.thoughts import Thought, Word
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.controls import token_states
from ccot_cli.models.methods.method import MethodInfo, Reply
from ccot_cli.models.methods.patching import patch
from ccot_cli.names import QueryUnder
from ccot_cli.stages.patching import (
    Case,
    Solved,
    answers,
    count_moves,
    predict,
    replace_each,
    swapped_answers,
)
from ccot_cli.stages.statistics import wilson
from ccot_cli.tensors.probes import Logistic, Probe


def problem(name: str, a: int, b: int, c: int) -> Problem:
    chain = f"Adding {a} and {b} gives {a} + {b} = {a + b}.\n{a + b} * {c} = {(a + b) * c}"
    return Problem(name, f"Mia has {a} pens and buys {b}. Ben has {c} times as many.", chain, str((a + b) * c))


def solved(one: Problem, *tops: int) -> Solved:
    thoughts = [Thought([Word(f" {top}", 0.9)], [], 0.0, 1.0) for top in tops]
    reply = Reply(one.answer, one.answer, len(tops), 1, is_truncated=False, confidence=0.9, thoughts=thoughts)
    return Solved(one, reply)


def test_a_prediction_computes_the_chain_again_with_the_donor_s_result() -> None:
    one, donor = problem("one", 12, 7, 2), problem("donor", 3, 8, 5)
    first, second = solved(one, 19, 38), solved(donor, 11, 55)
    assert predict(first, donor=second, place=0) == 22
    # In the last place the prediction would be the donor's answer.
    assert predict(first, donor=second, place=1) is None
    # Neither a token that says no result of its chain nor a donor's counts, nor a result that both have.
    assert predict(solved(one, 12), donor=second, place=0) is None
    assert predict(first, donor=solved(donor, 8), place=0) is None
    assert predict(first, donor=solved(problem("same", 10, 9, 3), 19), place=0) is None


def never_ending(make_theta: MakeTheta, *, query_under: QueryUnder = "theta") -> CcotMethod:
    theta = make_theta("llama")
    width = theta.model.config.hidden_size
    never = Logistic(torch.zeros(width), torch.tensor(-1.0))
    draft = Draft(Probe(torch.zeros(width + 1, 1), torch.tensor([5])), 0.0)
    info, decoding = MethodInfo("ccot", "0.1", 2, query_under=query_under), DecodingConfig(max_answer_tokens=3)
    return CcotMethod(shaken(theta, PHI, PSI), info, decoding, End(never, never), draft)


def test_every_token_of_every_problem_is_replaced_once(make_theta: MakeTheta) -> None:
    method = never_ending(make_theta)
    batch = [solved(problem("a", 12, 7, 2), 19, 38), solved(problem("b", 3, 8, 5), 11, 55)]
    cases = list(replace_each(method, batch))
    assert [(case.place, case.is_predicted is None) for case in cases] == [(0, False)] * 2 + [(1, True)] * 2


@pytest.mark.parametrize("query_under", ["theta", "phi"])
def test_swaps_with_itself_change_nothing_and_those_with_another_question_are_its_patches(
    make_theta: MakeTheta, query_under: QueryUnder
) -> None:
    method = never_ending(make_theta, query_under=query_under)
    one, other = (problem(name, *numbers).question for name, numbers in (("a", (12, 7, 2)), ("b", (3, 8, 5))))
    [reply], _ = method.reply([one])
    count = reply.num_contemplation
    assert swapped_answers(method, one, one, count=count) == [reply.answer] * count
    queries = [[method.theta.encoder.query(question)] for question in (one, other)]
    own, donor = (
        contemplate(method.adapters, *method.read(ids), layer=2, max_tokens=20, is_end=method.end) for ids in queries
    )
    assert int(own.num_tokens_B) == int(donor.num_tokens_B) == count
    reader = method.reader
    states_BIKD = token_states(method.adapters, queries[1], donor, reader=reader)
    patched = (
        patch(method.adapters, queries[0], own, states_BIKD, place, layer=2, reader=reader) for place in range(20)
    )
    expected = [answers(method, sequence)[0] for sequence in patched]
    assert swapped_answers(method, one, other, count=count) == expected
    assert len({*expected}) > 1


def test_moves_are_counted_with_intervals() -> None:
    cases = [
        Case(place=0, has_moved=True, is_predicted=True, is_donors=False),
        Case(place=1, has_moved=True, is_predicted=False, is_donors=True),
        Case(place=0, has_moved=False, is_predicted=None, is_donors=False),
    ]
    moves = count_moves(cases)
    assert moves.moved == wilson(2, 3)
    assert moves.told_moved == wilson(2, 2)
    assert moves.told_predicted == moves.told_donors == wilson(1, 2)
    assert count_moves(cases[2:]).told_moved is None
    assert count_moves([]).moved is None
