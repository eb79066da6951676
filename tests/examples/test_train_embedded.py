"""The scripts that train what the package has: their problems, and what they copy."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file

from ccot_cli.config import Settings
from ccot_cli.data.arithmetic import equations_in
from ccot_cli.models.base.adapters import DECODER, PHI
from ccot_cli.models.base.history import TrainingRun, read_history, write_history
from ccot_cli.names import ADAPTER_FILE, PRECOMPUTE, TRAIN_PSI
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import load_matching_theta
from ccot_cli.stages.statistics import Proportion
from ccot_cli.workspace.workspace import Workspace
from examples.scripts import script

NUM_PROBLEMS = 60
PEOPLE = [
    ("Ana has 40 pens. She sells 15.", "She has <<40-15=25>>25 left.\n#### 25"),
    ("A box holds 6 hats. How many do 6 boxes hold?", "They hold <<6*6=36>>36.\n#### 36"),
]

RUN = TrainingRun(steps=3, batch_size=2, problems=6, passes=1, weights=4)
FILES = (ADAPTER_FILE, "adapter_config.json", "training.json")


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    training = script("train_embedded.py")
    monkeypatch.setattr(training, "NUM_PROBLEMS", NUM_PROBLEMS)
    return training


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in PEOPLE))
    return path


def test_people_s_problems_are_there_as_they_are_and_told_again(
    training: ModuleType, people: Path, tmp_path: Path
) -> None:
    path = tmp_path / "problems.jsonl"
    training.write_problems([people], path, seed=1)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    questions = [row["question"] for row in rows]
    assert len({*questions}) == len(rows) == NUM_PROBLEMS
    assert questions.count(PEOPLE[0][0]) == questions.count(PEOPLE[1][0]) == 1
    again = [row for row in rows if row["question"].startswith("Ana has ") and " pens. She sells " in row["question"]]
    assert 1 < len(again) <= 1 + training.NUM_RETELLINGS
    for row in again:
        [equation] = equations_in(row["answer"])
        assert equation.compute(equation.first, equation.second) == equation.result
        assert row["answer"].endswith(f"#### {equation.result}")
    # The numbers of the other one cannot be replaced: both are 6.
    assert sum("How many do" in question and "boxes hold" in question for question in questions) == 1
    other = tmp_path / "other.jsonl"
    training.write_problems([people], other, seed=2)
    shared = {*questions} & {json.loads(line)["question"] for line in other.read_text().splitlines()}
    assert {PEOPLE[0][0], PEOPLE[1][0]} <= shared
    assert len(shared) <= 1 + 1 + training.NUM_RETELLINGS  # none that was generated
    written = path.read_bytes()
    training.write_problems([people], path, seed=1)
    assert path.read_bytes() == written


def make_method(folder: Path) -> Path:
    """Write files like those of a finished method."""
    (folder / PHI).mkdir(parents=True)
    (folder / "method.json").write_text("{}")
    (folder / "log.jsonl").write_text("{}\n")
    write_history([RUN], folder / PHI)
    (folder / PHI / "adapter_config.json").write_text('{"r": 2, "base_model_name_or_path": "/home/me/theta"}')
    save_file({"lora": torch.full((2, 2), 1.00001)}, folder / PHI / ADAPTER_FILE)
    save_file({"weight": torch.ones(2)}, folder / "end.safetensors")
    return folder


def test_what_answering_needs_is_copied_with_adapters_in_bfloat16(training: ModuleType, tmp_path: Path) -> None:
    source, target = make_method(tmp_path / "made"), tmp_path / "package" / "r0.10"
    target.mkdir(parents=True)
    (target / "of-another-theta").touch()
    training.ship(source, target)
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert names == {"method.json", "end.safetensors", *(f"{PHI}/{name}" for name in FILES)}
    assert read_history(target / PHI) == [RUN]
    assert load_file(target / PHI / ADAPTER_FILE)["lora"].dtype == torch.bfloat16
    assert load_file(target / "end.safetensors")["weight"].dtype == torch.float32
    config = json.loads((target / PHI / "adapter_config.json").read_text())
    assert config == {"r": 2, "base_model_name_or_path": None}


def test_the_methods_are_measured_on_every_set_as_its_command_does(
    training: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def evaluated(workspace: None, settings: Settings, *, min_confidence: float, progress: Progress) -> Proportion:
        asked.append((settings.eval, settings.data, min_confidence))
        return Proportion(len(asked), 0.5, 0.25, 0.75)

    monkeypatch.setattr(training.evaluate, "run", evaluated)
    path = tmp_path / "people.jsonl"
    figures = training.measure(path)
    assert figures.keys() == training.SETS.keys()
    for (evaluation, data, least), (name, result) in zip(asked, figures.items(), strict=True):
        options = result["command"].split()
        assert options[options.index("--min-confidence") + 1] == str(least)
        assert ("--steps" in options) == (evaluation.steps is not None)
        assert (f"data.test_split={data.test_split}" in options) == (name == "unseen")
        source = options[options.index("--data") + 1] if "--data" in options else None
        assert data.test_source == (str(path) if name == training.PEOPLE else source)
        if "--limit" in options and name != training.PEOPLE:
            assert options[options.index("--limit") + 1] == str(evaluation.limit)
    assert [result["n"] for result in figures.values()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("only", "missing"), [("all", "--people"), ("card", "--test-people")])
def test_nothing_begins_without_the_problems_that_it_needs(
    training: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, only: str, missing: str
) -> None:
    monkeypatch.setattr(training, "BUILD_FOLDER", tmp_path / "build")
    with pytest.raises(typer.BadParameter, match=f": {missing} "):
        training.main(only=only)
    with pytest.raises(typer.BadParameter, match=": --test-people "):
        training.main(only=only, people=tmp_path / "gsm8k.jsonl")
    assert not (tmp_path / "build").exists()


def test_a_packaged_method_becomes_an_artifact_that_a_decoder_can_be_trained_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoders = script("train_embedded_decoder.py")
    monkeypatch.setattr(decoders, "METHODS_FOLDER", tmp_path)
    method = make_method(tmp_path / "r0.10")
    make_method(method / DECODER)
    workspace = Workspace.create(tmp_path / "decoders", "embedded", decoders.SETTINGS)
    for _ in range(2):
        decoders.adopt(workspace, decoders.read_ratio("0.1"))
        artifact = workspace.require(TRAIN_PSI, "r0.10")
        assert workspace.require(PRECOMPUTE).manifest.config["data"]["limit"] == decoders.SETTINGS["data.limit"]
        assert artifact.manifest.summary["ratio"] == 0.1
        assert not (artifact.folder / DECODER).exists()
    load_matching_theta(workspace.settings, workspace.require(PRECOMPUTE))
    first = artifact.fingerprint
    (method / "method.json").write_text('{"other": 1}')
    decoders.adopt(workspace, decoders.read_ratio("0.1"))
    assert workspace.require(TRAIN_PSI, "r0.10").fingerprint != first


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_methods_are_trained_from_nothing_by_way_of_another_ratio_or_from_earlier_ones(
    training: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, goes_on: bool
) -> None:
    done: list[tuple[str, str, Settings]] = []

    def noted(stage: str) -> Callable[..., SimpleNamespace]:
        def run(workspace: Workspace, settings: Settings, *names: object, progress: Progress) -> SimpleNamespace:
            done.append((stage, " ".join(map(str, names)), settings))
            return SimpleNamespace(validation_accuracy=0.5)

        return run

    stages = ("precompute", "score", "train_phi", "train_psi", "train_baseline")
    for stage in stages:
        monkeypatch.setattr(getattr(training, stage), "run", noted(stage))
    shipped = []
    monkeypatch.setattr(training, "ship", lambda source, target: shipped.append((source.name, target.name)))
    monkeypatch.setattr(training, "BUILD_FOLDER", tmp_path)
    training.train_methods(tmp_path / "old" if goes_on else None)

    first = [] if goes_on else [("score", "0.3"), ("train_phi", "0.3")]
    last = [("score", "0.1"), ("train_phi", "0.1"), ("train_psi", "0.1"), ("train_baseline", "direct 0.1")]
    assert [each[:2] for each in done] == [("precompute", ""), *first, *last]
    assert shipped == [("r0.10", "r0.10"), ("direct", "direct")]
    phi, psi, direct = (settings for _, _, settings in done[-3:])
    old = f"{tmp_path}/old"
    expected = [f"{old}/r0.10/phi", f"{old}/r0.10/psi", f"{old}/direct/psi"] if goes_on else ["r0.30", None, None]
    assert [phi.train_phi.start, psi.train_psi.start, direct.train_psi.start] == expected
    assert phi.train_phi.taught_epochs == 0
    assert direct.train_psi.lora_rank == phi.train_phi.lora_rank + psi.train_psi.lora_rank
    assert psi.train_psi.ends == "late"
