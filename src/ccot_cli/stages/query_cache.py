"""Cache the queries' keys and values in the workspace, if there is enough room on the disk.

All training continues the same queries under the same θ, so one file serves every ratio, stage and seed. The file is
no artifact: if it is deleted or damaged, the next training makes it again. It ends with the hash of what precedes.
"""

import hashlib
import json
import mmap
from collections.abc import Sequence
from pathlib import Path

from ccot_cli.files import commit, free_bytes, sha256_of
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.training.queries import FreshQueries, KeptQueries, Queries, fill_queries, num_bytes
from ccot_cli.progress import Progress
from ccot_cli.workspace.artifact import Artifact
from ccot_cli.workspace.workspace import Workspace

MOST_BYTES = 32 * 10**9
MOST_OF_FREE_SPACE = 0.5
BATCH_TOKENS = 8192


def open_queries(
    workspace: Workspace,
    source: Artifact,
    adapters: Adapters,
    queries: Sequence[list[int]],
    layer: int,
    progress: Progress,
) -> Queries:
    """Open the cache of these queries, and fill it first if it is missing or damaged.

    Cached queries of another `source` are deleted.

    Args:
        source: The artifact that the queries' problems come from.
        queries: Token ids by problem.
        layer: Autoregressive layer l.

    Returns:
        The cached queries; if they are too large for the cache, queries that are run at every use. Both are rounded
        alike, so what is learned does not depend on the room on the disk.
    """
    theta = adapters.theta
    folder = workspace.cache
    # The fingerprint covers the model and the problems; the digest tells training problems from validation problems.
    prefix = f"queries-{source.fingerprint[:12]}-"
    path = folder / f"{prefix}{_digest(queries)}.bin"
    needed = num_bytes(theta, queries)
    if not _is_sealed(path, needed):
        if needed > min(MOST_BYTES, MOST_OF_FREE_SPACE * free_bytes(folder)):
            return FreshQueries(adapters, queries, layer, rounds=True)
        folder.mkdir(exist_ok=True)
        for old in folder.glob("queries-*"):
            if not old.name.startswith(prefix):
                old.unlink()
        with commit(path) as part, progress.task("queries under θ", total=len(queries), unit="problems") as advance:
            for count in fill_queries(adapters, queries, part, batch_tokens=BATCH_TOKENS):
                advance(count)
            _seal(part)
    return KeptQueries(theta, queries, layer, path)


def _seal(path: Path) -> None:
    """Append the hash of a file's bytes."""
    digest = bytes.fromhex(sha256_of(path))
    with path.open("ab") as file:
        file.write(digest)


def _is_sealed(path: Path, size: int) -> bool:
    """Tell whether a file holds so many bytes, and then their hash."""
    seal_size = hashlib.sha256().digest_size
    if not path.exists() or path.stat().st_size != size + seal_size:
        return False
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
    ):
        return hashlib.sha256(view[:size]).digest() == view[size:]


def _digest(queries: Sequence[list[int]]) -> str:
    return hashlib.sha256(json.dumps(queries).encode()).hexdigest()[:12]
