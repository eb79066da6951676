"""An artifact exists when it is finished; an interrupted attempt keeps its files."""

import errno
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ccot_cli.errors import CorruptError, ResourceError
from ccot_cli.files import sha256_of
from ccot_cli.workspace import build
from ccot_cli.workspace.workspace import State, Workspace
from workspace.making import CONFIG, asked, interrupt, make


def test_it_does_not_exist_before_it_is_finished(workspace: Workspace) -> None:
    with workspace.building(asked()):
        assert workspace.artifact("precompute") is None
    assert workspace.artifact("precompute") is not None


def test_scratch_and_partial_files_are_no_part_of_it(workspace: Workspace) -> None:
    with workspace.building(asked()) as build:
        build.scratch("checkpoint").write_text("x")
        build.scratch("never-written")
        (build.folder / "y.part").touch()
        (build.folder / "z").touch()
    artifact = workspace.require("precompute")
    assert list(artifact.manifest.files) == ["z"]
    assert sorted(path.name for path in artifact.folder.iterdir()) == ["manifest.json", "z"]


def test_an_interrupted_attempt_leaves_its_files_and_the_same_work_resumes(workspace: Workspace) -> None:
    assert interrupt(workspace) is False
    assert workspace.state("precompute") == State("missing", "interrupted; the same command resumes it")
    with workspace.building(asked()) as build:
        assert (build.folder / "a.txt").read_text() == "half"


@pytest.mark.parametrize("change", [{"inputs": {"model": "other"}}, {"config": {"data": {"limit": 1}}}])
def test_other_work_starts_from_an_empty_folder(workspace: Workspace, change: dict[str, Any]) -> None:
    interrupt(workspace)
    with workspace.building(asked(**change)) as build:
        assert [path.name for path in build.folder.iterdir()] == ["building.json"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"inputs": {"model": "other"}}, ["what it is made from differs"]),
        (
            {"config": {**CONFIG, "data": {**CONFIG["data"], "limit": 1, "seed": 3}}},
            ["data.limit was 4000, now 1; data.seed was 0, now 3"],
        ),
    ],
)
def test_it_is_said_before_the_work_of_an_interrupted_attempt_is_deleted(
    workspace: Workspace, changes: dict[str, Any], expected: list[str]
) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        assert (workspace.root / "precompute" / "a.txt").read_text() == "half", "it is still there"
        said.append(text.removeprefix("an interrupted precompute is deleted, not resumed: "))

    interrupt(workspace)
    with workspace.building(asked(**changes), say):
        pass
    assert said == expected


def test_it_is_not_said_of_what_stays_beside_a_repair(workspace: Workspace) -> None:
    first, said = make(workspace), list[str]()
    interrupt(workspace, inputs={"model": "other"})
    (first.folder / "a.txt").unlink()
    with workspace.building(first.manifest.spec, said.append) as build:
        (build.folder / "a.txt").write_text("A")
    assert said == []
    assert workspace.require("precompute").fingerprint == first.fingerprint
    with workspace.building(asked(inputs={"model": "other"})) as build:
        assert (build.folder / "a.txt").read_text() == "half"


def test_an_interrupted_attempt_of_another_kind_is_not_resumed(workspace: Workspace) -> None:
    interrupt(workspace)
    assert interrupt(workspace, inputs={"model": "other"}) is False
    assert interrupt(workspace) is False


def test_an_artifact_stays_in_use_until_another_takes_its_place(workspace: Workspace) -> None:
    first = make(workspace)
    interrupt(workspace, inputs={"model": "other"})
    assert workspace.artifact("precompute") == first
    assert not list(first.damaged())
    assert workspace.ready(asked()) == first
    with workspace.building(asked(inputs={"model": "other"})) as build:
        assert (build.folder / "a.txt").read_text() == "half"
        assert workspace.artifact("precompute") == first
    second = workspace.require("precompute")
    assert list(second.manifest.files) == ["a.txt"]
    assert sorted(path.name for path in second.folder.iterdir()) == ["a.txt", "manifest.json"]
    assert [path.name for path in workspace.root.glob("precompute*")] == ["precompute"]


def test_a_manifest_without_files_stays_in_use_while_they_are_made_again(workspace: Workspace) -> None:
    first = make(workspace)
    for name in first.manifest.files:
        first.path(name).unlink()
    interrupt(workspace)
    assert workspace.artifact("precompute") == first
    second = make(workspace)
    assert second.fingerprint == first.fingerprint
    assert second.is_complete()
    assert [path.name for path in workspace.root.glob("precompute*")] == ["precompute"]


@pytest.mark.parametrize("removal", [1, 2, 3, 4])
def test_a_kill_during_the_last_clean_up_leaves_nothing_for_good(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, removal: int
) -> None:
    make(workspace, inputs={"model": "other"})
    calls, remove = [], build.remove

    def killed(path: Path) -> None:
        calls.append(path)
        if len(calls) == removal + before:
            raise KeyboardInterrupt
        remove(path)

    before = 1  # The first removal makes room for the retired folder.
    making = workspace.building(asked())
    made = making.__enter__()
    for path in (made.folder / "a.txt", made.scratch("checkpoint"), made.scratch("log")):
        path.write_text("A")
    with monkeypatch.context() as patch:
        patch.setattr(build, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            making.__exit__(None, None, None)
    ready = workspace.ready(asked())
    assert ready is not None
    assert sorted(path.name for path in ready.folder.iterdir()) == ["a.txt", "manifest.json"]
    assert [path.name for path in workspace.root.glob("precompute*")] == ["precompute"]


def test_a_sound_artifact_is_rebuilt_from_nothing(workspace: Workspace) -> None:
    make(workspace)
    with workspace.building(asked()) as build:
        assert [path.name for path in build.folder.iterdir()] == ["building.json"]


@pytest.mark.parametrize("damage", ["X", "longer", None])
def test_only_the_damaged_file_is_made_again(workspace: Workspace, damage: str | None) -> None:
    damaged = make(workspace).folder / "a.txt"
    damaged.unlink() if damage is None else damaged.write_text(damage)
    with workspace.building(asked()) as build:
        assert sorted(path.name for path in build.folder.iterdir()) == ["building.json", "sub"]
        assert (build.folder / "sub" / "b.txt").read_text() == "B"


@pytest.mark.parametrize(
    ("is_replaced", "write"),
    [*((False, write) for write in range(1, 9)), *((True, write) for write in range(1, 10))],
)
def test_a_kill_at_any_flush_leaves_no_artifact_or_a_whole_one(
    workspace: Workspace, is_replaced: bool, write: int
) -> None:
    if is_replaced:
        make(workspace)
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from ccot_cli.workspace.artifact import ArtifactSpec; from ccot_cli.workspace.workspace import Workspace\n"
        "left = int(sys.argv[1]); fsync = os.fsync\n"
        "def count(descriptor):\n"
        "    global left; left -= 1\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if not left else fsync(descriptor)\n"
        "os.fsync = count\n"
        "with Workspace.open(Path('my-run')).building(ArtifactSpec('precompute', None, {}, {})) as build:\n"
        "    (build.folder / 'a').write_text('A')\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(write)], check=False)
    assert killed.returncode == -signal.SIGKILL
    if (artifact := workspace.artifact("precompute")) is not None:
        assert not list(artifact.damaged())
    assert artifact is not None or not is_replaced
    with workspace.building(asked(config={})) as build:
        (build.folder / "a").write_text("A")
    assert list(workspace.require("precompute").manifest.files) == ["a"]
    assert [path.name for path in workspace.root.glob("precompute*")] == ["precompute"]


def test_ready_only_for_the_same_config_and_inputs_and_whole_files(workspace: Workspace) -> None:
    artifact, wanted = make(workspace, inputs={"model": "m"}), asked(inputs={"model": "m"})
    assert workspace.ready(wanted) == workspace.matching(wanted) == artifact
    for other in (
        asked(inputs={"model": "other"}),
        asked(config={}, inputs={"model": "m"}),
        asked("score", "r0.10", inputs={"model": "m"}),
    ):
        assert workspace.ready(other) is None
        assert workspace.matching(other) is None
    (artifact.folder / "a.txt").write_text("longer")
    assert workspace.ready(wanted) is None
    assert workspace.matching(wanted) == artifact, "whether it is whole is another question"


def test_clearing_a_folder_removes_a_link_and_not_what_it_points_to(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").touch()
    (make(workspace).folder / "link").symlink_to(tmp_path / "elsewhere")
    make(workspace)
    assert (tmp_path / "elsewhere" / "x").exists()
    assert not (workspace.folder("precompute") / "link").exists()


def test_a_noted_file_is_hashed_once_unless_it_changes(workspace: Workspace) -> None:
    with workspace.building(asked("eval", "run")) as build:
        for name in ("kept", "changed", "other"):
            (build.folder / name).write_text(name)
        kept, changed = build.folder / "kept", build.folder / "changed"
        build.hash_early(kept)
        build.hash_early(changed)
        before, noted = kept.stat(), sha256_of(kept)
        # Neither the size nor the time of `kept` shows this change, so that only hashing it again would find it.
        kept.write_text("KEPT")
        os.utime(kept, ns=(before.st_atime_ns, before.st_mtime_ns))
        changed.write_text("something else")
    made = workspace.require("eval", "run")
    assert made.manifest.files["kept"].sha256 == noted
    assert made.manifest.files["changed"].sha256 == sha256_of(made.folder / "changed")
    assert made.manifest.files["other"].sha256 == sha256_of(made.folder / "other")
    (made.folder / "kept").write_text("kept")
    assert not list(made.damaged())


def test_what_was_hashed_early_is_reused_only_if_it_still_fits(workspace: Workspace) -> None:
    interrupt(workspace)
    with suppress(KeyboardInterrupt), workspace.building(asked()) as build:
        for name in ("sound", "flipped", "unknown"):
            (build.folder / name).write_text(name)
            if name != "unknown":
                build.hash_early(build.folder / name)
        raise KeyboardInterrupt
    flipped = workspace.folder("precompute") / "flipped"
    flipped.write_text("FLIPPED")
    with workspace.building(asked()) as build:
        assert not flipped.exists()
        assert (build.folder / "unknown").exists(), "its stage decides"
        build.drop_unknown()
        assert {path.name for path in build.folder.iterdir()} == {"building.json", "sound"}
    assert list(workspace.require("precompute").manifest.files) == ["sound"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RuntimeError("Disk quota exceeded")]
)
def test_a_full_disk_names_the_folder_whatever_library_met_it(workspace: Workspace, error: Exception) -> None:
    def attempt() -> None:
        with workspace.building(asked()) as build:
            (build.folder / "a.txt").write_text("12345")
            raise error

    with pytest.raises(
        ResourceError, match=r"no room for my-run/precompute: more than .*B needed, .* free \("
    ) as caught:
        attempt()
    assert caught.value.exit_code == 5
    assert interrupt(workspace), "what is finished is kept"


def test_a_link_in_the_place_of_a_replacement_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    make(workspace)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").touch()
    (workspace.root / "precompute.ccot-new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptError, match="leads out of the workspace"):
        make(workspace, inputs={"model": "other"})
    assert (tmp_path / "elsewhere" / "x").exists()
