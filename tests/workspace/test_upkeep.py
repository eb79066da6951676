"""Damage is found, and removed where it comes back; what is left over goes, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ccot_cli.config import stage_config
from ccot_cli.errors import BusyError
from ccot_cli.files import seal
from ccot_cli.overrides import override
from ccot_cli.workspace import upkeep
from ccot_cli.workspace.lock import lock
from ccot_cli.workspace.workspace import Workspace, queries_prefix
from workspace.making import asked, interrupt, make
from workspace.steps import every_kill, restoring


def cached(workspace: Workspace, name: str, text: str = "keys and values") -> Path:
    """Write cached queries with their hash."""
    workspace.cache.mkdir(exist_ok=True)
    path = workspace.cache / f"{name}.bin"
    path.write_text(text)
    seal(path)
    return path


def files_of(workspace: Workspace) -> set[str]:
    return {path.relative_to(workspace.root).as_posix() for path in workspace.root.rglob("*") if path.is_file()}


class TestRepair:
    def test_only_what_comes_back_is_removed(self, workspace: Workspace) -> None:
        paths = {}
        for stage, key in (("precompute", None), ("score", "r0.10"), ("train-psi", "r0.10"), ("eval", "run")):
            paths[stage] = make(workspace, stage, key).folder / "a.txt"
            paths[stage].write_text("B")
        paths["cache"] = cached(workspace, "queries-x")
        paths["cache"].write_bytes(b"\0" + paths["cache"].read_bytes()[1:])
        sound = cached(workspace, "queries-y")
        partial = workspace.folder("score", "r0.10") / "shard.part"
        partial.touch()
        found, removed = upkeep.repair(workspace)
        assert (found.num_artifacts, found.num_files) == (4, 10)
        assert {each.path for each in found.damages} == {*paths.values()}
        assert {each.path for each in removed} == {paths[name] for name in ("precompute", "score", "cache")}
        assert [path.exists() for path in paths.values()] == [False, False, True, True, False]
        assert sound.exists()
        assert not partial.exists()
        assert {each.command for each in removed} == {
            "ccot precompute -w my-run",
            "ccot score --ratio 0.1 -w my-run",
            "",
        }
        left = [each for each in found.damages if each not in removed]
        assert left[0].fix == "remove it, then ccot train-psi --ratio 0.1 -w my-run"

    def test_what_was_removed_is_made_again_and_nothing_else(self, workspace: Workspace) -> None:
        artifact = make(workspace)
        (artifact.folder / "a.txt").write_text("B")
        upkeep.repair(workspace)
        assert workspace.ready(artifact.manifest.spec) is None
        with workspace.building(artifact.manifest.spec) as build:
            assert (build.folder / "sub" / "b.txt").read_text() == "B"
            assert not (build.folder / "a.txt").exists()

    def test_a_sound_workspace_is_left_alone(self, workspace: Workspace) -> None:
        make(workspace)
        before = files_of(workspace)
        assert upkeep.repair(workspace) == (upkeep.Findings(1, 2, []), [])
        assert files_of(workspace) - {".lock"} == before - {".lock"}

    def test_a_damaged_manifest_is_named_and_left(self, workspace: Workspace) -> None:
        path = make(workspace).folder / "manifest.json"
        path.write_text("{")
        found, removed = upkeep.repair(workspace)
        assert "manifest.json cannot be read" in found.damages[0].reason
        assert removed == []
        assert path.exists()


def test_cached_queries_that_a_training_deletes_meanwhile_are_passed_over(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(path: Path) -> None:
        if path.name == "queries-b.bin":
            path.unlink()

    def is_sealed(path: Path) -> bool:
        vanish(path)
        return plain_is_sealed(path)

    def is_file(path: Path) -> bool:
        found = plain_is_file(path)
        vanish(path)
        return found

    plain_is_sealed, plain_is_file = upkeep.is_sealed, Path.is_file
    for name in ("queries-a", "queries-b", "queries-c"):
        kept = cached(workspace, name)
    (workspace.cache / "queries-d.part").touch()
    monkeypatch.setattr(upkeep, "is_sealed", is_sealed)
    assert upkeep.verify(workspace) == upkeep.Findings(0, 2, [])
    cached(workspace, "queries-b")
    monkeypatch.setattr(Path, "is_file", is_file)
    assert workspace.cache_bytes() == 2 * kept.stat().st_size


class TestClean:
    def make_leftovers(self, workspace: Workspace) -> dict[str, str]:
        """Leave one of every kind; return the reason for each path."""
        source = make(workspace)
        cached(workspace, f"{queries_prefix(source)}a")
        cached(workspace, "queries-other")
        for path in ("score/r0.10/x.safetensors.part", "cache/y.part", "z.part"):
            (workspace.root / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace.root / path).write_text("half")
        changed = stage_config(override(workspace.settings, {"train_psi.seed": 5}), "train-psi")
        interrupt(workspace, stage="train-psi", key="r0.10", config=changed)
        interrupt(workspace, stage="train-psi", key="r0.20", config=stage_config(workspace.settings, "train-psi"))
        make(workspace, "train-phi", "r0.10")
        interrupt(workspace, stage="train-phi", key="r0.10", config={}, inputs={"precompute": source.fingerprint})
        return {
            "cache/queries-other.bin": "cached queries of other problems, or of another model",
            "cache/y.part": "was being written",
            "score/r0.10/x.safetensors.part": "was being written",
            "train-phi/r0.10.ccot-new": "begun with settings or inputs that have changed since",
            "train-psi/r0.10": "begun with settings or inputs that have changed since",
            "z.part": "was being written",
        }

    def test_what_nothing_uses_goes_and_all_else_stays(self, workspace: Workspace) -> None:
        expected = self.make_leftovers(workspace)
        before, found = files_of(workspace), upkeep.leftovers(workspace)
        assert {each.path.relative_to(workspace.root).as_posix(): each.reason for each in found} == expected
        assert all(each.num_bytes > 0 for each in found)
        assert upkeep.clean(workspace, found) == sum(each.num_bytes for each in found)
        gone = before - files_of(workspace)
        assert all(any(path == name or path.startswith(f"{name}/") for name in expected) for path in gone)
        assert upkeep.leftovers(workspace) == []
        assert workspace.require("precompute")
        assert workspace.require("train-phi", "r0.10")
        assert workspace.unfinished("train-psi") == ["r0.20"], "the same command resumes it"

    @pytest.mark.usefixtures("unflushed")
    def test_what_a_kill_has_left_of_a_replacement_goes(self, workspace: Workspace) -> None:
        make(workspace, "train-psi", "r0.10")
        fresh = restoring(workspace)
        config = stage_config(workspace.settings, "train-psi")
        wanted = asked("train-psi", "r0.10", config=config, inputs={"model": "other"})

        def replace_it() -> None:
            with workspace.building(wanted) as build:
                build.scratch("checkpoint").write_text("half")
                (build.folder / "a.txt").write_text("new")

        for _ in every_kill(replace_it, fresh):
            upkeep.clean(workspace, upkeep.leftovers(workspace))
            left = {path.name for path in (workspace.root / "train-psi").iterdir()}
            assert left == {"r0.10"} or (left == {"r0.10", "r0.10.ccot-new"} and workspace.unfinished("train-psi"))

    def test_it_waits_for_nobody(self, workspace: Workspace) -> None:
        (workspace.root / "x.part").touch()
        found = upkeep.leftovers(workspace)
        with lock(workspace.root, ()), pytest.raises(BusyError):
            upkeep.clean(workspace, found)
        assert (workspace.root / "x.part").exists()

    def test_what_came_into_use_since_it_was_shown_stays(self, workspace: Workspace) -> None:
        changed = override(workspace.settings, {"train_psi.seed": 5})
        interrupt(workspace, stage="train-psi", key="r0.10", config=stage_config(changed, "train-psi"))
        found = upkeep.leftovers(workspace)
        assert [each.path.name for each in found] == ["r0.10"]
        upkeep.clean(replace(workspace, settings=changed), found)
        assert (workspace.folder("train-psi", "r0.10") / "a.txt").exists()


def test_a_cache_that_is_a_link_out_of_the_workspace_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    victim = tmp_path / "elsewhere" / "queries-of-another"
    victim.touch()
    (workspace.root / "cache").symlink_to(tmp_path / "elsewhere")
    uses: list[Callable[[], object]] = [
        lambda: upkeep.leftovers(workspace),
        lambda: upkeep.repair(workspace),
        workspace.cache_bytes,
    ]
    for use in uses:
        with pytest.raises(Exception, match="cache leads out of the workspace"):
            use()
    assert victim.exists()
