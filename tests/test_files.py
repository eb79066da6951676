"""Files are whole or absent."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path
from unittest.mock import Mock

import pytest

from ccot_cli.errors import ResourceError, UsageError
from ccot_cli.files import (
    absolute,
    check_new,
    check_space,
    commit,
    free_bytes,
    human_bytes,
    is_sealed,
    naming_what_does_not_fit,
    remembered_sha256,
    reserve,
    seal,
    sha256_of,
    strict_json,
    user_cache,
    write_json,
)


def test_a_committed_file_holds_what_was_written_and_leaves_no_part(tmp_path: Path) -> None:
    with commit(tmp_path / "x.bin") as part:
        part.write_bytes(b"new")
        assert part == tmp_path / "x.bin.part"
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin"]
    assert (tmp_path / "x.bin").read_bytes() == b"new"


def write_half(target: Path, stop: BaseException) -> None:
    with commit(target) as part:
        part.write_bytes(b"half")
        raise stop


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_old_file_and_no_part(tmp_path: Path, stop: type[BaseException]) -> None:
    target = tmp_path / "x.bin"
    target.write_bytes(b"old")
    with pytest.raises(stop):
        write_half(target, stop())
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin"]
    assert target.read_bytes() == b"old"


def test_a_file_is_flushed_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    replace = Path.replace

    def record_replace(part: Path, target: Path) -> Path:
        events.append("rename")
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", record_replace)
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_ino))
    with commit(tmp_path / "x") as part:
        part.touch()
    assert events == [(tmp_path / "x").stat().st_ino, "rename", tmp_path.stat().st_ino]


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"old")
    code = (
        "import os, signal, sys; from pathlib import Path; from ccot_cli.files import commit\n"
        "with commit(Path(sys.argv[1])) as part:\n"
        "    part.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert target.read_bytes() == b"old"
    with commit(target) as part:
        part.write_bytes(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_permissions_follow_the_umask_whatever_the_writer_chose(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        with commit(tmp_path / "x") as part:
            part.touch(mode=0o600)
        assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(old)


def test_the_hash_of_a_large_file_is_kept_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, read = tmp_path / "weights", []
    path.write_bytes(b"old")

    def hashed() -> int:
        assert remembered_sha256(path) == sha256_of(path)
        return len(read)

    monkeypatch.setattr("ccot_cli.files.sha256_of", lambda path: (read.append(path), sha256_of(path))[1])
    assert [hashed(), hashed()] == [1, 2]
    assert not (tmp_path / "cache").exists(), "a small one is hashed each time"
    monkeypatch.setattr("ccot_cli.files.REMEMBERED_BYTES", 1)
    assert [hashed(), hashed()] == [3, 3]
    before = path.stat()
    path.write_bytes(b"new")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [hashed(), hashed()] == [4, 4]
    [kept] = (tmp_path / "cache" / "ccot" / "hashes").iterdir()
    for damage in ("", "[]", "{}", "NaN"):
        kept.write_text(damage)
        before_this = len(read)
        assert [hashed(), hashed()] == [before_this + 1] * 2
    kept.unlink()
    kept.mkdir()  # It cannot be written.
    assert hashed() == hashed() - 1


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "x.part").symlink_to(victim)
    write_json(tmp_path / "x", {})
    assert victim.read_text() == "untouched"


class SafetensorError(Exception):
    """Stands for the library's own, which wraps the system's error as text."""


@pytest.mark.parametrize(
    "full",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EFBIG, os.strerror(errno.EFBIG)),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_names_the_file_and_removes_the_part(tmp_path: Path, full: Exception) -> None:
    with pytest.raises(ResourceError, match=f"no room for {tmp_path}/x: more than 4 B needed") as caught:
        write_half(tmp_path / "x", full)
    assert caught.value.exit_code == 5
    assert list(tmp_path.iterdir()) == []


def test_other_system_errors_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), commit(tmp_path / "x"):
        raise PermissionError(errno.EACCES, "no")


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from ccot_cli.files import write_json\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_json(Path(sys.argv[1]), 'x' * 5000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True, check=False
    )
    assert "ResourceError: no room for" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_json_keeps_its_letters_and_refuses_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"θ": [1, None]})
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == '{\n  "θ": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "y.json", float("nan"))
    assert not (tmp_path / "y.json.part").exists()


@pytest.mark.parametrize("text", ["NaN", '{"a": -Infinity}', "1e999", '{"a": 1, "a": 2}', '[{"b": 1, "b": 1}]', "{"])
def test_json_that_could_not_be_written_again_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        strict_json(text)


def test_other_json_is_read() -> None:
    assert strict_json(b'{"a": [1.5, null, "x"], "b": {"a": 1}}') == {"a": [1.5, None, "x"], "b": {"a": 1}}


def test_sha256_of_the_empty_file(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert sha256_of(tmp_path / "x") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_too_little_space_is_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")(0, 0, 5_000_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(ResourceError, match=f"about 242 GB, and 5.0 GB are free in {tmp_path}") as caught:
        check_space(tmp_path, 242_000_000_000, fix="ask for less")
    assert caught.value.fix == "ask for less"
    check_space(tmp_path, 5_000_000_000)


def test_space_is_known_for_a_folder_that_does_not_exist_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert free_bytes(Path("a/b/c")) > 0


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1540, "1.5 kB"),
        (9_960, "10 kB"),
        (999_600, "1.0 MB"),
        (242_000_000_000, "242 GB"),
        (1_500_000_000_000, "1.5 TB"),
        (5_000_000_000_000_000, "5000 TB"),
    ],
)
def test_sizes_read_as_people_write_them(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_every_flip_and_every_cut_of_a_sealed_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"keys and values")
    seal(path)
    assert is_sealed(path)
    sound = path.read_bytes()
    flipped = [sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in range(len(sound))]
    for damaged in (*flipped, *(sound[:length] for length in range(len(sound))), sound + b" "):
        path.write_bytes(damaged)
        assert not is_sealed(path)


def test_a_link_keeps_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "blob").touch()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "blob")
    assert absolute(tmp_path / "link.jsonl") == tmp_path.resolve() / "link.jsonl"
    assert absolute(tmp_path / "sub" / "..") == tmp_path.resolve()


def test_a_librarys_error_about_a_full_disk_names_the_folder_and_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1234")
    error = SafetensorError("I/O error: No space left on device (os error 28)")
    expected = rf"no room for {tmp_path}: more than 4 B needed, .* free \(no space left on device\)"
    with pytest.raises(ResourceError, match=expected), naming_what_does_not_fit(tmp_path):
        raise error
    with pytest.raises(KeyError), naming_what_does_not_fit(tmp_path):
        raise KeyError


def test_without_a_home_folder_the_cache_is_among_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert user_cache() == Path(tempfile.gettempdir()) / "ccot"


def test_a_new_file_is_refused_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_new(tmp_path / "new" / "deeper")
    with pytest.raises(UsageError, match="nothing can be written in"):
        check_new(tmp_path / "file" / "new")


def test_reserved_space_is_there_and_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve(tmp_path / "file", 100_000)
    assert (tmp_path / "file").stat().st_size == 100_000
    monkeypatch.setattr(
        "os.posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), raising=False
    )
    with pytest.raises(ResourceError, match="no room for"):
        reserve(tmp_path / "other", 100_000)
