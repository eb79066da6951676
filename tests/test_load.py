"""The Python API: `load` a method once, and ask it often."""

from pathlib import Path

import pytest

from ccot_cli import load
from ccot_cli.errors import MissingError, UsageError

QUESTION = "Tom has 5 apples. He buys 3 more and then eats 2. How many apples does he have left?"


def test_without_a_folder_the_model_in_the_package_answers() -> None:
    result = load().ask(f"  {QUESTION}\n")
    assert (result.answer, result.method, result.ratio, result.model) == ("6", "ccot", 0.1, "embedded")
    assert result.contemplation_tokens > 0
    assert result.seconds > 0
    assert not result.truncated
    assert result.text == result.answer


@pytest.mark.parametrize(
    ("ratio", "method", "expected"),
    [
        (1, "ccot", ("cot", 1.0)),
        (0, "ccot", ("direct", 0.0)),
        ("0.1", "ccot", ("ccot", 0.1)),
        (None, "zero-shot", ("zero-shot", 1.0)),
    ],
)
def test_a_ratio_and_a_method_choose_what_answers(
    ratio: float | str | None, method: str, expected: tuple[str, float]
) -> None:
    asker = load(ratio=ratio, method=method)
    assert (asker.method.name, float(asker.method.ratio)) == expected
    result = asker.ask(QUESTION)
    assert (result.method, result.ratio) == expected
    assert (result.contemplation_tokens > 0) == (result.ratio > 0)


def test_many_questions_are_answered_in_their_order_or_none_is() -> None:
    asker = load(ratio=0.1)
    questions = [QUESTION, "Ben has 3 pens. Ben buys 4 more pens. How many pens does Ben have?", QUESTION]
    assert [each.answer for each in asker.ask_all(questions)] == [asker.ask(each).answer for each in questions]
    assert asker.ask_all([]) == []
    with pytest.raises(UsageError, match="empty"):
        asker.ask_all([QUESTION, " "])


def test_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ratio"):
        load(ratio=2)
    with pytest.raises(MissingError, match=r"0\.37"):
        load(ratio=0.37)
    with pytest.raises(UsageError, match="workspace"):
        load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="magic"):
        load(method="magic")
