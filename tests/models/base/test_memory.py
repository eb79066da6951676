"""How much memory there is, and which errors mean that it does not suffice."""

from pathlib import Path

import pytest
import torch

from ccot_cli.models.base import memory
from ccot_cli.models.base.memory import fits, is_out_of_memory


def test_torch_s_own_word_for_too_little_memory_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes differ"))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "MPS backend out of memory (MPS allocated: 1 GB)",
    ],
)
def test_so_are_those_of_drivers_and_libraries(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))


def test_a_container_s_memory_counts_and_not_the_machine_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LIMITS", (tmp_path / "memory.max", tmp_path / "not there"))
    (tmp_path / "memory.max").write_text("max\n")
    assert fits(1000, torch.device("cpu"))
    (tmp_path / "memory.max").write_text("1000\n")
    assert fits(500, torch.device("cpu"))
    assert not fits(501, torch.device("cpu"))


def test_memory_that_others_have_taken_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LIMITS", ())
    monkeypatch.setattr(memory, "MEMORY_INFO", tmp_path / "meminfo")
    assert fits(1000, torch.device("cpu"))
    (tmp_path / "meminfo").write_text("MemTotal:  9000000 kB\nMemFree: 3 kB\nMemAvailable:   10 kB\n")
    assert fits(5 * 1024, torch.device("cpu"))
    assert not fits(5 * 1024 + 1, torch.device("cpu"))
