"""Checkpoints: tensors in a safetensors file, with a hash of what they hold, because training goes on from them.

All ranks save and load a checkpoint together, and the first one writes and reads it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ccot_cli import ranks
from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.files import commit

SEAL = "sha256"
"""Name of the tensor with the hash of all others."""
RANKS = "ranks"
"""Name of the tensor with the number of ranks."""


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and their hash, atomically.

    Raises:
        ResourceError: if the disk is full.
    """
    kept = {name: each.detach().contiguous() for name, each in tensors.items()} | {RANKS: torch.tensor(ranks.size())}
    ranks.first(lambda: _write(path, kept))


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    with commit(path) as part:
        save_file({**tensors, SEAL: _digest(tensors)}, part)


def load_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint.

    Raises:
        CorruptError: if they are not those that were written.
        UsageError: if another number of ranks saved them: they add up in another order, and other bits would result.
    """
    tensors = ranks.first(lambda: _read(path))
    if (num_ranks := int(tensors.pop(RANKS, 1))) != ranks.size():
        raise UsageError(
            f"this training was begun with {num_ranks} ranks, not {ranks.size()}",
            fix=f"go on with {num_ranks}, or remove {path.parent}; its training starts from the beginning",
        )
    return tensors


def _read(path: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError):
        tensors = {}
    found = tensors.pop(SEAL, torch.empty(0))
    if not torch.equal(found, _digest(tensors)):
        raise damaged_checkpoint(path)
    return tensors


def damaged_checkpoint(path: Path) -> CorruptError:
    """Return the error for a checkpoint, or a log beside it, from which training cannot go on."""
    return CorruptError(f"{path} is damaged", fix=f"remove {path.parent}; its training starts from the beginning")


def _digest(tensors: Mapping[str, Tensor]) -> Tensor:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)
