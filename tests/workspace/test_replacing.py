"""Whatever is killed, and whenever one reads: an artifact is the old one or the new one, whole."""

import shutil
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from ccot_cli.config import stage_config
from ccot_cli.errors import BusyError
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec, read_whole
from ccot_cli.workspace.upkeep import clean, leftovers
from ccot_cli.workspace.workspace import Workspace
from workspace.making import asked, make
from workspace.steps import before_every_change, every_kill, restoring

pytestmark = pytest.mark.usefixtures("unflushed")
OLD = {"a.txt": "old", "sub/b.txt": "old"}
NEW = {"a.txt": "new", "sub/b.txt": "new", "c.txt": "new"}
KEYS = [("precompute", None), ("train-psi", "r0.10")]


def seen(workspace: Workspace, stage: str, key: str | None, between: Callable[[], None] = lambda: None) -> object:
    """Read an artifact file by file; None if there is none."""

    def read(artifact: Artifact | None) -> dict[str, str] | None:
        if artifact is None:
            return None
        found = {}
        for name in artifact.manifest.files:
            found[name] = artifact.path(name).read_text()
            between()
        return found

    return read_whole(workspace.folder(stage, key), read)


def make_old(workspace: Workspace, stage: str, key: str | None) -> Artifact:
    return make(workspace, stage, key, files=OLD)


def new(workspace: Workspace, stage: str, key: str | None) -> ArtifactSpec:
    return asked(stage, key, config=stage_config(workspace.settings, stage), inputs={"model": "other"})


def make_new(workspace: Workspace, stage: str, key: str | None) -> Artifact:
    with workspace.building(new(workspace, stage, key)) as build:
        build.scratch("checkpoint").write_text("half")
        for name, text in NEW.items():
            (build.folder / name).parent.mkdir(exist_ok=True)
            (build.folder / name).write_text(text)
    return workspace.require(stage, key)


def what_is_left(workspace: Workspace) -> list[str]:
    return sorted(path.relative_to(workspace.root).as_posix() for path in workspace.root.rglob("*") if path.is_file())


@pytest.mark.parametrize(("stage", "key"), KEYS)
@pytest.mark.parametrize("after", [make_old, make_new])
def test_a_kill_at_any_change_leaves_the_old_or_the_new_one(
    workspace: Workspace, stage: str, key: str | None, after: Callable[..., Artifact]
) -> None:
    make_old(workspace, stage, key)
    fresh = restoring(workspace)
    numbers = []
    for number in every_kill(lambda: make_new(workspace, stage, key), fresh):
        numbers.append(number)
        found = seen(workspace, stage, key)
        assert found in (OLD, NEW), number
        assert workspace.require(stage, key).is_complete(), number
        assert workspace.finished(stage) == [key], number
        assert workspace.unfinished(stage) in ([], [key]), number
        after(workspace, stage, key)
        assert seen(workspace, stage, key) == (OLD if after is make_old else NEW), number
        artifact = workspace.require(stage, key)
        prefix = artifact.folder.relative_to(workspace.root).as_posix()
        expected = {
            ".lock",
            "ccot.yaml",
            f"{prefix}/manifest.json",
            *(f"{prefix}/{n}" for n in artifact.manifest.files),
        }
        assert set(what_is_left(workspace)) == expected, number
    assert len(numbers) > 25


def test_what_was_complete_before_a_kill_is_taken_and_not_made_again(workspace: Workspace) -> None:
    stage, key = KEYS[1]
    make_old(workspace, stage, key)
    fresh = restoring(workspace)
    wanted = new(workspace, stage, key)
    manifest = f"{workspace.folder(stage, key).name}.ccot-new/manifest.json"
    taken = 0
    for _ in every_kill(lambda: make_new(workspace, stage, key), fresh):
        is_complete = (
            any(path.endswith(manifest) for path in what_is_left(workspace)) or seen(workspace, stage, key) == NEW
        )
        ready = workspace.ready(wanted)
        assert (ready is not None) == is_complete
        if ready:
            taken += 1
            assert ready.folder == workspace.folder(stage, key)
            assert not list(ready.damaged())
            assert [path.name for path in ready.folder.parent.glob(f"{ready.folder.name}*")] == [ready.folder.name]
    assert taken > 10


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_kill_while_one_is_made_or_repaired_leaves_none_or_a_whole_one(
    workspace: Workspace, is_damaged: bool
) -> None:
    stage, key = KEYS[1]
    if is_damaged:
        (make_new(workspace, stage, key).folder / "c.txt").write_text("bad")
    kills = 0
    for _ in every_kill(lambda: make_new(workspace, stage, key), restoring(workspace)):
        kills += 1
        artifact = workspace.artifact(stage, key)
        assert artifact is None or (is_damaged and list(artifact.damaged())) or seen(workspace, stage, key) == NEW
        make_new(workspace, stage, key)
        assert seen(workspace, stage, key) == NEW
    assert kills > 10


def test_a_reader_at_any_change_sees_the_old_one_and_then_the_new_one(workspace: Workspace) -> None:
    make_old(workspace, "train-psi", "r0.10")
    found = []

    def look() -> None:
        assert workspace.state("train-psi", "r0.10").name == "ready"
        assert workspace.keys("train-psi") == workspace.finished("train-psi") == ["r0.10"]
        found.append(seen(workspace, "train-psi", "r0.10"))

    with before_every_change(look):
        make_new(workspace, "train-psi", "r0.10")
    assert found == sorted(found, key=lambda each: each == NEW)
    assert (found[0], found[-1]) == (OLD, NEW)


@pytest.mark.parametrize("pause", [1, 2, 3, 5, 8, 100])
def test_a_reader_that_waits_between_two_files_never_mixes(workspace: Workspace, pause: int) -> None:
    class Reader(threading.Thread):
        """Reads a file, and the next one when it is let go."""

        def __init__(self) -> None:
            super().__init__()
            self.go, self.waits, self.found = threading.Event(), threading.Event(), []
            self.start()
            self.waits.wait()

        def run(self) -> None:
            def wait() -> None:
                self.waits.set()
                self.go.wait()

            try:
                self.found.append(seen(workspace, "train-psi", "r0.10", wait))
            finally:
                self.waits.set()

        def finish(self) -> object:
            self.go.set()
            self.join()
            return self.found

    make_old(workspace, "train-psi", "r0.10")
    fresh = restoring(workspace)
    for start in count(1):
        fresh()
        step, reader = 0, None

        def look(start: int = start) -> None:
            nonlocal step, reader
            step += 1
            if step == start:
                reader = Reader()
            elif step == start + pause:
                assert reader
                reader.finish()

        with before_every_change(look):
            make_new(workspace, "train-psi", "r0.10")
        if reader is None:
            break
        assert reader.finish() in ([OLD], [NEW])


def test_a_sound_artifact_stays_in_use_while_the_same_is_made_again(workspace: Workspace) -> None:
    first = make(workspace)
    with workspace.building(asked()) as build:
        (build.folder / "a.txt").write_text("A")
        assert workspace.require("precompute") == first
    assert list(workspace.require("precompute").manifest.files) == ["a.txt"]


def test_an_input_that_another_process_has_changed_meanwhile_is_noticed(workspace: Workspace) -> None:
    source = make(workspace)
    spec = asked("score", "r0.10", inputs={"precompute": source.fingerprint})
    make(workspace, files={"a.txt": "other"})
    with pytest.raises(BusyError, match=r"precompute was made again since") as caught, workspace.building(spec):
        pytest.fail("it must not be made from two different things")
    assert caught.value.fix == "run it again"


@pytest.mark.parametrize("name", ["r0.10.old", "r0.10.new", "r0.10.bak"])
def test_a_copy_that_somebody_made_of_an_artifact_stays(workspace: Workspace, name: str) -> None:
    folder = make(workspace, "train-psi", "r0.10").folder
    shutil.copytree(folder, folder.with_name(name))
    make_new(workspace, "train-psi", "r0.10")
    clean(workspace, leftovers(workspace))
    assert (folder.with_name(name) / "a.txt").read_text() == "A"
    assert seen(workspace, "train-psi", "r0.10") == NEW


def test_a_link_in_the_place_of_a_retired_artifact_is_not_followed(workspace: Workspace, tmp_path: Path) -> None:
    elsewhere = make(workspace).folder.rename(tmp_path / "elsewhere")
    (workspace.root / "precompute.ccot-retired").symlink_to(elsewhere)
    assert workspace.artifact("precompute") is None
    make(workspace)
    assert (elsewhere / "a.txt").exists()
    assert not (workspace.root / "precompute.ccot-retired").is_symlink()
