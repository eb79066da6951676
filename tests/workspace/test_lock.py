"""One process writes at a time; the error of a second one names the first."""

import errno
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from ccot_cli.errors import BusyError, UsageError
from ccot_cli.workspace.lock import describe_builder
from ccot_cli.workspace.workspace import State, Workspace
from workspace.making import asked, interrupt, make


def test_a_second_writer_is_refused_at_once_and_told_who_works(workspace: Workspace) -> None:
    with workspace.building(asked()):
        with pytest.raises(BusyError) as caught:
            interrupt(workspace)
        assert f"process {os.getpid()} on {socket.gethostname()} since 2" in caught.value.message
        assert caught.value.exit_code == 6
        assert workspace.state("precompute").name == "missing", "readers are let in"
    assert interrupt(workspace) is False


@pytest.mark.parametrize(
    ("typed", "shown"),
    [(("score", "--ratio", "0.1", "-w", "a b"), "ccot score --ratio 0.1 -w 'a b'"), ((), "ccot")],
)
def test_whoever_comes_second_is_told_what_the_first_typed(
    workspace: Workspace, typed: tuple[str, ...], shown: str
) -> None:
    first = replace(workspace, typed=typed)
    with first.building(asked()):
        for refused in (workspace.refuse_while_busy, lambda: interrupt(workspace)):
            with pytest.raises(BusyError) as caught:
                refused()
            assert caught.value.message.endswith(f": {shown}")
    workspace.refuse_while_busy()


def test_a_holder_that_has_not_said_who_it_is_counts_too(workspace: Workspace) -> None:
    with workspace.building(asked()):
        (workspace.root / ".lock.json").unlink()
        with pytest.raises(BusyError, match="in use by another process"):
            interrupt(workspace)


def test_a_killed_holder_frees_the_lock_at_once(workspace: Workspace) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from ccot_cli.workspace.artifact import ArtifactSpec; from ccot_cli.workspace.workspace import Workspace\n"
        "with Workspace.open(Path('my-run')).building(ArtifactSpec('precompute', None, {}, {})):\n"
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


def test_what_a_killed_holder_wrote_of_itself_goes_with_the_next_command_even_if_all_is_ready(
    workspace: Workspace,
) -> None:
    artifact, holder = make(workspace), workspace.root / ".lock.json"
    holder.write_text('{"pid": 1}')
    with workspace.building(asked("score", "r0.10")):
        assert workspace.ready(artifact.manifest.spec) == artifact
        assert holder.exists(), "it is that of a process that works"
    holder.write_text('{"pid": 1}')
    assert workspace.ready(artifact.manifest.spec) == artifact
    assert not holder.exists()


def test_the_lock_is_freed_even_if_the_holders_file_cannot_be_deleted(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == ".lock.json":
            raise PermissionError
        plain_unlink(path, missing_ok)

    plain_unlink = Path.unlink
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with pytest.raises(PermissionError) as caught, workspace.building(asked()):
            pass
    # The traceback keeps the lock's object alive, whose end would free it too.
    assert caught.traceback
    workspace.refuse_while_busy()


def test_a_workspace_that_cannot_be_written_to_is_named(workspace: Workspace) -> None:
    (workspace.root / ".lock").mkdir()
    with pytest.raises(UsageError, match="cannot write to my-run"):
        interrupt(workspace)


def test_a_folder_in_which_only_the_lock_can_be_written_is_named_and_left_free(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace.root / ".lock.json").write_text('{"pid": 1}')
    refused = PermissionError(errno.EACCES, "Permission denied")
    with monkeypatch.context() as patched:
        patched.setattr("ccot_cli.workspace.lock.write_json", Mock(side_effect=refused))
        patched.setattr(Path, "unlink", Mock(side_effect=refused))
        with pytest.raises(UsageError, match="cannot write to my-run: Permission denied") as caught:
            workspace.refuse_while_busy()
    # The traceback keeps the lock's object alive, whose end would free it too.
    assert caught.traceback
    workspace.refuse_while_busy()


def test_what_is_being_made_is_not_called_interrupted(workspace: Workspace) -> None:
    holder = workspace.root / ".lock.json"
    training = replace(workspace, typed=("train-phi", "--epochs", "9"))
    with training.building(asked("train-phi", "r0.10", config={})) as build:
        (build.folder / "checkpoint").touch()
        made = json.loads(holder.read_text())
        assert workspace.state("train-phi", "r0.10") == State(
            "being made", f"by process {os.getpid()} since {made['since']}"
        )
        assert workspace.state("train-phi", "r0.20") == State("missing")
        assert workspace.state("train-psi", "r0.10") == State("missing")
        # A process that is gone makes nothing any more.
        holder.write_text(json.dumps({**made, "pid": 2**22 + 1}))
        assert workspace.state("train-phi", "r0.10").reason.startswith("interrupted")
        holder.write_text(json.dumps(made))


def test_reading_writes_nothing(workspace: Workspace) -> None:
    make(workspace)

    def snapshot() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in (workspace.root, *workspace.root.rglob("*"))}

    before = snapshot()
    assert not list(Workspace.open(workspace.root).require("precompute").damaged())
    assert workspace.state("precompute").name == "ready"
    assert workspace.keys("score") == []
    assert snapshot() == before


def test_a_process_of_another_user_is_one_that_runs(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = {"pid": 1, "host": socket.gethostname(), "command": "ccot precompute", "since": "now"}
    (workspace.root / ".lock.json").write_text(json.dumps(holder))
    monkeypatch.setattr("os.kill", Mock(side_effect=PermissionError))
    assert describe_builder(workspace.root, "precompute") == "by process 1 since now"
    monkeypatch.setattr("os.kill", Mock(side_effect=ProcessLookupError))
    assert describe_builder(workspace.root, "precompute") == ""
