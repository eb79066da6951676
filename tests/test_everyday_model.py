"""The base model for everyday problems, in a workspace of its own preset; it writes its chain without any training."""

from pathlib import Path

import pytest

from ccot_cli import load
from ccot_cli.cli.app import run
from ccot_cli.config import Settings
from ccot_cli.errors import MissingError
from ccot_cli.models.base.pretrained import PACKAGED_FOLDERS
from ccot_cli.models.base.theta import load_theta
from ccot_cli.names import EVERYDAY
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import evaluate
from ccot_cli.stages.ask import Asker
from ccot_cli.workspace.workspace import Workspace

QUESTIONS = {
    "Tom has 5 apples. He buys 3 more and then eats 2. How many apples does he have left?": "6",
}
"""What a new user types, and the answers."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace.create(tmp_path_factory.mktemp("everyday") / "run", EVERYDAY)


@pytest.fixture(scope="module")
def writer(workspace: Workspace) -> Asker:
    return load(workspace.root, ratio=1)


def test_it_is_small_and_has_one_token_for_every_number() -> None:
    theta = load_theta(override(Settings(), {"model.name": EVERYDAY}).model)
    assert sum(parameter.numel() for parameter in theta.model.parameters()) <= 12e6
    assert (PACKAGED_FOLDERS[EVERYDAY] / "model.safetensors").stat().st_size <= 15e6
    for number in range(1000):
        for text in (f"{number}", f" {number}"):
            assert len(theta.encoder.tokenizer(text, add_special_tokens=False).input_ids) == 1


def test_it_answers_what_a_new_user_types(writer: Asker) -> None:
    answers = writer.ask_all(list(QUESTIONS))
    assert {question: result.answer for question, result in zip(QUESTIONS, answers, strict=True)} == QUESTIONS
    assert all(result.confidence > 0 for result in answers)


@pytest.mark.parametrize(("split", "least"), [("test", 30), ("unseen", 12)])
def test_its_chain_solves_problems_that_training_never_saw(workspace: Workspace, split: str, least: int) -> None:
    settings = override(workspace.settings, {"eval.limit": 48, "data.test_split": split, "data.steps": (1, 3)})
    result = evaluate.run(workspace, settings, names=("cot",), saves=False, progress=Progress())
    [row] = result.rows
    assert row.accuracy * row.n >= least


def test_only_what_needs_training_asks_for_it(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(workspace.root)
    assert run(["eval", "-w", root, "--ratio", "1", "--limit", "2", "--steps", "1", "1"]) == 0
    assert run(["ask", "-w", root, "--method", "zero-shot", next(iter(QUESTIONS))]) == 0
    for words in (["eval", "-w", root, "--methods", "cot,ccot"], ["ask", "-w", root, "how many?"]):
        capsys.readouterr()
        assert run(words) == 3
        assert capsys.readouterr().err.splitlines()[-1] == f"fix:   ccot precompute -w {root}"
    with pytest.raises(MissingError, match="no finished 'precompute' stage"):
        load(Path(root))
