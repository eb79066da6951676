"""A manifest says what an artifact is made from, and which files it has; damage is found."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ccot_cli.config import Settings, stage_config
from ccot_cli.errors import CorruptError
from ccot_cli.overrides import override
from ccot_cli.workspace.artifact import FORMAT, ArtifactSpec, found_again, has_moved
from ccot_cli.workspace.workspace import Workspace
from workspace.making import CONFIG, asked, edit_manifest, interrupt, make


def test_a_finished_artifact_records_every_file_and_its_hash(workspace: Workspace) -> None:
    artifact = make(workspace, overrides=("data.limit",))
    manifest = artifact.manifest
    assert {name: record.size for name, record in manifest.files.items()} == {"a.txt": 1, "sub/b.txt": 1}
    assert manifest.files["a.txt"].sha256 == "559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd"
    assert (manifest.format, manifest.stage, manifest.key) == (FORMAT, "precompute", None)
    assert (manifest.config, manifest.overrides, manifest.summary) == (CONFIG, ("data.limit",), {"files": 2})
    assert set(manifest.versions) == {"ccot", "python", "torch", "transformers", "peft"}
    assert artifact.num_bytes == 2
    assert not list(artifact.damaged())


def test_the_fingerprint_is_that_of_the_request_and_the_bytes(workspace: Workspace) -> None:
    first = make(workspace).fingerprint
    assert make(workspace, overrides=("data.limit",)).fingerprint == first
    assert make(workspace, files={"a.txt": "other"}).fingerprint != first
    assert make(workspace, inputs={"model": "m"}).fingerprint != first


def test_what_another_version_did_not_record_is_missed_with_an_error_for_people(workspace: Workspace) -> None:
    manifest = make(workspace).manifest
    for recorded in (manifest.config, manifest.inputs, manifest.summary):
        assert recorded.get("unheard of") is None
        with pytest.raises(CorruptError, match="a manifest records no 'unheard of'"):
            recorded["unheard of"]


def test_what_lies_in_a_folder_that_may_not_be_searched_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, now = os.stat, tmp_path / "data.jsonl"
    now.touch()

    def refusing(path: object, *args: Any, **options: Any) -> os.stat_result:
        if str(path).startswith("/locked/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr("os.stat", refusing)
    assert has_moved("/locked/data.jsonl", str(now))
    assert found_again("/locked/data.jsonl", str(now)) == str(now)
    assert found_again(str(now), "/locked/data.jsonl") == str(now)


class TestRequest:
    """Whether two artifacts are made from the same things."""

    def spec(self, **changes: object) -> ArtifactSpec:
        return asked(config=stage_config(override(Settings(), changes), "precompute"), inputs={"model": "m"})

    @pytest.mark.parametrize("place", [{"model.name": "/there/model"}, {"data.source": "/there/data.jsonl"}])
    def test_where_files_lie_does_not_count(self, place: dict[str, object]) -> None:
        # What they hold is among the inputs.
        assert self.spec(**place) != self.spec()
        assert self.spec(**place).request == self.spec().request

    @pytest.mark.parametrize("change", [{"data.limit": 5}, {"data.subset": "main"}, {"model.revision": "main"}])
    def test_other_settings_do(self, change: dict[str, object]) -> None:
        assert self.spec(**change).request != self.spec().request

    def test_inputs_do_by_name_and_fingerprint(self) -> None:
        requests = {asked(inputs=inputs).request for inputs in ({}, {"model": "a"}, {"model": "b"}, {"problems": "a"})}
        assert len(requests) == 4

    def test_what_was_typed_and_the_key_do_not(self) -> None:
        assert asked(overrides=("data.limit",)).request == asked().request
        assert asked("score", "r0.10").request == asked("score", "r0.20").request

    def test_a_manifest_knows_what_it_was_asked_to_be(self, workspace: Workspace) -> None:
        made = make(workspace, inputs={"model": "m"}, overrides=("data.limit",))
        wanted = asked(inputs={"model": "m"}, overrides=("data.limit",))
        assert made.manifest.spec == wanted
        assert Workspace.open(workspace.root).require("precompute").manifest.spec.request == wanted.request


class TestDamage:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (None, "is missing"),
            ("", "holds 0 bytes instead of 1"),
            ("A ", "holds 2 bytes instead of 1"),
            ("B", "does not hold the bytes that were written"),
        ],
    )
    def test_a_damaged_file_is_named(self, workspace: Workspace, text: str | None, reason: str) -> None:
        artifact = make(workspace)
        path = artifact.folder / "a.txt"
        path.unlink() if text is None else path.write_text(text)
        assert list(artifact.damaged()) == [(path, reason)]

    @pytest.mark.parametrize(
        ("stage", "key", "fix"),
        [
            ("precompute", None, "ccot verify -w my-run tells what to do"),
            ("score", "r0.10", "ccot verify -w my-run tells what to do"),
            ("eval", "2026-01-31-1", "ccot verify -w my-run tells what to do"),
            ("train-psi", "r0.10", "remove my-run/train-psi/r0.10 and train it again"),
        ],
    )
    def test_what_is_damaged_is_trained_again_only_if_it_was_trained(
        self, workspace: Workspace, stage: str, key: str | None, fix: str
    ) -> None:
        artifact = make(workspace, stage, key)
        (artifact.folder / "a.txt").write_text("B")
        with pytest.raises(CorruptError, match=r"a\.txt does not hold the bytes") as caught:
            artifact.check()
        assert caught.value.fix == fix

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"format": "1"}', b"\xff", b'{"format": 1}'])
    def test_an_unreadable_manifest_is_named(self, workspace: Workspace, text: bytes) -> None:
        path = make(workspace).folder / "manifest.json"
        path.write_bytes(text)
        for read in (workspace.artifact, workspace.state, workspace.require):
            with pytest.raises(CorruptError, match=r"precompute/manifest\.json cannot be read"):
                read("precompute")

    def test_every_flipped_bit_and_every_cut_of_a_manifest_is_seen(self, workspace: Workspace) -> None:
        path = make(workspace).folder / "manifest.json"
        sound = path.read_bytes()
        flipped = [sound[:at] + bytes([sound[at] ^ 1 << at % 8]) + sound[at + 1 :] for at in range(len(sound))]
        for damaged in (*flipped, *(sound[:length] for length in range(len(sound))), sound + b" "):
            path.write_bytes(damaged)
            with pytest.raises(CorruptError):
                workspace.require("precompute")
        path.write_bytes(sound)
        workspace.require("precompute")

    def test_a_later_format_is_refused_with_the_version_that_wrote_it(self, workspace: Workspace) -> None:
        artifact = make(workspace)
        path = artifact.folder / "manifest.json"
        later = {"format": FORMAT + 1, "versions": {"ccot": "9.0"}, "files": "of a kind not known yet"}
        path.write_text(json.dumps(json.loads(path.read_text()) | later))
        with pytest.raises(CorruptError, match=r"was written by a newer ccot, 9\.0"):
            interrupt(workspace)
        assert (artifact.folder / "a.txt").exists()

    @pytest.mark.parametrize("name", ["../../ccot.yaml", "/etc/hostname", "link"])
    def test_a_file_outside_the_folder_is_never_read(self, workspace: Workspace, name: str, tmp_path: Path) -> None:
        artifact = make(workspace)
        (tmp_path / "secret").write_text("A")
        (artifact.folder / "link").symlink_to(tmp_path / "secret")
        edit_manifest(artifact, files={name: artifact.manifest.files["a.txt"]})
        with pytest.raises(CorruptError, match="leads out of"):
            list(workspace.require("precompute").damaged())
