"""Sample problems come from what a workspace uses, or from the embedded generator."""

import json
from pathlib import Path

import pytest

from ccot_cli.config import Settings
from ccot_cli.data.problems import load_test, load_training
from ccot_cli.errors import UsageError
from ccot_cli.overrides import override
from ccot_cli.stages import problems
from stages.runs import MakeRun


def test_without_a_workspace_they_are_the_problems_that_eval_asks() -> None:
    settings = Settings()
    assert problems.run(None, settings, limit=3) == load_test(settings.data, limit=3, seed=0)
    of_three = problems.run(None, settings, limit=9, steps=(3, 3))
    assert {problem.num_steps for problem in of_three} == {3}
    assert problems.run(None, settings, limit=3, seed=1) == load_test(settings.data, limit=3, seed=1)
    unseen = override(settings, {"data.test_split": "unseen"}).data
    of_two = load_test(unseen, limit=3, seed=1, steps=(2, 2))
    assert problems.run(None, settings, "unseen", limit=3, seed=1, steps=(2, 2)) == of_two
    with pytest.raises(UsageError, match="steps"):
        problems.run(None, settings, limit=3, steps=(9, 2))


def test_other_splits_begin_like_those_that_precompute_would_make() -> None:
    settings = override(Settings(), {"data.limit": 20, "data.validation_limit": 20})
    made = load_training(settings.data)
    assert problems.run(None, Settings(), "train", limit=5) == made.train[:5]
    assert problems.run(None, Settings(), "validation", limit=5) == made.validation[:5]


def test_own_problems_are_those_that_precompute_stored(make_run: MakeRun, tmp_path: Path) -> None:
    rows = [{"question": f"{number} and 1?", "answer": f"{number} + 1\n#### {number + 1}"} for number in range(40)]
    source = tmp_path / "own.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run = make_run(**{"data.source": str(source), "data.limit": 20, "data.validation_limit": 4})
    unstored = {split: problems.run(run.workspace, run.settings, split, limit=50) for split in ("train", "validation")}
    assert [len(each) for each in unstored.values()] == [20, 4]
    run.precompute()
    of_another_seed = problems.run(run.workspace, run.settings, "train", limit=50, seed=3)
    (tmp_path / "moved").mkdir()
    moved = override(run.settings, {"data.source": str(source.rename(tmp_path / "moved" / source.name))})
    assert problems.run(run.workspace, moved, "train", limit=50, seed=3) == of_another_seed
    # The workspace's own settings still name the embedded generator, as after `ccot precompute --data FILE`.
    for split, expected in unstored.items():
        assert problems.run(run.workspace, run.workspace.settings, split, limit=50) == expected
    assert problems.run(run.workspace, run.workspace.settings, limit=2) == unstored["validation"][:2]
    with pytest.raises(UsageError, match="no problem of 2 to 3 steps"):
        problems.run(run.workspace, run.workspace.settings, limit=2, steps=(2, 3))
    with pytest.raises(UsageError, match="no test problems are named"):
        problems.run(run.workspace, run.workspace.settings, "test", limit=2)
