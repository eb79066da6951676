"""The experiment that replaces tokens: what it predicts, whom it pairs, and how it counts."""

from types import ModuleType

import pytest
import torch
from conftest import MakeTheta, shaken

from ccot_cli.config import DecodingConfig
from ccot_cli.data.problems import Problem
from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.thoughts import Thought, Word
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import MethodInfo, Reply
from ccot_cli.tensors.probes import Logistic, Probe
from examples.scripts import script


@pytest.fixture(scope="module")
def patching() -> ModuleType:
    return script("research/patching.py")


def problem(name: str, a: int, b: int, c: int) -> Problem:
    chain = f"Adding {a} and {b} gives {a} + {b} = {a + b}.\n{a + b} * {c} = {(a + b) * c}"
    return Problem(name, f"Mia has {a} pens and buys {b}. Ben has {c} times as many.", chain, str((a + b) * c))


def solved(patching: ModuleType, one: Problem, *tops: int) -> object:
    thoughts = [Thought([Word(f" {top}", 0.9)], [], 0.0, 1.0) for top in tops]
    reply = Reply(one.answer, one.answer, len(tops), 1, is_truncated=False, confidence=0.9, thoughts=thoughts)
    return patching.Solved(one, reply)


def test_a_prediction_computes_the_chain_again_with_the_donor_s_result(patching: ModuleType) -> None:
    one, donor = problem("one", 12, 7, 2), problem("donor", 3, 8, 5)
    first, second = solved(patching, one, 19, 38), solved(patching, donor, 11, 55)
    assert patching.predict(first, donor=second, place=0) == 22
    # In the last place the prediction would be the donor's answer.
    assert patching.predict(first, donor=second, place=1) is None
    # Neither a token that says no result of its chain nor a donor's counts, nor a result that both have.
    assert patching.predict(solved(patching, one, 12), donor=second, place=0) is None
    assert patching.predict(first, donor=solved(patching, donor, 8), place=0) is None
    assert patching.predict(first, donor=solved(patching, problem("same", 10, 9, 3), 19), place=0) is None


def test_problems_of_one_kind_are_paired(patching: ModuleType) -> None:
    many = [solved(patching, problem(str(number), 12, 7, 2), 19, 38) for number in range(33)]
    other = solved(patching, problem("other", 12, 7, 2), 19)
    assert [len(batch) for batch in patching.batches([other, *many])] == [32]
    assert [len(batch) for batch in patching.batches([other, *many, many[0], other])] == [2, 32, 2]


def test_every_token_of_every_problem_is_replaced_once(patching: ModuleType, make_theta: MakeTheta) -> None:
    theta = make_theta("llama")
    width = theta.model.config.hidden_size
    never = Logistic(torch.zeros(width), torch.tensor(-1.0))
    draft = Draft(Probe(torch.zeros(width + 1, 1), torch.tensor([5])), 0.0)
    decoding = DecodingConfig(max_answer_tokens=3)
    method = CcotMethod(shaken(theta, PHI, PSI), MethodInfo("ccot", "0.1", 2), decoding, End(never, never), draft)
    batch = [solved(patching, problem("a", 12, 7, 2), 19, 38), solved(patching, problem("b", 3, 8, 5), 11, 55)]
    cases = list(patching.replace_each(method, batch))
    assert [case.is_predicted is None for case in cases] == [False, False, True, True]


def test_the_report_counts_with_intervals(patching: ModuleType) -> None:
    cases = [
        patching.Case(has_moved=True, is_predicted=True, is_donors=False),
        patching.Case(has_moved=True, is_predicted=False, is_donors=True),
        patching.Case(has_moved=False, is_predicted=None, is_donors=False),
    ]
    first, second, third, fourth = patching.report(cases)
    assert first == "the answer moved: 2 of 3, 0.667 (0.208 – 0.939)"
    assert "it moved: 2 of 2, 1.000" in second
    assert "to that answer: 1 of 2, 0.500" in third
    assert "the donor's answer: 1 of 2, 0.500" in fourth
    assert patching.report([])[0] == "the answer moved: no case"
