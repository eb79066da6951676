"""Keep the queries' keys and values for a stage's training, where there is room for them."""

from collections.abc import Sequence as Rows
from pathlib import Path

from ccot_cli.files import free_bytes
from ccot_cli.models.adapters import Adapters
from ccot_cli.models.queries import FreshQueries, KeptQueries, Queries, num_bytes
from ccot_cli.models.theta import Theta
from ccot_cli.progress import Progress

MOST_BYTES = 32 * 10**9
SHARE_OF_DISK = 0.5
BATCH_TOKENS = 8192


def open_queries(
    theta: Theta, adapters: Adapters, queries: Rows[list[int]], layer: int, path: Path, progress: Progress
) -> Queries:
    """Kept in a file at `path`, which the caller removes, or run anew at every step where that would be too large."""
    needed = num_bytes(theta, queries)
    if needed > min(MOST_BYTES, SHARE_OF_DISK * free_bytes(path.parent)):
        return FreshQueries(theta, adapters, queries, layer)
    kept = KeptQueries(theta, adapters, queries, layer, path)
    with progress.task("queries under θ", total=len(queries), unit="problems") as advance:
        for count in kept.fill(batch_tokens=BATCH_TOKENS):
            advance(count)
    return kept
