"""Which methods there are, by name and ratio."""

from decimal import Decimal

import pytest

from ccot_cli.config import Settings
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.stages.ask import Asker
from ccot_cli.stages.methods import Methods, find_methods
from stages.runs import RATIO, MakeRun


@pytest.fixture(scope="module")
def shipped() -> Methods:
    return find_methods(None, Settings())


def names(methods: Methods, *arguments: object) -> list[tuple[str, str]]:
    return [(entry.name, f"{entry.ratio:f}") for entry in methods.choose(*arguments)]  # type: ignore[arg-type]


def test_a_ratio_chooses_among_methods_that_come_in_ratios(shipped: Methods) -> None:
    tenth = [Decimal("0.1")]
    assert names(shipped, ("ccot",), tenth) == [("ccot", "0.1")]
    assert names(shipped, (), tenth) == [("ccot", "0.1"), ("pause", "0.1")]
    # A method that was named and has a fixed ratio is chosen, whatever the ratio.
    assert names(shipped, ("ccot", "direct", "cot"), tenth) == [("direct", "0"), ("ccot", "0.1"), ("cot", "1")]
    assert names(shipped, ("ccot", "few-shot"), tenth) == [("ccot", "0.1"), ("few-shot", "1")]
    for methods in ((), ("ccot",), ("all",)):
        with pytest.raises(MissingError, match=r"0\.37"):
            shipped.choose(methods, [Decimal("0.37")])


def test_one_method_answers_a_question(shipped: Methods) -> None:
    with pytest.raises(UsageError, match="one method"):
        shipped.named("all", Decimal("0.1"))


def test_a_method_is_asked_for_by_its_name(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    for name in ("direct", "pause"):
        run.train_baseline(name)
    methods = find_methods(run.workspace, run.settings)
    assert methods.named("pause", RATIO).name == "pause"
    # A method with a fixed ratio keeps it, whatever ratio is asked for.
    assert [methods.named(name, RATIO).ratio for name in ("direct", "cot", "zero-shot")] == [0, 1, 1]
    with pytest.raises(MissingError, match="no icot"):
        methods.named("icot", RATIO)
    with pytest.raises(UsageError, match="no method"):
        methods.named("magic", RATIO)


def test_a_ratio_that_was_not_trained_names_those_that_were(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    with pytest.raises(MissingError, match=r"0\.37 .*trained: 0, 1") as caught:
        Asker(run.workspace, run.settings, Decimal("0.37"))
    assert "--ratio 0" in caught.value.fix
