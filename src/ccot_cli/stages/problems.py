"""Read the problems that `precompute` stored, and take sample problems of a workspace or of a generator."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ccot_cli.config import TEST_SETTINGS, DataConfig, Settings
from ccot_cli.data.problems import LoadedProblems, Problem, load_test, load_training, of_steps
from ccot_cli.data.word_problems import Split
from ccot_cli.names import EMBEDDED, PRECOMPUTE
from ccot_cli.overrides import override
from ccot_cli.workspace.artifact import Artifact, found_again
from ccot_cli.workspace.workspace import Workspace

PROBLEMS_FILE = "problems.jsonl"


@dataclass(frozen=True)
class StoredProblem:
    """A line of problems.jsonl."""

    problem: Problem
    is_validation: bool


def json_lines(stored: Sequence[StoredProblem]) -> list[str]:
    """Return the lines of problems.jsonl."""
    return [
        json.dumps({**asdict(item.problem), "is_validation": item.is_validation}, ensure_ascii=False) for item in stored
    ]


def digest(stored: Sequence[StoredProblem]) -> str:
    """Hash problems, for the inputs of what learns from them."""
    return hashlib.sha256("\n".join(json_lines(stored)).encode()).hexdigest()


def stored_problems(loaded: LoadedProblems) -> list[StoredProblem]:
    """Return the training problems, then the validation problems."""
    return [
        *(StoredProblem(problem, False) for problem in loaded.train),
        *(StoredProblem(problem, True) for problem in loaded.validation),
    ]


def read_problems(artifact: Artifact) -> list[StoredProblem]:
    """Read the problems of a `precompute` artifact, in order.

    Raises:
        CorruptError: if they are not those that were stored.
    """
    artifact.check(PROBLEMS_FILE)
    items = []
    # Not `splitlines`, which also splits at characters such as U+2028 that a problem may hold.
    for line in (artifact.folder / PROBLEMS_FILE).read_text(encoding="utf-8").removesuffix("\n").split("\n"):
        fields = json.loads(line)
        is_validation = fields.pop("is_validation")
        items.append(StoredProblem(Problem(**fields), is_validation))
    return items


def recorded_data(settings: Settings, source: Artifact) -> DataConfig:
    """Return where the problems of `precompute` came from; a file that has moved is found by its new name.

    Args:
        settings: They say what the test problems are, which `precompute` does not record.
        source: The artifact of `precompute`.

    Raises:
        CorruptError: if another version of ccot recorded them.
    """
    recorded = dict(source.manifest.config["data"])
    for name in ("source", "validation_source"):
        recorded[name] = found_again(recorded.get(name), getattr(settings.data, name))
    test = {name: getattr(settings.data, name) for name in TEST_SETTINGS}
    return source.read_as(DataConfig, {**recorded, **test})


def run(
    workspace: Workspace | None,
    settings: Settings,
    split: Split | None = None,
    *,
    limit: int,
    steps: tuple[int, int] | None = None,
    seed: int | None = None,
) -> list[Problem]:
    """Take the first problems of a split.

    After `precompute`, its training and validation problems are taken, as long as no other seed is asked for.

    Args:
        workspace: None takes problems of a generator, if the settings have no other source.
        split: By default `test` for problems of a generator, else `validation`.
        limit: Most problems.
        steps: Fewest and most reasoning steps; those of the settings by default.
        seed: Seed of the generator and of the choice of validation problems; that of the settings by default.

    Raises:
        UsageError: if the source is missing or unusable, or has no such problems.
        ResourceError: if the hub cannot be reached.
        CorruptError: if the manifest of `precompute` cannot be read.
    """
    stored = workspace.artifact(PRECOMPUTE) if workspace else None
    if stored:
        # It may have been made with options that ccot.yaml does not have, and its files may have moved.
        settings = settings.model_copy(update={"data": recorded_data(settings, stored)})
    if split is None:
        split = "test" if (settings.data.test_source or settings.data.source) == EMBEDDED else "validation"
    section = "eval" if split in ("test", "unseen") else "data"
    options = {f"{section}.steps": steps, f"{section}.seed": seed}
    changed = override(settings, {name: value for name, value in options.items() if value is not None})
    if split in ("test", "unseen"):
        return load_test(
            changed.data.model_copy(update={"test_split": split}) if split == "unseen" else changed.data,
            limit=limit,
            seed=changed.eval.seed,
            steps=changed.eval.steps,
        )
    if stored and changed.data.seed == settings.data.seed and (stored.folder / PROBLEMS_FILE).exists():
        items = [item.problem for item in read_problems(stored) if item.is_validation == (split == "validation")]
        return of_steps(items, changed.data.steps, str(stored.folder / PROBLEMS_FILE))[:limit]
    loaded = load_training(_limited(changed.data, limit))
    return (loaded.validation if split == "validation" else loaded.train)[:limit]


def _limited(data: DataConfig, limit: int) -> DataConfig:
    """Generate no more problems than are asked for; which ones a file holds out depends on its own limit."""
    if data.source != EMBEDDED:
        return data
    return data.model_copy(update={"limit": limit, "validation_limit": limit})
