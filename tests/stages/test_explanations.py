"""Figures of explanations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from ccot_cli.data.arithmetic import results_in
from ccot_cli.data.problems import Problem
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import Reply, Seconds
from ccot_cli.progress import Progress
from ccot_cli.stages.explanations import ends_in, f1, measure_explanations

PROBLEMS = [
    Problem("a", "a?", "1 + 1 = 2\n2 * 5 = 10", "10"),
    Problem("b", "b?", "6 / 3 = 2\n2 + 2 = 4", "4"),
    Problem("c", "c?", "3 + 4 = 7", "7"),
]
REPLIES = {
    "a?": ("10", "1 + 1 = 2\n2 * 5 = 10", 2),
    "b?": ("5", "6 / 3 = 2\n2 + 3 = 5", 2),  # answered wrong
    "c?": ("7", "9 + 9 = 18", 1),
}


@dataclass
class Told:
    """Answers as it is told to; with a control, as the question before, and explains half of that."""

    theta: Theta
    control: str | None = None
    explains: bool = False

    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        assert self.explains
        asked = [questions[-1], *questions[:-1]] if self.control else questions
        replies = []
        for question, donor in zip(questions, asked, strict=True):
            answer, explanation, count = REPLIES[donor]
            own = REPLIES[question][1]
            text = own if self.control and question == "b?" else explanation
            replies.append(Reply(answer, answer, count, 1, False, 1.0, explanation=text))
        return replies, Seconds(0, 0, 0)


def test_results_are_counted_apart_for_right_and_wrong_answers(llama: Theta) -> None:
    method = cast(CcotMethod, cast(Any, Told(llama)))
    found = measure_explanations(method, PROBLEMS, 2, Progress())
    assert found.right.num_problems == 2
    assert found.right.results is not None
    assert (found.right.results.n, found.right.results.accuracy) == (3, 2 / 3)
    assert found.right.results_before_last is not None
    assert (found.right.results_before_last.n, found.right.results_before_last.accuracy) == (1, 1)
    assert found.right.agreement is not None
    assert found.right.agreement.accuracy == 0.5
    assert found.wrong.results is not None
    # The chain has 2 and 4, the explanation 2 and 5.
    assert (found.wrong.results.n, found.wrong.results.accuracy) == (2, 0.5)
    assert found.wrong.agreement is not None
    assert found.wrong.agreement.accuracy == 1
    assert found.right.token_f1 is not None
    assert found.wrong.token_f1 is not None
    assert 0 < found.right.token_f1 < 1


def test_tokens_are_exchanged_among_problems_with_equally_many(llama: Theta) -> None:
    method = cast(CcotMethod, cast(Any, Told(llama)))
    exchange = measure_explanations(method, PROBLEMS, 2, Progress()).exchange
    # c has one token, and nobody to exchange it with. Both answers become the donor's, one explanation does.
    assert exchange.num_pairs == 2
    shares = [exchange.answer, exchange.explanation, exchange.both, exchange.agreement]
    assert [share and share.accuracy for share in shares] == [1, 0.5, 0.5, 0.5]
    # Of 2 and 10, and of 2 and 4, both explanations have the 2.
    assert exchange.own_results is not None
    assert (exchange.own_results.n, exchange.own_results.accuracy) == (4, 0.5)


def test_nothing_to_count_gives_no_proportion(llama: Theta) -> None:
    found = measure_explanations(cast(CcotMethod, cast(Any, Told(llama))), PROBLEMS[:1], 2, Progress())
    assert found.wrong.results is None
    assert found.wrong.token_f1 is None
    assert found.exchange.both is None


@pytest.mark.parametrize(
    ("chain", "results"),
    [
        ("12 + 7 = 19 pens.\n19 - 4 = 15.", [19, 15]),
        ("It costs 2 * 1,500 = $3,000.", [3000]),
        ("4 - 7 = -3", [-3]),
        ("nothing", []),
    ],
)
def test_results_follow_an_equals_sign(chain: str, results: list[int]) -> None:
    assert results_in(chain) == results


def test_f1_counts_each_token_as_often_as_both_have_it() -> None:
    assert f1([1, 1, 2], [1, 3]) == 2 * 1 / 5
    assert f1([], [1]) == 0


def test_an_explanation_without_a_number_ends_in_no_answer() -> None:
    assert ends_in("so 3 + 4 = 7.", "7.0")
    assert not ends_in("no idea", "")
