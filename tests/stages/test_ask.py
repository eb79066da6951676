"""Questions are checked before they are asked."""

from decimal import Decimal

import pytest

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
