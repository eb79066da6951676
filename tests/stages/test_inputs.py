"""A stage loads what the stages before it made, and the model that they ran."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from conftest import shaken
from safetensors.torch import load_file, save_file
from workspace.making import edit_manifest

from ccot_cli.config import ModelConfig
from ccot_cli.data.shards import read_records
from ccot_cli.errors import BusyError, CorruptError, UsageError
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.base.theta import load_theta, weights_hash
from ccot_cli.names import ADAPTER_FILE
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score
from ccot_cli.stages.inputs import load_examples, load_matching_theta, ready_result
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.workspace import Workspace
from stages.runs import RATIO, MakeRun, Run, stored_problems, tensors_of


def test_phi_learns_from_the_selected_tokens_and_is_probed_for_what_follows_them(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    theta, problems = load_theta(run.settings.model), stored_problems(run)
    selected = run.workspace.require("score", "r0.10")
    train, validation = load_examples(theta, run.workspace.require("precompute"), selected)
    records = sorted(read_records(selected.folder), key=lambda record: record.number)
    assert (len(train), len(validation)) == (20, 6)
    for example, record in zip([*train, *validation], records, strict=True):
        problem = problems[record.number]
        text = [*problem.query, *problem.chain, *theta.encoder.answer_marker]
        assert example.query == problem.query
        assert torch.equal(example.gold_JID, record.states_JID)
        assert example.next_K.tolist() == [text[position + 1] for position in record.positions_J[1:].tolist()]
        assert record.token_ids_J.tolist() == [text[position] for position in record.positions_J.tolist()]


def test_later_stages_use_the_model_that_precompute_ran(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    # The settings file still names the embedded model, as after `ccot precompute --model FOLDER`.
    result = score.run(run.workspace, run.workspace.settings, RATIO, progress=Progress())
    assert result.num_problems == 26


def test_a_model_that_changed_under_its_name_is_refused(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    weights = Path(run.settings.model.name) / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"] += 1
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(CorruptError, match="has changed since"):
        run.score()


def test_a_flip_anywhere_in_the_weights_makes_another_model(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    weights, generator = Path(run.settings.model.name) / "model.safetensors", random.Random(0)
    sound = weights.read_bytes()
    header = 8 + int.from_bytes(sound[:8], "little")
    for _ in range(8):
        at, bit = generator.randrange(header, len(sound)), generator.randrange(8)
        weights.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
        with pytest.raises(CorruptError, match=r"has changed since|not finite|NaN"):
            load_matching_theta(run.settings, run.workspace.require("precompute"))
    weights.write_bytes(sound)
    assert load_matching_theta(run.settings, run.workspace.require("precompute"))


def test_the_weights_of_several_files_all_count(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    model = load_theta(run.settings.model).model
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    files = sorted((tmp_path / "shards").glob("*.safetensors"))
    config = ModelConfig(name=str(tmp_path / "shards"))
    assert len(files) > 2
    hashes = [weights_hash(config)]
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        hashes.append(weights_hash(config))
    assert len({*hashes}) == len(files) + 1


@pytest.mark.parametrize(
    "change", [{"rms_norm_eps": 0.1}, {"rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}]
)
def test_settings_that_no_weight_shows_make_another_model(make_run: MakeRun, change: dict[str, object]) -> None:
    run = make_run()
    before = run.precompute() and load_theta(run.settings.model).fingerprint()
    described = Path(run.settings.model.name) / "config.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), **change}))
    assert load_theta(run.settings.model).fingerprint() != before
    with pytest.raises(CorruptError, match="has changed since"):
        run.score()


def test_a_model_that_was_moved_is_found_where_it_is_now(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    run.precompute()
    moved = tmp_path / "elsewhere" / "llama"
    moved.parent.mkdir()
    Path(run.settings.model.name).rename(moved)
    there = Run(run.workspace, override(run.settings, {"model.name": str(moved)}))
    assert there.workspace.state("precompute", settings=there.settings).reason.count("model.name") == 0
    assert there.precompute().was_ready
    assert there.score().mean_kept > 0
    with pytest.raises(UsageError, match="there is no folder"):
        run.train_phi()


class TestAdapterInTheta:
    """θ with an adapter in it is another model, and what was made on it knows the adapter."""

    @pytest.fixture
    def run(self, make_run: MakeRun, tmp_path: Path) -> Run:
        run = make_run()
        shaken(load_theta(run.settings.model), PSI).save(PSI, tmp_path / "chain")
        return Run(run.workspace, override(run.settings, {"model.adapter": str(tmp_path / "chain" / PSI)}))

    def test_its_states_are_those_of_the_adapter(self, run: Run) -> None:
        with_it = run.precompute() and tensors_of(run.workspace.folder("precompute"))
        assert run.score().mean_kept > 0
        plain = Run(run.workspace, override(run.settings, {"model.adapter": None}))
        assert "model.adapter" in run.workspace.state("precompute", settings=plain.settings).reason
        precompute.run(plain.workspace, plain.settings, progress=Progress(), force=True)
        without = tensors_of(run.workspace.folder("precompute"))
        assert with_it.keys() == without.keys()
        assert not any(torch.equal(with_it[name], without[name]) for name in with_it if "states" in name)

    def test_one_that_changed_since_is_an_error(self, run: Run) -> None:
        run.precompute()
        path = Path(str(run.settings.model.adapter), ADAPTER_FILE)
        tensors = load_file(path)
        first = sorted(tensors)[0]
        save_file({**tensors, first: tensors[first] + 1e-7}, path)  # too little for a fingerprint to notice
        with pytest.raises(CorruptError, match="has changed since"):
            run.score()

    def test_one_that_was_moved_is_found_where_it_is_now(self, run: Run, tmp_path: Path) -> None:
        run.precompute()
        (tmp_path / "chain").rename(tmp_path / "moved")
        there = override(run.settings, {"model.adapter": str(tmp_path / "moved" / PSI)})
        assert Run(run.workspace, there).score().mean_kept > 0
        with pytest.raises(UsageError, match="is no adapter's folder"):
            run.train_phi()


@dataclass(frozen=True)
class Figures:
    """The result of a stage."""

    num_steps: int
    parts: list[float]
    was_ready: bool = False


class TestReadyResult:
    """The result of a finished stage is read again; before an unfinished one is made, it is checked that it can be."""

    SPEC = ArtifactSpec("train-phi", "r0.10", {"train_phi": {"epochs": 9}}, {"score": "s"}, ("train_phi.epochs",))

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Workspace:
        return Workspace.create(tmp_path / "run", "embedded")

    def finish(self, workspace: Workspace) -> None:
        with workspace.building(self.SPEC) as build:
            (build.folder / "x").write_text("x")
            build.summary.update(num_steps=3, parts=[0.5])

    def test_a_finished_one_is_what_it_came_to_and_was_ready(self, workspace: Workspace) -> None:
        assert ready_result(workspace, self.SPEC, Figures) is None
        self.finish(workspace)
        assert ready_result(workspace, self.SPEC, Figures) == Figures(3, [0.5], was_ready=True)

    @pytest.mark.parametrize(
        "change", [{"inputs": {"score": "other"}}, {"config": {"train_phi": {"epochs": 3}}}, {"key": "r0.20"}]
    )
    def test_one_made_from_other_things_is_not(self, workspace: Workspace, change: dict[str, object]) -> None:
        self.finish(workspace)
        assert ready_result(workspace, replace(self.SPEC, **change), Figures) is None  # type: ignore[arg-type]

    @pytest.mark.parametrize("summary", [{"num_steps": 3}, {"num_steps": 3, "parts": [], "of_another": 1}])
    def test_one_of_another_version_is_refused(self, workspace: Workspace, summary: dict[str, object]) -> None:
        self.finish(workspace)
        edit_manifest(workspace.require("train-phi", "r0.10"), summary=summary)
        with pytest.raises(CorruptError, match=r"r0\.10 was made by ccot .*, and records what .* does not know"):
            ready_result(workspace, self.SPEC, Figures)

    def test_one_that_lacks_a_file_is_not(self, workspace: Workspace) -> None:
        self.finish(workspace)
        (workspace.folder("train-phi", "r0.10") / "x").unlink()
        assert ready_result(workspace, self.SPEC, Figures) is None

    def test_what_options_made_is_not_replaced_by_a_command_without_them(self, workspace: Workspace) -> None:
        self.finish(workspace)
        forgotten = replace(self.SPEC, config={"train_phi": {"epochs": 8}}, overrides=())
        with pytest.raises(UsageError, match=r"made with train_phi\.epochs = 9"):
            ready_result(workspace, forgotten, Figures)

    def test_while_another_works_only_a_finished_one_is_told(self, workspace: Workspace) -> None:
        self.finish(workspace)
        with workspace.building(ArtifactSpec("score", "r0.10", {}, {})):
            assert ready_result(workspace, self.SPEC, Figures) is not None
            with pytest.raises(BusyError):
                ready_result(workspace, replace(self.SPEC, key="r0.20"), Figures)
