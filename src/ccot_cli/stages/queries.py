"""Keep the queries' keys and values in the workspace, where there is room for them.

All training continues the same queries under the same θ, so one file serves every ratio, stage and seed. It is no
artifact: whoever deletes it loses a few minutes.
"""

import hashlib
import json
from collections.abc import Sequence

from ccot_cli.files import commit, free_bytes
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.training.queries import FreshQueries, KeptQueries, Queries, fill_queries, num_bytes
from ccot_cli.progress import Progress
from ccot_cli.workspace.artifact import Artifact
from ccot_cli.workspace.workspace import Workspace

MOST_BYTES = 32 * 10**9
SHARE_OF_DISK = 0.5
BATCH_TOKENS = 8192


def open_queries(
    workspace: Workspace,
    source: Artifact,
    adapters: Adapters,
    queries: Sequence[list[int]],
    layer: int,
    progress: Progress,
) -> Queries:
    """Kept in the workspace, or run anew at every step where they would be too large.

    Args:
        source: Where the problems come from; what was kept for another one is deleted.
        queries: Token ids by problem.
        layer: Autoregressive layer l.
    """
    theta = adapters.theta
    folder = workspace.cache
    made_from = f"queries-{source.fingerprint[:12]}-"
    path = folder / f"{made_from}{_digest(queries)}.bin"
    needed = num_bytes(theta, queries)
    if not (path.exists() and path.stat().st_size == needed):
        if needed > min(MOST_BYTES, SHARE_OF_DISK * free_bytes(folder)):
            return FreshQueries(adapters, queries, layer, rounds=True)
        folder.mkdir(exist_ok=True)
        for old in folder.glob("queries-*"):
            if not old.name.startswith(made_from):
                old.unlink()
        with commit(path) as part, progress.task("queries under θ", total=len(queries), unit="problems") as advance:
            for count in fill_queries(adapters, queries, part, batch_tokens=BATCH_TOKENS):
                advance(count)
    return KeptQueries(theta, queries, layer, path)


def _digest(queries: Sequence[list[int]]) -> str:
    """Tells training problems from validation's; the model is part of the source's fingerprint."""
    return hashlib.sha256(json.dumps(queries).encode()).hexdigest()[:12]
