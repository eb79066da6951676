"""Freed main memory is kept for what comes next."""

import subprocess
import sys

import pytest

RETAINED = """
import sys, torch
from pathlib import Path
from ccot_cli.models.memory import keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory()
before = resident()
blocks = [torch.ones(31 << 20, dtype=torch.uint8) for _ in range(8)]
used = resident() - before
while blocks:
    blocks.pop()
print((resident() - before) / used)
"""


def _retained(way: str) -> float:
    """Share of some blocks' memory that the process still has once they are freed."""
    found = subprocess.run([sys.executable, "-c", RETAINED, way], check=True, capture_output=True, text=True)
    return float(found.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_kept() -> None:
    assert _retained("as it is") < 0.2
    assert _retained("kept") > 0.95
