"""`ccot clean` shows what it would remove, asks, and says what it has freed."""

import pytest
import typer

from ccot_cli.cli.app import run
from ccot_cli.workspace.workspace import Workspace
from cli.running import Output, output


@pytest.fixture
def part(workspace: Workspace) -> str:
    """Leave a file that was being written."""
    (workspace.root / "x.part").write_bytes(b"x" * 1500)
    return str(workspace.root / "x.part")


def test_nothing_is_removed_before_it_is_asked_for(
    part: str, workspace: Workspace, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = output(capsys, "clean", "--dry-run", "-w", "my-run")
    assert out == f" 1.5 kB  {part}: was being written\n1.5 kB would be freed\n"
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    _, err = output(capsys, "clean", "-w", "my-run", code=2)
    assert "there is no terminal to ask on" in err
    assert "fix:   ccot clean -y -w my-run" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda *args, **options: False)
    _, err = output(capsys, "clean", "-w", "my-run")
    assert err == "nothing was removed\n"

    def without_an_answer(*args: object, **options: object) -> bool:
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", without_an_answer)
    _, err = output(capsys, "clean", "-w", "my-run")
    assert err == "nothing was removed\n"
    assert (workspace.root / "x.part").exists()


def test_it_removes_what_it_showed_and_says_how_much(part: str, workspace: Workspace, capsys: Output) -> None:
    out, _ = output(capsys, "clean", "--yes", "-w", "my-run")
    assert out.splitlines()[-1] == "1.5 kB freed"
    assert not (workspace.root / "x.part").exists()
    assert output(capsys, "clean", "-w", "my-run")[0] == "there is nothing to remove\n"


def test_it_needs_the_lock(part: str, workspace: Workspace, capsys: Output) -> None:
    from ccot_cli.workspace.lock import lock

    with lock(workspace.root, ()):
        assert run(["clean", "--yes", "-w", "my-run"]) == 6
