"""Questions are checked before they are asked."""

from dataclasses import replace
from decimal import Decimal

import pytest

from ccot_cli import load
from ccot_cli.errors import UsageError
from ccot_cli.stages.ask import Asker
from stages.runs import MakeRun


@pytest.mark.parametrize("question", ["", "  \n ", "pens " * 2000])
def test_an_empty_or_endless_question_is_refused(make_run: MakeRun, question: str) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    with pytest.raises(UsageError):
        Asker(run.workspace, run.settings, Decimal(0)).check(question)


def test_from_python_a_workspace_answers_as_it_does_from_the_command_line(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    question = "Mia has 12 pens. How many pens does Mia have?"
    expected = Asker(run.workspace, run.settings, Decimal(0)).ask(question)
    for folder in (run.workspace.root, str(run.workspace.root)):
        found = load(folder, ratio=0).ask(question)
        assert replace(found, seconds=0) == replace(expected, seconds=0)
    assert (found.method, found.model) == ("direct", run.settings.model.name)
