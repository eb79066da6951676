"""Cache the queries' keys and values in the workspace, if there is enough room on the disk.

All training continues the same queries under the same θ, so one file serves every ratio, stage and seed. The file is
no artifact: if it is deleted or damaged, the next training makes it again. It ends with the hash of what precedes.
A GPU has none: the processor would have to put every batch together and bring it there.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from ccot_cli import ranks
from ccot_cli.files import SEAL_BYTES, commit, free_bytes, is_sealed, seal
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.training.queries import FreshQueries, KeptQueries, Queries, fill_queries, num_bytes
from ccot_cli.names import QueryUnder
from ccot_cli.progress import Progress
from ccot_cli.workspace.artifact import Artifact
from ccot_cli.workspace.workspace import Workspace, queries_prefix

MOST_BYTES = 64 * 10**9
MOST_OF_FREE_SPACE = 0.5


def open_queries(
    workspace: Workspace,
    source: Artifact,
    adapters: Adapters,
    queries: Sequence[list[int]],
    layer: int,
    under: QueryUnder,
    progress: Progress,
) -> Queries:
    """Open the cache of these queries, and fill it first if it is missing or damaged; φ's, which learn, have none.

    Cached queries of another `source` are deleted. Of several ranks the first one fills the cache, for all.

    Args:
        source: The artifact that the queries' problems come from.
        queries: Token ids by problem.
        layer: Autoregressive layer l.
        under: Whose weights read the queries.

    Returns:
        The cached queries; on a GPU, or if they are too large for the cache, queries that are run at every use. Both
        are rounded alike, so what is learned does not depend on the room on the disk.
    """
    if under == PHI:
        return FreshQueries(adapters, queries, layer, reader=PHI)
    path = ranks.first(lambda: _filled(workspace, source, adapters, queries, progress))
    if path is None:
        return FreshQueries(adapters, queries, layer, rounds=True)
    return KeptQueries(adapters.theta, queries, layer, path)


def _filled(
    workspace: Workspace, source: Artifact, adapters: Adapters, queries: Sequence[list[int]], progress: Progress
) -> Path | None:
    """Return the path of these queries' cache, filled now if it was not; None for a GPU, or if it is too large."""
    if adapters.theta.device.type != "cpu":
        return None
    folder = workspace.cache
    # The fingerprint covers the model and the problems; the digest tells training problems from validation problems.
    prefix = queries_prefix(source)
    path = folder / f"{prefix}{_digest(queries)}.bin"
    needed = num_bytes(adapters.theta, queries)
    if not (path.exists() and path.stat().st_size == needed + SEAL_BYTES and is_sealed(path)):
        for old in workspace.cached_queries():
            if old == path or not old.name.startswith(prefix):
                old.unlink()
        if needed > min(MOST_BYTES, MOST_OF_FREE_SPACE * free_bytes(folder)):
            return None
        folder.mkdir(exist_ok=True)
        with commit(path) as part, progress.task("queries under θ", total=len(queries), unit="problems") as advance:
            for count in fill_queries(adapters, queries, part, batch_tokens=adapters.theta.pass_tokens):
                advance(count)
            seal(part)
    return path


def _digest(queries: Sequence[list[int]]) -> str:
    return hashlib.sha256(json.dumps(queries).encode()).hexdigest()[:12]
