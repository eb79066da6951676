"""The measurement of what confidence is worth: figures of a cascade follow from the answers of both methods."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType

import pytest

from ccot_cli.data.problems import Problem
from ccot_cli.models.methods.method import Reply, Seconds
from ccot_cli.stages.statistics import wilson
from examples.scripts import script


@pytest.fixture(scope="module")
def confidence() -> ModuleType:
    return script("research/confidence.py")


@dataclass
class Scripted:
    """Gives each question its answer and its confidence; counts what it is asked without reading thoughts."""

    said: dict[str, tuple[str, float]]
    reads_thoughts: bool = False
    asked: list[list[str]] = field(default_factory=list)

    def reply(self, questions: Sequence[str]) -> tuple[list[Reply], Seconds]:
        if not self.reads_thoughts:
            self.asked.append(list(questions))
        replies = [Reply(self.said[each][0], "", 2, 1, False, self.said[each][1], thoughts=[]) for each in questions]
        return replies, Seconds(0, 0, 0)


PROBLEMS = [Problem(str(number), f"question {number}", "a step", str(number)) for number in range(4)]
FIRST = {"question 0": ("0", 0.95), "question 1": ("9", 0.8), "question 2": ("2", 0.4), "question 3": ("9", 0.2)}
CHAIN = {f"question {number}": (str(number), 0.9) for number in range(4)} | {"question 2": ("9", 0.1)}


def test_a_cascade_takes_the_chains_answer_where_confidence_is_lower(confidence: ModuleType) -> None:
    first, chain, asked = Scripted(FIRST), Scripted(CHAIN), confidence.Asked()
    asked.ask(first, chain, PROBLEMS[:2], is_timed=False)
    assert (first.asked, asked.chain_seconds) == ([], 0)
    asked.ask(first, chain, PROBLEMS[2:], is_timed=True)
    assert first.asked == [["question 2", "question 3"]]
    # All that was asked of the chain for the answers; then, in the timed batch, what each P finds unsure.
    everything, unsure = chain.asked[:2], chain.asked[2:]
    assert everything == [["question 0", "question 1"], ["question 2", "question 3"]]
    assert unsure == [["question 3"], *[["question 2", "question 3"]] * 3]
    figures = {level: asked.cascade(level) for level in confidence.LEVELS}
    assert [figures[level]["to the chain"] for level in (0.3, 0.5, 0.9)] == [0.25, 0.5, 0.75]
    # 0 and 2 by the first method, 3 by the chain, which has 2 wrong.
    assert [figures[level]["exact match"] for level in (0.3, 0.5, 0.9)] == [0.75, 0.5, 0.75]
    assert figures[0.3]["interval"] == [wilson(3, 4).low, wilson(3, 4).high]
    assert [figures[level]["exact match of the others"] for level in (0.3, 0.5, 0.9)] == [2 / 3, 0.5, 1]
    assert all(each["time"] > 0 for each in figures.values())
    found = asked.calibration(asked.replies)
    assert (found["n"], found["exact match"], found["AUROC"]) == (4, 0.5, 0.75)
    assert found["mean confidence"] == pytest.approx(2.35 / 4)
    assert found["error"] == pytest.approx((0.05 + 0.8 + 0.6 + 0.2) / 4)
    assert asked.verified() == 0.5


def test_the_validation_problems_are_not_those_of_the_calibration(confidence: ModuleType) -> None:
    fitted = script("train_embedded.py").CALIBRATION
    assert fitted["seed"] != confidence.SEED
    sets = confidence.load_sets(None, 8)
    assert list(sets) == ["validation", "test", "unseen"]
    assert all(
        [len(each.question) for each in found] == sorted(len(each.question) for each in found)
        for found in sets.values()
    )
