"""A damaged or hostile archive is refused, and leaves nothing behind."""

import json
import random
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ccot_cli.errors import CorruptError
from ccot_cli.files import SEAL_BYTES, seal
from ccot_cli.stages import export, import_
from ccot_cli.workspace.archive import INDEX_FILE, unpack
from ccot_cli.workspace.artifact import SEAL, sealed
from ccot_cli.workspace.workspace import Workspace
from faults.test_bytes import damages

Entries = list[tuple[zipfile.ZipInfo, bytes]]


@pytest.fixture(scope="module")
def archive(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound archive."""
    path = tmp_path_factory.mktemp("archive") / "methods.zip"
    export.run(Workspace.open(trained_once), path)
    return path


def is_refused(source: Path, folder: Path) -> str:
    """Check that an archive is refused with exit code 4 and leaves nothing; return the message."""
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(CorruptError) as refused:
        import_.run(str(source), folder)
    assert sorted(folder.parent.rglob("*")) == before
    assert refused.value.fix
    return refused.value.message


def test_every_flip_and_cut_of_the_file_is_noticed(archive: Path, tmp_path: Path) -> None:
    sound, generator, damaged = archive.read_bytes(), random.Random(0), tmp_path / "damaged.zip"
    for content in damages(sound, flips=60, generator=generator):
        damaged.write_bytes(content)
        assert str(damaged) in is_refused(damaged, tmp_path / "new")
    for at in (0, 4, 10, 30, len(sound) - 1, len(sound) - 40, len(sound) - 60):  # headers, the directory, the hash
        damaged.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        is_refused(damaged, tmp_path / "new")
    for length in (1, 22, SEAL_BYTES, len(sound) - SEAL_BYTES, len(sound) - 1):
        damaged.write_bytes(sound[:length])
        is_refused(damaged, tmp_path / "new")


def rewrite(archive: Path, target: Path, change: Callable[[Entries], Entries]) -> Path:
    """Write an archive anew after a change, with a right hash at its end, as somebody who means harm would."""
    with zipfile.ZipFile(archive) as old:
        entries = [(entry, old.read(entry)) for entry in old.infolist()]
    with pytest.MonkeyPatch.context() as patched, zipfile.ZipFile(target, "w") as new:
        patched.setattr("warnings.warn", lambda *_, **__: None)  # about two files of one name
        for entry, content in change(entries):
            new.writestr(entry, content)
        new.comment = bytes(SEAL_BYTES)
    with target.open("r+b") as file:
        file.truncate(target.stat().st_size - SEAL_BYTES)
    seal(target)
    return target


def adding(
    name: str, content: bytes = b"{}", mode: int = stat.S_IFREG, method: int = zipfile.ZIP_STORED
) -> Callable[[Entries], Entries]:
    """Add a file that the index lists too, as far as an index can."""

    def change(entries: Entries) -> Entries:
        entry = zipfile.ZipInfo(name)
        entry.external_attr, entry.compress_type = (mode | 0o644) << 16, method
        return [*with_index(entries, lambda index: index["files"].update({name: record(content)})), (entry, content)]

    return change


def record(content: bytes) -> dict[str, object]:
    import hashlib

    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def with_index(entries: Entries, edit: Callable[[dict], object]) -> Entries:
    """Change the index, and its own hash."""
    changed = []
    for entry, content in entries:
        if entry.filename == INDEX_FILE:
            values = json.loads(content)
            del values[SEAL]
            edit(values)
            content = sealed(values)
        changed.append((entry, content))
    return changed


def twice(entries: Entries) -> Entries:
    return [*entries, next(each for each in entries if each[0].filename.endswith("end.safetensors"))]


def without(name: str) -> Callable[[Entries], Entries]:
    return lambda entries: [each for each in entries if not each[0].filename.endswith(name)]


def indexed(edit: Callable[[dict], object]) -> Callable[[Entries], Entries]:
    return lambda entries: with_index(entries, edit)


HOSTILE: dict[str, tuple[Callable[[Entries], Entries], str]] = {
    "a way out": (adding("../evil.json"), "names '../evil.json'"),
    "a way out further in": (
        adding("train-psi/r0.10/../../../evil.json"),
        "names 'train-psi/r0.10/../../../evil.json'",
    ),
    "an absolute name": (adding("/evil.json"), "names '/evil.json'"),
    "a backslash": (adding("train-psi\\..\\evil.json"), "names "),
    "a pickle": (adding("train-psi/r0.10/evil.bin"), "names 'train-psi/r0.10/evil.bin'"),
    "code": (adding("train-psi/r0.10/evil.py"), "names 'train-psi/r0.10/evil.py'"),
    "a hidden file": (adding("train-psi/r0.10/.evil.json"), "names "),
    "another stage": (adding("cache/evil.json"), "names 'cache/evil.json'"),
    "a file that belongs to no method": (
        adding("train-psi/r0.20/evil.json"),
        "disagree about 'train-psi/r0.20/evil.json'",
    ),
    "a link": (adding("train-psi/r0.10/evil.json", b"/etc/passwd", stat.S_IFLNK), "which is no plain file"),
    "a bomb": (
        adding("train-psi/r0.10/evil.json", b"0" * 10**6, method=zipfile.ZIP_DEFLATED),
        "which is no plain file",
    ),
    "two files of one name": (twice, "two files of one name"),
    "a lost file": (without("end.safetensors"), "disagree about 'train-psi/r0.10/end.safetensors'"),
    "a lost index": (without(INDEX_FILE), "has no archive.json"),
    "a newer version": (indexed(lambda index: index.update(format=2, ccot="9.0")), "was written by a newer ccot, 9.0"),
    "no version": (indexed(lambda index: index.pop("format")), "cannot be read"),
    "no method": (indexed(lambda index: index.update(methods=[])), "holds no method"),
    "a method that is not there": (
        indexed(lambda index: index["methods"][0].update(key="r0.20")),
        "no method 'train-psi/r0.20'",
    ),
    "a method elsewhere": (
        indexed(lambda index: index["methods"][0].update(key="../../x")),
        "no method 'train-psi/../../x'",
    ),
    "another model": (indexed(lambda index: index["model"].update(fingerprint="0")), "which model"),
    "another hash": (
        indexed(lambda index: index["files"]["ccot.yaml"].update(sha256="0")),
        "holds ccot.yaml that does not hold the bytes",
    ),
    "an absurd index": (
        lambda entries: [
            (entry, content + b" " * 10**7 * (entry.filename == INDEX_FILE)) for entry, content in entries
        ],
        "absurd size",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_an_archive_must_not_hold_is_refused(kind: str, archive: Path, tmp_path: Path) -> None:
    change, reason = HOSTILE[kind]
    hostile = rewrite(archive, tmp_path / "hostile.zip", change)
    assert reason in is_refused(hostile, tmp_path / "new")


def test_the_same_archive_written_anew_without_a_change_is_accepted(archive: Path, tmp_path: Path) -> None:
    again = rewrite(archive, tmp_path / "again.zip", lambda entries: entries)
    (tmp_path / "new").mkdir()
    assert len(unpack(again, tmp_path / "new").methods) == 2


@pytest.fixture
def unpacked(archive: Path, tmp_path: Path) -> Path:
    """The archive's files in a folder."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path / "unpacked")
    return tmp_path / "unpacked"


def test_every_change_of_an_unpacked_file_but_the_card_is_noticed(unpacked: Path, tmp_path: Path) -> None:
    generator = random.Random(0)
    for path in sorted(path for path in unpacked.rglob("*") if path.is_file()):
        sound = path.read_bytes()
        for content in damages(sound, flips=2, generator=generator):
            path.write_bytes(content)
            if path.name != "README.md":
                is_refused(unpacked, tmp_path / "new")
        path.write_bytes(sound)
    (unpacked / "README.md").write_text("Mine is better.")
    (unpacked / ".gitattributes").write_text("not of the archive")
    (tmp_path / "new").mkdir()
    unpack(unpacked, tmp_path / "new")
    assert (tmp_path / "new/README.md").read_text() == "Mine is better."
    assert not (tmp_path / "new/.gitattributes").exists()


@pytest.mark.parametrize("name", ["README.md", "ccot.yaml", "train-psi/r0.10/end.safetensors", "train-psi"])
def test_a_link_in_an_unpacked_archive_is_not_followed_out_of_it(name: str, unpacked: Path, tmp_path: Path) -> None:
    shutil.move(unpacked / name, tmp_path / "outside")
    (unpacked / name).symlink_to(tmp_path / "outside")
    assert "has no plain file" in is_refused(unpacked, tmp_path / "new")


def with_file(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Entries], Entries]:
    """Change a file, and what the index says of it."""

    def change(entries: Entries) -> Entries:
        changed = [(entry, edit(content) if entry.filename == name else content) for entry, content in entries]
        text = next(content for entry, content in changed if entry.filename == name)
        return with_index(changed, lambda index: index["files"].update({name: record(text)}))

    return change


def test_settings_that_make_no_sense_are_the_archives_fault(archive: Path, tmp_path: Path) -> None:
    change = with_file("ccot.yaml", lambda _: b"data: {limt: 3}\n")
    assert "no setting is called data.limt" in is_refused(
        rewrite(archive, tmp_path / "x.zip", change), tmp_path / "new"
    )


def test_a_model_that_another_version_describes_is_refused(archive: Path, model_folder: Path, tmp_path: Path) -> None:
    def edit(content: bytes) -> bytes:
        values = json.loads(content)
        del values[SEAL]
        values["config"]["model"]["of_another"] = 1
        return sealed(values)

    source = rewrite(archive, tmp_path / "x.zip", with_file("precompute/manifest.json", edit))
    with pytest.raises(CorruptError, match=r"records what .* does not know"):
        import_.run(str(source), tmp_path / "new", model=str(model_folder))
    assert not (tmp_path / "new").exists()
