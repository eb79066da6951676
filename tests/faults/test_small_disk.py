"""Disk full: exit 5, what is finished stays, and the same command completes once there is room."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ccot_cli.workspace import upkeep
from ccot_cli.workspace.workspace import Workspace
from faults.conftest import Tally
from faults.pipeline import PIPELINE, Run

KILOBYTES = range(16, 2000, 16)
"""Sizes of the disk, one after the other."""


@pytest.fixture
def resize(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Mount a disk at `disk`; the function gives it a size in kilobytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={KILOBYTES[0]}k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk")
    try:

        def resize(size: int) -> None:
            subprocess.run(["mount", "-o", f"remount,size={size}k", str(disk)], check=True)

        yield resize
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_disk_that_grows_bit_by_bit_ends_with_the_same_bytes(
    tmp_path: Path,
    small_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    resize: Callable[[int], None],
    tally: Tally,
) -> None:
    # Queries that do not fit are run anew, in other batches, which rounds differently; here none fit.
    monkeypatch.setattr("ccot_cli.stages.query_cache.MOST_BYTES", 0)
    large, small = Run(tmp_path / "large", monkeypatch), Run(tmp_path / "disk", monkeypatch)
    sizes, refusals = iter(KILOBYTES), dict.fromkeys([command[0] for command in PIPELINE], 0)
    for each in (large, small):
        each.set(model=small_model)
    for command in PIPELINE[:-1]:  # An evaluation holds its folder's name.
        large.do(*command)
        while code := small.attempt(*command):
            err = capsys.readouterr().err
            is_forecast = "this needs about" in err
            assert (code, "Traceback" in err, is_forecast or "no room for" in err) == (5, False, True), err
            assert upkeep.verify(Workspace.open(small.root)).damages == []
            refusals[command[0]] += not is_forecast
            resize(next(sizes))
    made, expected = small.files(), large.files()
    different = [name for name in {*made, *expected} if made.get(name) != expected.get(name)]
    tally("full disks", tried=sum(refusals.values()), not_byte_equal=len(different))
    assert different == []
    assert all(refusals[name] for name in ("precompute", "train-phi", "train-psi")), refusals
