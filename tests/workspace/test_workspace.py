"""A workspace is found, knows which artifacts are out of date, and names the command that makes one."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ccot_cli.config import Settings, stage_config
from ccot_cli.errors import CorruptError, MissingError, UsageError
from ccot_cli.overrides import override
from ccot_cli.presets import preset_text
from ccot_cli.workspace.artifact import Artifact
from ccot_cli.workspace.workspace import State, Workspace
from workspace.making import asked, edit_manifest, interrupt, make


class TestFinding:
    def test_a_new_workspace_holds_the_presets_settings(self, tmp_path: Path) -> None:
        workspace = Workspace.create(tmp_path / "new", "embedded")
        assert (workspace.root / "ccot.yaml").read_text(encoding="utf-8") == preset_text("embedded")
        assert workspace.settings == Settings()

    def test_creating_twice_is_refused_and_changes_nothing(self, workspace: Workspace) -> None:
        (workspace.root / "ccot.yaml").write_text("data: {limit: 7}")
        with pytest.raises(UsageError, match="my-run is a workspace already"):
            Workspace.create(workspace.root, "embedded")
        assert Workspace.open(workspace.root).settings.data.limit == 7

    def test_an_unknown_preset_makes_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError):
            Workspace.create(tmp_path / "x", "no such preset")
        assert not (tmp_path / "x").exists()

    def test_the_named_one_comes_before_the_environment_and_that_before_the_nearest(self, tmp_path: Path) -> None:
        for name in ("named", "variable", "around"):
            Workspace.create(tmp_path / name, "embedded")
        inside = tmp_path / "around" / "a" / "b"
        inside.mkdir(parents=True)
        environ = {"CCOT_WORKSPACE": str(tmp_path / "variable")}

        def found(explicit: Path | None, environ: dict[str, str]) -> str:
            workspace = Workspace.find(explicit, environ, inside)
            return workspace.name if workspace else ""

        assert found(tmp_path / "named", environ) == "named"
        assert found(None, environ) == "variable"
        assert found(None, {}) == "around"

    def test_there_may_be_none(self, tmp_path: Path) -> None:
        assert Workspace.find(None, {}, tmp_path) is None

    def test_a_named_folder_without_settings_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"has no ccot\.yaml") as caught:
            Workspace.find(tmp_path / "a b", {}, tmp_path)
        assert caught.value.fix == f"ccot init '{tmp_path}/a b'"

    def test_a_command_names_the_workspace_unless_one_stands_in_it(
        self, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workspace = Workspace.open(tmp_path / "my-run")
        assert workspace.command("score") == "ccot score -w my-run"
        (tmp_path / "my-run" / "score").mkdir()
        monkeypatch.chdir(tmp_path / "my-run" / "score")
        assert workspace.command("score") == "ccot score"
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        assert workspace.command("score") == f"ccot score -w {tmp_path}/my-run"

    def test_a_command_that_would_find_another_workspace_names_this_one(
        self, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workspace = Workspace.open(tmp_path / "my-run")
        inner = Workspace.create(tmp_path / "my-run" / "inner", "embedded")
        monkeypatch.chdir(tmp_path / "my-run")
        monkeypatch.setenv("CCOT_WORKSPACE", str(inner.root))
        assert workspace.command("score") == "ccot score -w ."
        monkeypatch.setenv("CCOT_WORKSPACE", str(workspace.root))
        monkeypatch.chdir(inner.root)
        assert workspace.command("score") == "ccot score"
        monkeypatch.delenv("CCOT_WORKSPACE")
        assert workspace.command("score") == f"ccot score -w {tmp_path}/my-run"

    def test_a_link_out_of_the_workspace_is_refused_and_left_alone(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "x").touch()
        (workspace.root / "precompute").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(CorruptError, match="leads out of the workspace"):
            make(workspace)
        assert os.listdir(tmp_path / "elsewhere") == ["x"]  # noqa: PTH208

    @pytest.mark.parametrize(("stage", "key"), [("nothing", None), ("score", ".."), ("score", "a/b"), ("score", "")])
    def test_a_name_that_is_no_place_is_refused(self, workspace: Workspace, stage: str, key: str | None) -> None:
        with pytest.raises(ValueError, match="no folder for"):
            workspace.folder(stage, key)


class TestState:
    def test_missing_then_ready(self, workspace: Workspace) -> None:
        assert workspace.state("precompute") == State("missing")
        make(workspace)
        assert workspace.state("precompute") == State("ready")

    def test_what_a_kill_after_the_manifest_has_left_does_not_count_and_a_replacement_does(
        self, workspace: Workspace
    ) -> None:
        made = make(workspace, "train-psi", "r0.10")
        (made.folder / "building.json").write_text(made.manifest.model_dump_json())
        assert workspace.state("train-psi", "r0.10") == State("ready")
        assert workspace.unfinished("train-psi") == []
        interrupt(workspace, stage="train-psi", key="r0.10", inputs={"model": "other"})
        reason = "interrupted while it was replaced; that command resumes it"
        assert workspace.state("train-psi", "r0.10") == State("ready", reason)
        assert workspace.unfinished("train-psi") == ["r0.10"]

    def test_a_changed_setting_makes_it_stale_and_is_named(self, workspace: Workspace) -> None:
        make(workspace)
        changed = override(workspace.settings, {"data.limit": 5, "model.revision": "main"})
        reason = "data.limit: 4000 → 5; model.revision: None → main"
        assert workspace.state("precompute", settings=changed) == State("stale", reason)

    def test_a_setting_from_the_command_line_does_not(self, workspace: Workspace) -> None:
        changed = override(workspace.settings, {"data.limit": 5})
        make(workspace, settings=changed, overrides=("data.limit",))
        assert workspace.state("precompute") == State("ready")

    def test_what_options_made_is_not_lost_to_a_command_without_them(self, workspace: Workspace) -> None:
        changed = override(workspace.settings, {"data.limit": 5})
        made = make(workspace, settings=changed, overrides=("data.limit",))

        def ready(settings: Settings, *overrides: str, **inputs: str) -> Artifact | None:
            config = stage_config(settings, "precompute")
            return workspace.ready(asked(config=config, inputs=inputs, overrides=overrides))

        assert ready(changed, "data.limit") == made
        with pytest.raises(UsageError, match=r"made with data\.limit = 5, and would be replaced") as caught:
            ready(workspace.settings)
        assert str(made.folder) in caught.value.fix
        # What the options changed may be among the inputs too.
        with pytest.raises(UsageError, match="would be replaced"):
            ready(workspace.settings, model="another")
        # With another value of the option, or another change in the settings file, it is made again.
        assert ready(override(changed, {"data.limit": 6}), "data.limit") is None
        assert ready(override(workspace.settings, {"data.seed": 3})) is None

    def test_nor_is_what_an_interrupted_command_has_left(self, workspace: Workspace) -> None:
        longer, usual = (
            asked("train-phi", "r0.10", config=stage_config(settings, "train-phi"), overrides=overrides)
            for settings, overrides in (
                (override(workspace.settings, {"train_phi.epochs": 9}), ("train_phi.epochs",)),
                (workspace.settings, ()),
            )
        )
        with pytest.raises(KeyboardInterrupt), workspace.building(longer) as build:
            raise KeyboardInterrupt
        # It has left nothing yet.
        assert workspace.ready(usual) is None
        (build.folder / "checkpoint").touch()
        with pytest.raises(UsageError, match=r"made with train_phi\.epochs = 9, and would be replaced"):
            workspace.ready(usual)
        assert workspace.ready(longer) is None

    def test_a_workspace_that_was_moved_is_not_stale(self, workspace: Workspace) -> None:
        (workspace.root / "data.jsonl").touch()
        (workspace.root / "ccot.yaml").write_text("data: {source: data.jsonl}")
        workspace = Workspace.open(workspace.root)
        made = make(workspace, inputs={"problems": "p"})
        workspace.root.rename("moved")
        moved = Workspace.open(Path("moved"))
        assert moved.settings.data.source != workspace.settings.data.source
        assert moved.state("precompute") == State("ready")
        assert moved.require("precompute").fingerprint == made.fingerprint
        config = stage_config(moved.settings, "precompute")
        assert moved.ready(asked(config=config, inputs={"problems": "p"})) is not None
        assert moved.ready(asked(config=config, inputs={"problems": "other"})) is None
        other = override(moved.settings, {"data.source": "/elsewhere/other.jsonl"})
        assert moved.state("precompute", settings=other).name == "stale"

    def test_another_file_of_the_same_name_makes_it_stale_and_a_copy_does_not(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        settings = {}
        for name, text in (("one", "first"), ("copy", "first"), ("other", "second")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "train.jsonl").write_text(text)
            source = str(tmp_path / name / "train.jsonl")
            settings[name] = override(workspace.settings, {"data.source": source})
        make(workspace, settings=settings["one"])
        states = {name: workspace.state("precompute", settings=each).name for name, each in settings.items()}
        assert states == {"one": "ready", "copy": "ready", "other": "stale"}

    def test_a_model_of_another_owner_on_the_hub_makes_it_stale(self, workspace: Workspace) -> None:
        make(workspace, settings=override(workspace.settings, {"model.name": "one/llama"}))
        other = override(workspace.settings, {"model.name": "other/llama"})
        assert workspace.state("precompute", settings=other).name == "stale"

    @pytest.mark.parametrize(("stage", "name"), [("train-phi", "score"), ("eval", "score/r0.10")])
    def test_an_input_made_again_makes_it_stale(self, workspace: Workspace, stage: str, name: str) -> None:
        score = make(workspace, "score", "r0.10")
        make(workspace, stage, "r0.10", inputs={name: score.fingerprint, "model": "no artifact"})
        assert workspace.state(stage, "r0.10") == State("ready")
        make(workspace, "score", "r0.10")
        assert workspace.state(stage, "r0.10") == State("ready"), "the same bytes from the same things are the same"
        make(workspace, "score", "r0.10", files={"a.txt": "other"})
        assert workspace.state(stage, "r0.10") == State("stale", "score/r0.10 was made again since, and differs")

    def test_an_input_that_was_deleted_has_not_changed(self, workspace: Workspace) -> None:
        source = make(workspace)
        make(workspace, "score", "r0.10", inputs={"precompute": source.fingerprint})
        (source.folder / "manifest.json").unlink()
        assert workspace.state("score", "r0.10") == State("ready")

    def test_keys_are_those_that_may_be_used(self, workspace: Workspace) -> None:
        source = make(workspace)
        for key in ("r0.10", "r0.05", "r0.20", "r0.30"):
            made = make(workspace, "score", key, inputs={"precompute": source.fingerprint})
            if key == "r0.20":
                edit_manifest(made, inputs={"precompute": "other"})
        (workspace.folder("score", "r0.30") / "manifest.json").write_text("{")
        workspace.folder("score", "r0.40").mkdir()
        assert workspace.keys("score") == ["r0.05", "r0.10"]
        assert workspace.finished("score") == ["r0.05", "r0.10", "r0.20", "r0.30"]
        assert workspace.finished("precompute") == [None]
        assert workspace.finished("eval") == []


class TestCommands:
    """What a manifest keeps of the command line, and which command makes an artifact."""

    def test_a_command_is_repeated_with_the_files_that_it_named(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "data.jsonl").touch()
        make(replace(workspace, typed=("precompute", "--data", "data.jsonl", "--model", "a/b")))
        expected = f"ccot precompute --data {tmp_path}/data.jsonl --model a/b -w my-run"
        assert workspace.command_for("precompute", None) == expected
        (tmp_path / "psi").mkdir()
        options = ("--start", "psi", "--data=data.jsonl", "--set", "data.source=data.jsonl", "--set", "data.limit=3")
        make(replace(workspace, typed=("train-psi", *options)), "train-psi", "r0.10")
        expected = f"--start {tmp_path}/psi --data={tmp_path}/data.jsonl --set data.source={tmp_path}/data.jsonl"
        assert workspace.command_for("train-psi", "r0.10") == f"ccot train-psi {expected} --set data.limit=3 -w my-run"
        # A folder that happens to be called "embedded" does not hide the model or data of that name.
        (tmp_path / "embedded").mkdir()
        make(replace(workspace, typed=("precompute", "-wmy-run", "--model", "embedded", "--data=embedded")))
        expected = "ccot precompute --model embedded --data=embedded -w my-run"
        assert workspace.command_for("precompute", None) == expected
        # `demo` types its commands itself.
        make(replace(workspace, typed=("demo", "my-run")), "score", "r0.10")
        assert workspace.command_for("score", "r0.10") == "ccot score --ratio 0.1 -w my-run"

    def test_a_command_that_was_typed_is_the_one_to_repeat(self, workspace: Workspace) -> None:
        typed = ("sweep", "-w", "there", "--ratio", "0.1", "--workspace=x", "--layer", "4")
        make(replace(workspace, typed=typed), "train-phi", "r0.10-l4")
        assert workspace.command_for("train-phi", "r0.10-l4") == "ccot sweep --ratio 0.1 --layer 4 -w my-run"
        assert workspace.command_for("train-phi", "r0.20") == "ccot train-phi --ratio 0.2 -w my-run"

    def test_a_manifest_says_what_was_typed_and_nothing_if_python_made_it(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.argv", ["train_all.py", "--fast"])
        typed = ("score", "--workspace", "my-run", "--ratio", "0.1")
        by_hand, around = Workspace.open(workspace.root, typed), Workspace.find(workspace.root, {}, Path(), typed)
        assert around is not None
        assert by_hand.typed == around.typed == typed
        for there, command in ((by_hand, ("score", "--ratio", "0.1")), (Workspace.open(workspace.root), ())):
            assert make(there, "score", "r0.10").manifest.command == command
        assert workspace.command_for("score", "r0.10") == "ccot score --ratio 0.1 -w my-run"

    def test_what_an_interrupted_command_typed_is_repeated_too(self, workspace: Workspace) -> None:
        first = replace(workspace, typed=("train-phi", "--epochs", "9"))
        with pytest.raises(KeyboardInterrupt), first.building(asked("train-phi", "r0.10")):
            raise KeyboardInterrupt
        assert workspace.command_for("train-phi", "r0.10") == "ccot train-phi --epochs 9 -w my-run"


class TestRequire:
    def test_a_missing_stage_names_its_command(self, workspace: Workspace) -> None:
        with pytest.raises(MissingError) as caught:
            workspace.require("precompute")
        assert caught.value.message == "my-run has no finished 'precompute' stage"
        assert caught.value.fix == "ccot precompute -w my-run"
        assert caught.value.exit_code == 3

    def test_a_missing_ratio_names_those_that_are_there(self, workspace: Workspace) -> None:
        for key in ("r0.05", "r0.10", "r1.00"):
            make(workspace, "train-phi", key)
        with pytest.raises(MissingError) as caught:
            workspace.require("train-phi", "r0.37")
        assert caught.value.message == (
            "my-run has no finished 'train-phi' stage for ratio 0.37 (finished: 0.05, 0.1, 1)"
        )
        assert caught.value.fix == "ccot train-phi --ratio 0.37 -w my-run"

    def test_a_missing_run_is_called_a_run(self, workspace: Workspace) -> None:
        with pytest.raises(MissingError, match=r"for run 2026-11-21-1 \(finished: none\)"):
            workspace.require("eval", "2026-11-21-1")

    def test_a_changed_input_is_refused_and_a_changed_setting_is_not(self, workspace: Workspace) -> None:
        other = override(workspace.settings, {"score.selector": "even"})
        artifact = make(workspace, "score", "r0.10", settings=other)
        assert workspace.state("score", "r0.10").name == "stale"
        assert workspace.require("score", "r0.10") == artifact
        make(workspace, "score", "r0.10", inputs={"precompute": "an earlier one"})
        make(workspace)
        with pytest.raises(MissingError) as caught:
            workspace.require("score", "r0.10")
        assert caught.value.message == "score/r0.10 of my-run is stale: precompute was made again since, and differs"
        assert caught.value.fix == "ccot score --ratio 0.1 -w my-run"

    def test_a_folder_moved_to_another_key_is_refused(self, workspace: Workspace) -> None:
        make(workspace, "score", "r0.10").folder.rename(workspace.root / "score" / "r0.20")
        with pytest.raises(CorruptError, match=r"score/r0\.20 holds score/r0\.10"):
            workspace.require("score", "r0.20")
