"""Artifacts exist when they are finished, and know when they are out of date."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ccot_cli.config import Settings, override, stage_config
from ccot_cli.errors import BusyError, CorruptError, MissingError, UsageError
from ccot_cli.files import sha256_of
from ccot_cli.presets import preset_text
from ccot_cli.workspace.artifact import FORMAT, Artifact
from ccot_cli.workspace.workspace import State, Workspace

CONFIG = stage_config(Settings(), "precompute")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return Workspace.create(Path("my-run"), "embedded")


def make(
    workspace: Workspace,
    stage: str = "precompute",
    key: str | None = None,
    *,
    files: Mapping[str, str] = {"a.txt": "A", "sub/b.txt": "B"},
    inputs: Mapping[str, str] = {},
    overrides: tuple[str, ...] = (),
    settings: Settings | None = None,
) -> Artifact:
    config = stage_config(settings or workspace.settings, stage)
    with workspace.building(stage, key, config=config, inputs=inputs, overrides=overrides) as build:
        for name, text in files.items():
            (build.folder / name).parent.mkdir(exist_ok=True)
            (build.folder / name).write_text(text)
        build.summary["files"] = len(files)
    artifact = workspace.artifact(stage, key)
    assert artifact is not None
    return artifact


def interrupt(workspace: Workspace, text: str = "half", **request: Any) -> bool:
    """Write `text` to a.txt and stop; return whether the attempt was a resumed one."""
    resumed = []

    def attempt() -> None:
        with workspace.building("precompute", **{"config": CONFIG, "inputs": {}, **request}) as build:
            resumed.append(build.is_resumed)
            (build.folder / "a.txt").write_text(text)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt()
    return resumed[0]


def edit_manifest(artifact: Artifact, **changes: object) -> None:
    path = artifact.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class TestFinding:
    def test_a_new_workspace_holds_the_presets_settings(self, workspace: Workspace) -> None:
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


class TestBuilding:
    def test_a_finished_artifact_records_every_file_and_its_hash(self, workspace: Workspace) -> None:
        artifact = make(workspace, overrides=("data.limit",))
        manifest = artifact.manifest
        assert {name: record.size for name, record in manifest.files.items()} == {"a.txt": 1, "sub/b.txt": 1}
        assert manifest.files["a.txt"].sha256 == "559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd"
        assert (manifest.format, manifest.stage, manifest.key) == (FORMAT, "precompute", None)
        assert (manifest.config, manifest.overrides, manifest.summary) == (CONFIG, ("data.limit",), {"files": 2})
        assert set(manifest.versions) == {"ccot", "python", "torch", "transformers", "peft"}
        assert artifact.num_bytes == 2
        assert not list(artifact.damaged())

    def test_it_does_not_exist_before_it_is_finished(self, workspace: Workspace) -> None:
        with workspace.building("precompute", config=CONFIG, inputs={}):
            assert workspace.artifact("precompute") is None
        assert workspace.artifact("precompute") is not None

    def test_scratch_and_partial_files_are_no_part_of_it(self, workspace: Workspace) -> None:
        with workspace.building("precompute", config=CONFIG, inputs={}) as build:
            build.scratch("checkpoint").write_text("x")
            build.scratch("never-written")
            (build.folder / "y.part").touch()
            (build.folder / "z").touch()
        artifact = workspace.require("precompute")
        assert list(artifact.manifest.files) == ["z"]
        assert sorted(path.name for path in artifact.folder.iterdir()) == ["manifest.json", "y.part", "z"]

    def test_an_interrupted_attempt_leaves_its_files_and_the_same_work_resumes(self, workspace: Workspace) -> None:
        assert interrupt(workspace) is False
        assert workspace.state("precompute") == State("missing", "interrupted; the same command goes on")
        with workspace.building("precompute", config=CONFIG, inputs={}) as build:
            assert build.is_resumed
            assert (build.folder / "a.txt").read_text() == "half"

    @pytest.mark.parametrize("change", [{"inputs": {"model": "other"}}, {"config": {"data": {"limit": 1}}}])
    def test_other_work_starts_from_an_empty_folder(self, workspace: Workspace, change: dict[str, Any]) -> None:
        interrupt(workspace)
        with workspace.building("precompute", **{"config": CONFIG, "inputs": {}, **change}) as build:
            assert not build.is_resumed
            assert [path.name for path in build.folder.iterdir()] == ["building.json"]

    def test_an_interrupted_attempt_of_another_kind_is_not_resumed(self, workspace: Workspace) -> None:
        interrupt(workspace)
        assert interrupt(workspace, inputs={"model": "other"}) is False
        assert interrupt(workspace) is False

    def test_an_artifact_stays_in_use_until_another_takes_its_place(self, workspace: Workspace) -> None:
        first = make(workspace)
        interrupt(workspace, inputs={"model": "other"})
        assert workspace.artifact("precompute") == first
        assert not list(first.damaged())
        assert workspace.ready("precompute", None, CONFIG, {}) == first
        with workspace.building("precompute", config=CONFIG, inputs={"model": "other"}) as build:
            assert build.is_resumed
            assert (build.folder / "a.txt").read_text() == "half"
            assert workspace.artifact("precompute") == first
        second = workspace.require("precompute")
        assert list(second.manifest.files) == ["a.txt"]
        assert sorted(path.name for path in second.folder.iterdir()) == ["a.txt", "manifest.json"]
        assert [path.name for path in workspace.root.glob("precompute*")] == ["precompute"]

    @pytest.mark.parametrize("rename", [1, 2])
    def test_a_kill_while_one_takes_anothers_place_loses_neither(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, rename: int
    ) -> None:
        make(workspace, "train-phi", "r0.10")
        calls, move = [], Path.rename

        def killed(path: Path, target: Path) -> Path:
            calls.append(path)
            if len(calls) == rename:
                raise KeyboardInterrupt
            return move(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", killed)
            with pytest.raises(KeyboardInterrupt):
                make(workspace, "train-phi", "r0.10", inputs={"score": "other"}, files={"c.txt": "C"})
        left = workspace.artifact("train-phi", "r0.10")
        assert (left is not None) == (rename == 1)
        assert left is None or not list(left.damaged())
        config = stage_config(workspace.settings, "train-phi")
        with workspace.building("train-phi", "r0.10", config=config, inputs={"score": "other"}) as build:
            assert build.is_resumed
            assert (build.folder / "c.txt").read_text() == "C"
        assert list(workspace.require("train-phi", "r0.10").manifest.files) == ["c.txt"]
        assert workspace.finished("train-phi") == ["r0.10"]
        assert [path.name for path in (workspace.root / "train-phi").iterdir()] == ["r0.10"]

    def test_a_sound_artifact_is_rebuilt_from_nothing(self, workspace: Workspace) -> None:
        make(workspace)
        with workspace.building("precompute", config=CONFIG, inputs={}) as build:
            assert not build.is_resumed

    @pytest.mark.parametrize("damage", ["X", "longer", None])
    def test_only_the_damaged_file_is_made_again(self, workspace: Workspace, damage: str | None) -> None:
        damaged = make(workspace).folder / "a.txt"
        damaged.unlink() if damage is None else damaged.write_text(damage)
        with workspace.building("precompute", config=CONFIG, inputs={}) as build:
            assert build.is_resumed
            assert sorted(path.name for path in build.folder.iterdir()) == ["building.json", "sub"]
            assert (build.folder / "sub" / "b.txt").read_text() == "B"

    @pytest.mark.parametrize(
        ("is_replaced", "write"),
        [*((False, write) for write in range(1, 9)), *((True, write) for write in range(1, 10))],
    )
    def test_a_kill_at_any_flush_leaves_no_artifact_or_a_whole_one(
        self, workspace: Workspace, is_replaced: bool, write: int
    ) -> None:
        if is_replaced:
            make(workspace)
        code = (
            "import os, signal, sys; from pathlib import Path; from ccot_cli.workspace import Workspace\n"
            "left = int(sys.argv[1]); fsync = os.fsync\n"
            "def count(descriptor):\n"
            "    global left; left -= 1\n"
            "    os.kill(os.getpid(), signal.SIGKILL) if not left else fsync(descriptor)\n"
            "os.fsync = count\n"
            "with Workspace.open(Path('my-run')).building('precompute', config={}, inputs={}) as build:\n"
            "    (build.folder / 'a').write_text('A')\n"
        )
        killed = subprocess.run([sys.executable, "-c", code, str(write)], check=False)
        assert killed.returncode == -signal.SIGKILL
        if (artifact := workspace.artifact("precompute")) is not None:
            assert not list(artifact.damaged())
        # Until the new one takes its place the old one is there; then the new one is whole, but for its manifest.
        assert artifact is not None or not is_replaced or (workspace.folder("precompute") / "a").read_text() == "A"
        with workspace.building("precompute", config={}, inputs={}) as build:
            (build.folder / "a").write_text("A")
        assert list(workspace.require("precompute").manifest.files) == ["a"]
        assert [path.name for path in workspace.root.glob("precompute*")] == ["precompute"]

    def test_ready_only_for_the_same_config_and_inputs_and_whole_files(self, workspace: Workspace) -> None:
        artifact = make(workspace, inputs={"model": "m"})
        assert workspace.ready("precompute", None, CONFIG, {"model": "m"}) == artifact
        assert workspace.ready("precompute", None, CONFIG, {"model": "other"}) is None
        assert workspace.ready("precompute", None, {}, {"model": "m"}) is None
        assert workspace.ready("score", "r0.10", CONFIG, {"model": "m"}) is None
        (artifact.folder / "a.txt").write_text("longer")
        assert workspace.ready("precompute", None, CONFIG, {"model": "m"}) is None

    def test_the_fingerprint_is_that_of_the_request_and_the_bytes(self, workspace: Workspace) -> None:
        first = make(workspace).fingerprint
        assert make(workspace, overrides=("data.limit",)).fingerprint == first
        assert make(workspace, files={"a.txt": "other"}).fingerprint != first
        assert make(workspace, inputs={"model": "m"}).fingerprint != first


class TestState:
    def test_missing_then_ready(self, workspace: Workspace) -> None:
        assert workspace.state("precompute") == State("missing")
        make(workspace)
        assert workspace.state("precompute") == State("ready")

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
            return workspace.ready("precompute", None, stage_config(settings, "precompute"), inputs, overrides)

        assert ready(changed, "data.limit") == made
        with pytest.raises(UsageError, match=r"made with data\.limit = 5, and would be replaced") as caught:
            ready(workspace.settings)
        assert str(made.folder) in caught.value.fix
        # What the options changed may be among the inputs too.
        with pytest.raises(UsageError, match="would be replaced"):
            ready(workspace.settings, model="another")
        # Asked for anew, or with another setting changed in the file: it is to be made again.
        assert ready(override(changed, {"data.limit": 6}), "data.limit") is None
        assert ready(override(workspace.settings, {"data.seed": 3})) is None

    def test_nor_is_what_an_interrupted_command_has_left(self, workspace: Workspace) -> None:
        config = stage_config(override(workspace.settings, {"train_phi.epochs": 9}), "train-phi")
        with (
            pytest.raises(KeyboardInterrupt),
            workspace.building(
                "train-phi", "r0.10", config=config, inputs={}, overrides=("train_phi.epochs",)
            ) as build,
        ):
            raise KeyboardInterrupt
        # It has left nothing yet.
        assert workspace.ready("train-phi", "r0.10", stage_config(workspace.settings, "train-phi"), {}) is None
        (build.folder / "checkpoint").touch()
        with pytest.raises(UsageError, match=r"made with train_phi\.epochs = 9, and would be replaced"):
            workspace.ready("train-phi", "r0.10", stage_config(workspace.settings, "train-phi"), {})
        assert workspace.ready("train-phi", "r0.10", config, {}, ("train_phi.epochs",)) is None

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
        assert moved.ready("precompute", None, config, {"problems": "p"}) is not None
        assert moved.ready("precompute", None, config, {"problems": "other"}) is None
        other = override(moved.settings, {"data.source": "/elsewhere/other.jsonl"})
        assert moved.state("precompute", settings=other).name == "stale"

    def test_what_is_being_made_is_not_called_interrupted(self, workspace: Workspace) -> None:
        with workspace.building("train-phi", "r0.10", config={}, inputs={}) as build:
            (build.folder / "checkpoint").touch()
            holder = workspace.root / ".lock.json"
            made = json.loads(holder.read_text())
            holder.write_text(json.dumps({**made, "command": "ccot train-phi --epochs 9"}))
            state = workspace.state("train-phi", "r0.10")
            assert state == State("being made", f"by process {os.getpid()} since {made['since']}")
            assert workspace.state("train-phi", "r0.20") == State("missing")
            assert workspace.state("train-psi", "r0.10") == State("missing")
            holder.write_text(json.dumps({**made, "command": "ccot train-phi", "pid": 2**22 + 1}))
            assert workspace.state("train-phi", "r0.10").reason.startswith("interrupted")
            holder.write_text(json.dumps(made))

    def test_a_command_is_repeated_with_the_files_that_it_named(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "data.jsonl").touch()
        monkeypatch.setattr("sys.argv", ["/usr/bin/ccot", "precompute", "--data", "data.jsonl", "--model", "a/b"])
        make(workspace)
        expected = f"ccot precompute --data {tmp_path}/data.jsonl --model a/b -w my-run"
        assert workspace.command_for("precompute", None) == expected
        monkeypatch.setattr("sys.argv", ["/usr/bin/ccot", "demo", "my-run"])
        make(workspace, "score", "r0.10")
        assert workspace.command_for("score", "r0.10") == "ccot score --ratio 0.1 -w my-run"

    def test_a_command_that_was_typed_is_the_one_to_repeat(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        typed = ["/usr/bin/ccot", "sweep", "-w", "there", "--ratio", "0.1", "--workspace=x", "--layer", "4"]
        monkeypatch.setattr("sys.argv", typed)
        make(workspace, "train-phi", "r0.10-l4")
        assert workspace.command_for("train-phi", "r0.10-l4") == "ccot sweep --ratio 0.1 --layer 4 -w my-run"
        assert workspace.command_for("train-phi", "r0.20") == "ccot train-phi --ratio 0.2 -w my-run"

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
            make(workspace, "score", key, inputs={"precompute": source.fingerprint if key != "r0.20" else "other"})
        (workspace.folder("score", "r0.30") / "manifest.json").write_text("{")
        workspace.folder("score", "r0.40").mkdir()
        assert workspace.keys("score") == ["r0.05", "r0.10"]
        assert workspace.finished("score") == ["r0.05", "r0.10", "r0.20", "r0.30"]
        assert workspace.finished("precompute") == [None]
        assert workspace.finished("eval") == []


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
        other = override(workspace.settings, {"score.seed": 9})
        artifact = make(workspace, "score", "r0.10", settings=other)
        assert workspace.state("score", "r0.10").name == "stale"
        assert workspace.require("score", "r0.10") == artifact
        make(workspace)
        make(workspace, "score", "r0.10", inputs={"precompute": "an earlier one"})
        with pytest.raises(MissingError) as caught:
            workspace.require("score", "r0.10")
        assert caught.value.message == "score/r0.10 of my-run is stale: precompute was made again since, and differs"
        assert caught.value.fix == "ccot score --ratio 0.1 -w my-run"


class TestDamage:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (None, "is missing"),
            ("", "holds 0 bytes, and 1 were written"),
            ("A ", "holds 2 bytes, and 1 were written"),
            ("B", "does not hold the bytes that were written"),
        ],
    )
    def test_a_damaged_file_is_named(self, workspace: Workspace, text: str | None, reason: str) -> None:
        artifact = make(workspace)
        path = artifact.folder / "a.txt"
        path.unlink() if text is None else path.write_text(text)
        assert list(artifact.damaged()) == [(path, reason)]

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"format": "1"}', b"\xff", b'{"format": 1}'])
    def test_an_unreadable_manifest_is_named(self, workspace: Workspace, text: bytes) -> None:
        path = make(workspace).folder / "manifest.json"
        path.write_bytes(text)
        for read in (workspace.artifact, workspace.state, workspace.require):
            with pytest.raises(CorruptError, match=r"precompute/manifest\.json cannot be read"):
                read("precompute")

    def test_a_later_format_is_refused_with_the_version_that_wrote_it(self, workspace: Workspace) -> None:
        artifact = make(workspace)
        edit_manifest(artifact, format=FORMAT + 1, versions={"ccot": "9.0"}, files="of a kind not known yet")
        with pytest.raises(CorruptError, match=r"was written by a newer ccot, 9\.0"):
            interrupt(workspace)
        assert (artifact.folder / "a.txt").exists()

    def test_a_folder_moved_to_another_key_is_refused(self, workspace: Workspace) -> None:
        make(workspace, "score", "r0.10").folder.rename(workspace.root / "score" / "r0.20")
        with pytest.raises(CorruptError, match=r"score/r0\.20 holds score/r0\.10"):
            workspace.require("score", "r0.20")

    @pytest.mark.parametrize("name", ["../../ccot.yaml", "/etc/hostname", "link"])
    def test_a_file_outside_the_folder_is_never_read(self, workspace: Workspace, name: str, tmp_path: Path) -> None:
        artifact = make(workspace)
        (tmp_path / "secret").write_text("A")
        (artifact.folder / "link").symlink_to(tmp_path / "secret")
        edit_manifest(artifact, files={name: {"sha256": artifact.manifest.files["a.txt"].sha256, "size": 1}})
        with pytest.raises(CorruptError, match="leads out of"):
            list(workspace.require("precompute").damaged())

    def test_a_link_out_of_the_workspace_is_refused_and_left_alone(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "x").touch()
        (workspace.root / "precompute").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(CorruptError, match="leads out of the workspace"):
            interrupt(workspace)
        assert os.listdir(tmp_path / "elsewhere") == ["x"]  # noqa: PTH208

    def test_clearing_a_folder_removes_a_link_and_not_what_it_points_to(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "x").touch()
        (make(workspace).folder / "link").symlink_to(tmp_path / "elsewhere")
        make(workspace)
        assert (tmp_path / "elsewhere" / "x").exists()
        assert not (workspace.folder("precompute") / "link").exists()

    @pytest.mark.parametrize(("stage", "key"), [("nothing", None), ("score", ".."), ("score", "a/b"), ("score", "")])
    def test_a_name_that_is_no_place_is_refused(self, workspace: Workspace, stage: str, key: str | None) -> None:
        with pytest.raises(ValueError, match="no place for"):
            workspace.folder(stage, key)


class TestLock:
    def test_a_second_writer_is_refused_at_once_and_told_who_works(self, workspace: Workspace) -> None:
        with workspace.building("precompute", config=CONFIG, inputs={}):
            with pytest.raises(BusyError) as caught:
                interrupt(workspace)
            assert f"process {os.getpid()} on {socket.gethostname()} since 2" in caught.value.message
            assert caught.value.exit_code == 6
            assert workspace.state("precompute").name == "missing", "readers are let in"
        assert interrupt(workspace) is False

    def test_a_holder_that_has_not_said_who_it_is_counts_too(self, workspace: Workspace) -> None:
        with workspace.building("precompute", config=CONFIG, inputs={}):
            (workspace.root / ".lock.json").unlink()
            with pytest.raises(BusyError, match="in use by another process"):
                interrupt(workspace)

    def test_a_killed_holder_frees_the_lock_at_once(self, workspace: Workspace) -> None:
        code = (
            "import sys; from pathlib import Path; from ccot_cli.workspace import Workspace\n"
            "with Workspace.open(Path('my-run')).building('precompute', config={}, inputs={}):\n"
            "    print('held', flush=True); sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(BusyError, match=f"process {holder.pid} "):
                interrupt(workspace)
            holder.kill()
            holder.wait()
        assert interrupt(workspace) is False

    def test_a_workspace_that_cannot_be_written_to_is_named(self, workspace: Workspace) -> None:
        (workspace.root / ".lock").mkdir()
        with pytest.raises(UsageError, match="cannot write to my-run"):
            interrupt(workspace)

    def test_reading_writes_nothing(self, workspace: Workspace) -> None:
        make(workspace)

        def snapshot() -> dict[str, int]:
            return {str(path): path.stat().st_mtime_ns for path in (workspace.root, *workspace.root.rglob("*"))}

        before = snapshot()
        assert not list(Workspace.open(workspace.root).require("precompute").damaged())
        assert workspace.state("precompute").name == "ready"
        assert workspace.keys("score") == []
        assert snapshot() == before


def test_a_noted_file_is_hashed_once_unless_it_changes(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def hashed(path: Path) -> str:
        read.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr("ccot_cli.workspace.sha256_of", hashed)
    with workspace.building("eval", "run", config={}, inputs={}) as build:
        for name in ("kept", "changed", "other"):
            (build.folder / name).write_text(name)
        build.note(build.folder / "kept")
        build.note(build.folder / "changed")
        (build.folder / "changed").write_text("something else")
    assert sorted(read) == ["changed", "changed", "kept", "other"]
    made = workspace.require("eval", "run")
    assert not list(made.damaged())
    assert made.manifest.files["changed"].sha256 == sha256_of(made.folder / "changed")
