"""Whether what contemplation tokens say follows from the question."""

import pytest

from ccot_cli.models.decoding.thoughts import Thought, Word
from ccot_cli.models.methods.method import Reply
from ccot_cli.stages.thoughts import check_thoughts, result_of, top_number, verification

QUESTION = "Mia has 12 pens. Mia buys 7 more pens. Ben has twice as many pens as Mia. How many pens does Ben have?"


def thought(*words: tuple[str, float], lower: tuple[tuple[str, float], ...] = ()) -> Thought:
    return Thought([Word(*word) for word in words], [Word(*word) for word in lower], 0.1, 3.0)


def reply(answer: str, *thoughts: Thought, confidence: float = 0.9) -> Reply:
    return Reply(answer, answer, len(thoughts), 1, is_truncated=False, confidence=confidence, thoughts=list(thoughts))


THOUGHTS = (thought((" 19", 0.3), (" pens", 0.2)), thought((".", 0.9), (" 2", 0.1), lower=(("38", 0.8), (" 40", 0.1))))


def test_a_thought_s_number_is_the_likelier_first_word_of_both_indices() -> None:
    assert [top_number(each) for each in THOUGHTS] == [Word(" 19", 0.3), Word("38", 0.8)]
    assert [result_of(each) for each in THOUGHTS] == [19, 38]
    assert top_number(thought((" pens", 0.6), (" 19", 0.3), lower=(("2", 0.2), ("7", 0.1)))) == Word("2", 0.2)
    assert top_number(thought((" pens", 0.6), (" 19", 0.3))) is None
    assert result_of(thought((" pens", 1.0))) is None


def test_thoughts_are_checked_in_their_order() -> None:
    checked = check_thoughts(QUESTION, reply("38", *THOUGHTS, thought(("99", 0.7))))
    found = [(each.number, each.verified, each.equation) for each in checked.thoughts]
    assert found == [(1, True, "12 + 7 = 19"), (2, True, "2 * 19 = 38"), (3, False, "")]
    assert checked.thoughts[0].words == THOUGHTS[0].words
    assert checked.is_answer_verified
    assert checked.number_chance == 0.3
    assert not check_thoughts(QUESTION, reply("40", *THOUGHTS)).is_answer_verified
    assert check_thoughts(QUESTION, reply("38", thought((" pens", 1.0)))).number_chance == 0.0


def test_an_evaluation_tells_how_well_figures_separate_right_from_wrong() -> None:
    replies = [
        reply("38", *THOUGHTS, confidence=0.9),
        reply("38", THOUGHTS[0], confidence=0.5),
        reply("40", *THOUGHTS, confidence=0.6),
    ]
    checked = [check_thoughts(QUESTION, each) for each in replies]
    found = verification(replies, checked, [True, True, False])
    assert (found.verified_right, found.verified_wrong) == (0.5, 0.0)
    assert (found.auroc_confidence, found.auroc_number, found.auroc_verified) == (0.5, 0.5, 0.75)
    found = verification(replies, checked, [True] * 3)
    assert found.verified_right == pytest.approx(1 / 3)
    assert (found.verified_wrong, found.auroc_confidence) == (None, None)
