"""Figures of an evaluation, from replies that are known."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest
from conftest import MakeTheta, shaken

from ccot_cli.config import DecodingConfig, Settings, override
from ccot_cli.data.answers import is_correct
from ccot_cli.data.problems import Problem
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.decoding.psi import Text
from ccot_cli.models.methods import method as reasoner
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.direct import DirectMethod
from ccot_cli.models.methods.method import MethodInfo, Reply, Seconds
from ccot_cli.progress import Progress
from ccot_cli.stages import evaluate
from ccot_cli.stages.evaluate import Pair
from ccot_cli.stages.methods import Methods, find_methods
from ccot_cli.stages.statistics import mcnemar, wilson
from ccot_cli.stages.validation import accuracy_of


def problem(number: int, answer: str, num_steps: int) -> Problem:
    return Problem(str(number), f"question {number}", "\n".join(["a step"] * num_steps), answer)


PROBLEMS = [problem(0, "3", 2), problem(1, "14", 2), problem(2, "15", 3), problem(3, "92", 3), problem(4, "65", 4)]
SAID = ["3", "15", "15.0", "", "65"]
"""Right, wrong, right, nothing, right."""


@dataclass
class Scripted:
    """Says what it was told to, each batch in the next of its times."""

    said: dict[str, str]
    times: list[Seconds]
    name: str = "ccot"
    ratio: Decimal = Decimal("0.1")
    asked: list[list[str]] = field(default_factory=list)

    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        self.asked.append(list(questions))
        replies = [
            Reply(self.said[each], self.said[each], int(each[-1]), 2, self.said[each] == "") for each in questions
        ]
        return replies, self.times[len(self.asked) - 1]


def scripted() -> Scripted:
    said = {each.question: answer for each, answer in zip(PROBLEMS, SAID, strict=True)}
    # The first batch is asked once more before, and not timed.
    return Scripted(said, [Seconds(9, 9, 9), Seconds(1, 2, 3), Seconds(0.5, 0.25, 0.25), Seconds(0.2, 0.4, 0.6)])


def test_a_row_says_what_was_answered_and_how_long_it_took() -> None:
    reasoner = scripted()
    row, replies, marks = evaluate.measure(reasoner, PROBLEMS, 2, Progress())
    assert reasoner.asked == [["question 0", "question 1"]] * 2 + [["question 2", "question 3"], ["question 4"]]
    assert marks == [True, False, True, False, True]
    assert [reply.answer for reply in replies] == SAID
    assert (row.method, row.ratio, row.n) == ("ccot", 0.1, 5)
    assert (row.accuracy, row.low, row.high) == (0.6, wilson(3, 5).low, wilson(3, 5).high)
    assert row.by_steps == {"2": wilson(1, 2), "3": wilson(1, 2), "4": wilson(1, 1)}
    # Each question of a batch took its share: 3, 3, 0.5, 0.5 and 1.2 seconds.
    assert row.seconds_mean == pytest.approx(8.2 / 5)
    assert row.seconds_median == pytest.approx(1.2)
    assert row.seconds_p95 == 3
    assert row.prefill_seconds_mean == pytest.approx(1.7 / 5)
    assert row.contemplation_seconds_mean == pytest.approx(2.65 / 5)
    assert row.answer_seconds_mean == pytest.approx(3.85 / 5)
    assert (row.contemplation_tokens_mean, row.answer_tokens_mean, row.truncated_share) == (2.0, 2.0, 0.2)


def test_the_slowest_of_twenty_is_not_their_95th_percentile() -> None:
    problems = [problem(number, "1", 1) for number in range(20)]
    said = {each.question: "1" for each in problems}
    reasoner = Scripted(said, [Seconds(0, 0, 0), *(Seconds(0, 0, number) for number in range(20))])
    assert evaluate.measure(reasoner, problems, 1, Progress()).row.seconds_p95 == 18


def test_validation_counts_what_is_right() -> None:
    reasoner = scripted()
    assert accuracy_of(reasoner, PROBLEMS, 2, Progress()) == (0.6, 2.0)


def test_methods_are_compared_with_answering_at_once_and_with_ccot_of_their_ratio() -> None:
    known = {
        ("direct", 0.0): [True, False, False, False],
        ("ccot", 0.05): [True, True, False, False],
        ("ccot", 0.1): [False, True, True, True],
        ("pause", 0.1): [False, False, False, True],
        ("cot", 1.0): [True, True, True, True],
    }
    rows = []
    for name, ratio in known:
        reasoner = scripted()
        reasoner.name, reasoner.ratio = name, Decimal(str(ratio))
        rows.append(evaluate.measure(reasoner, PROBLEMS, 2, Progress()).row)
    found = evaluate._pairs(rows, list(known.values()))
    # (wins, losses) of the first over the second.
    expected = {
        ("ccot", 0.05, "direct"): (1, 0),
        ("ccot", 0.1, "direct"): (3, 1),
        ("pause", 0.1, "direct"): (1, 1),
        ("cot", 1.0, "direct"): (3, 0),
        ("direct", 0.0, "ccot 0.05"): (0, 1),
        ("cot", 1.0, "ccot 0.05"): (2, 0),
        ("direct", 0.0, "ccot 0.1"): (1, 3),
        ("pause", 0.1, "ccot 0.1"): (0, 2),
        ("cot", 1.0, "ccot 0.1"): (1, 0),
    }
    assert {key(pair): (pair.wins, pair.losses) for pair in found} == expected
    assert len(found) == len(expected)
    assert all(pair.p == mcnemar(pair.wins, pair.losses) for pair in found)
    # Of four that one side alone has right, three or more on one side: 2 * (1 + 4) / 16.
    assert mcnemar(3, 1) == mcnemar(1, 3) == 0.625


def key(pair: Pair) -> tuple[str, float, str]:
    return pair.method, pair.ratio, pair.than if pair.than == "direct" else f"{pair.than} {pair.than_ratio:g}"


def test_a_written_answer_stands_behind_the_model_s_own_marker(make_theta: MakeTheta) -> None:
    made = make_theta("llama")
    theta = replace(made, encoder=Encoder(made.encoder.tokenizer, Template(answer_marker="\n= :")))
    reasoner = ChainMethod(theta, Adapters(theta), 9)

    def read(text: str, *, is_capped: bool = False) -> str:
        ids = theta.encoder.tokenizer(text, add_special_tokens=False).input_ids
        return reasoner._read(ids, is_capped, 0).answer

    assert read("12 + 7 = 19\n= : more pens than 8", is_capped=True) == "more pens than 8"
    assert read("12 + 7 = 19\n= : 19 pens\nin all") == "19 pens"
    assert read("12 + 7 = 19\n#### 19") == "19"
    assert read("12 + 7 = 19") == "19"
    assert read("12 + 7 = 19", is_capped=True) == ""


@pytest.mark.parametrize("text", [" 18", " 18 pens", " 1,800\n7", " $18.00", " blue whale", "\n18", ""])
def test_every_method_reads_the_same_answer_from_the_same_words(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    theta = make_theta("llama")
    adapters = shaken(theta)
    marker, said = theta.encoder.answer_marker, theta.encoder.tokenizer(text, add_special_tokens=False).input_ids
    direct = DirectMethod(adapters, MethodInfo("direct", "0"), DecodingConfig())
    answers = []
    for way, ids in ((direct, said), (ChainMethod(adapters, 99), [*marker, *said])):
        monkeypatch.setattr(reasoner, "decode", lambda *_, ids=ids, **__: Text([ids], [True]))
        [reply], _ = way.reply(["How many pens?"])
        answers.append(reply.answer)
    assert answers[0] == answers[1]
    assert is_correct(answers[0], "18") == (text in {" 18", " 18 pens", " $18.00"})


@pytest.fixture(scope="module")
def shipped() -> Methods:
    return find_methods(None, Settings())


def names(methods: Methods, *arguments: object) -> list[tuple[str, str]]:
    return [(entry.name, f"{entry.ratio:f}") for entry in methods.entries(*arguments)]  # type: ignore[arg-type]


def test_a_ratio_chooses_among_methods_that_come_in_ratios(shipped: Methods) -> None:
    tenth = [Decimal("0.1")]
    assert names(shipped, ("ccot",), tenth) == [("ccot", "0.1")]
    assert names(shipped, (), tenth) == [("ccot", "0.1"), ("pause", "0.1")]
    # What was named and has a ratio of its own is meant whatever the ratio.
    assert names(shipped, ("ccot", "direct", "cot"), tenth) == [("direct", "0"), ("ccot", "0.1"), ("cot", "1")]
    assert names(shipped, ("ccot", "few-shot"), tenth) == [("ccot", "0.1"), ("few-shot", "1")]
    for methods in ((), ("ccot",), ("all",)):
        with pytest.raises(MissingError, match=r"0\.37"):
            shipped.entries(methods, [Decimal("0.37")])


def test_one_method_answers_a_question(shipped: Methods) -> None:
    with pytest.raises(UsageError, match="one method"):
        shipped.named("all", Decimal("0.1"))


def test_controls_that_would_leave_a_question_alone_are_refused_at_once() -> None:
    settings = override(Settings(), {"eval.limit": 5, "eval.batch_size": 4})
    with pytest.raises(UsageError, match="leave one alone"):
        evaluate.run(None, settings, has_controls=True, progress=Progress())
