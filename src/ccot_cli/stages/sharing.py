"""Write an artifact's records together: each rank makes a range of the shards.

What is in a shard depends on the settings alone, so any number of ranks makes the same files.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil

from ccot_cli import ranks
from ccot_cli.data.shards import Record, ShardWriter, missing_shards, plan_shards, shard_paths
from ccot_cli.progress import Progress
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.build import Build, replacement_folder
from ccot_cli.workspace.workspace import Workspace


def written_bytes(workspace: Workspace, spec: ArtifactSpec) -> int:
    """Return the size of the shards that need no more room: an attempt to make the artifact reuses or removes them.

    Those of another finished artifact stay until the new one takes its place.
    """
    folder = workspace.folder(spec.stage, spec.key)
    is_another = workspace.artifact(spec.stage, spec.key) is not None and workspace.matching(spec) is None
    places = [replacement_folder(folder), *([] if is_another else [folder])]
    return sum(path.stat().st_size for place in places for path in shard_paths(place))


def write_records(
    build: Build,
    order: Sequence[int],
    num_rows: Sequence[int],
    make: Callable[[frozenset[int]], Iterator[Record]],
    *,
    num_indices: int,
    row_bytes: int,
    shard_bytes: int,
    label: str,
    progress: Progress,
) -> None:
    """Write this rank's shards, except for those that an interrupted run has finished; wait for those of the others.

    Args:
        order: Numbers of all problems, in the order in which their records are written.
        num_rows: Rows of each problem's record, by its number.
        make: Makes the records of some problems, in that order.
        num_indices: Hidden-state indices of a record.
        row_bytes: Size of a row at all of them.
        shard_bytes: Most bytes of a shard, unless one record is larger.
        label: Text of the progress bar.
    """
    shards = plan_shards([num_rows[number] for number in order], shard_bytes // row_bytes)

    def missing() -> list[range]:
        build.drop_unknown()
        return missing_shards(build.folder, [list(order[shard.start : shard.stop]) for shard in shards], num_indices)

    first, end = (ceil(len(shards) * bound / ranks.size()) for bound in (ranks.rank(), ranks.rank() + 1))
    here = [range(max(run.start, first), min(run.stop, end)) for run in ranks.first(missing)]
    wanted = [order[shards[run[0]].start : shards[run[-1]].stop] for run in here if run]
    label = label if ranks.size() == 1 else f"{label}, one of {ranks.size()} shares"
    with progress.task(label, total=sum(map(len, wanted)), unit="problems") as advance:
        for run, numbers in zip(filter(None, here), wanted, strict=True):
            with ShardWriter(build.folder, shard_bytes, build.hash_early, first=run.start) as writer:
                for record in make(frozenset(numbers)):
                    writer.add(record)
                    advance()
    ranks.wait()
