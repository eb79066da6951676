"""What several stages share: the model that `precompute` ran, selected states, finished results, how they are built.

Dimensions: J = 1 + K rows of gold states, K selected tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from ccot_cli import ranks
from ccot_cli.config import WITHOUT_EFFECT, ModelConfig, Settings, by_dotted_name
from ccot_cli.data.problems import Problem
from ccot_cli.data.shards import read_records
from ccot_cli.errors import CorruptError
from ccot_cli.models.base.merged import adapter_hash
from ccot_cli.models.base.theta import Theta, load_theta, weights_hash
from ccot_cli.models.selection.gold import GoldExample, fits, following_ids
from ccot_cli.progress import Progress
from ccot_cli.stages.problems import read_problems
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec, found_again
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.workspace import Workspace

Result = TypeVar("Result")


def ready_result(workspace: Workspace, spec: ArtifactSpec, kind: type[Result]) -> Result | None:
    """Return the result of an artifact if it is ready; else check that it can be made now, and return None.

    Args:
        kind: The class of the result, whose fields are those of the artifact's summary, and `was_ready`.

    Raises:
        UsageError: if the artifact was made with command-line settings that are not given now.
        BusyError: if another process works on this workspace.
    """
    if ready := workspace.ready(spec):
        return as_ready(ready, kind)
    workspace.refuse_while_busy()
    return None


def as_ready(artifact: Artifact, kind: type[Result]) -> Result:
    """Return the result that an artifact records, as one that was ready."""
    return artifact.read_as(kind, {**artifact.manifest.summary, "was_ready": True})


@contextmanager
def building(
    workspace: Workspace, spec: ArtifactSpec, progress: Progress, *, shares_folder: bool = False
) -> Iterator[Build]:
    """Make an artifact in a block, as `Workspace.building` does.

    Of several ranks the first one makes it; the others leave the block after it exists.

    Args:
        shares_folder: What the other ranks hash early is a part of the artifact. By default all that they write goes
            into a folder of their own, and is removed in the end.
    """
    run = spec.stage if spec.key is None else f"{spec.stage}-{spec.key}"
    with ExitStack() as stack:
        if ranks.rank() == 0:
            stack.enter_context(progress.tracking(run, spec.request, by_dotted_name(spec.config)))
        build = ranks.first(lambda: stack.enter_context(workspace.building(spec, progress.say)))
        build.draft = build.draft.model_copy(update={"ranks": ranks.size()})
        if shares_folder:
            build = build.part(ranks.rank())
        elif ranks.rank() > 0:
            folder = stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
            build = replace(build, folder=Path(folder))
        yield build
        for files in ranks.share(range(ranks.size()), lambda _: build.made) if shares_folder else ():
            build.remember(files)
    ranks.wait()


def pass_tokens(theta: Theta, settings: Settings) -> int:
    """Return the most tokens in one forward pass that computes gold states, padding included."""
    return settings.precompute.batch_tokens or theta.pass_tokens


def recorded_model(settings: Settings, source: Artifact) -> dict[str, Any]:
    """Return the settings of the model that `precompute` ran, on the device of the present ones.

    A model's or an adapter's folder that has moved is found by its new name in the settings.
    """
    here = {name: getattr(settings.model, name) for name in WITHOUT_EFFECT["model"]}
    recorded = {**source.manifest.config["model"], **here}
    for name in ("name", "adapter"):
        then, now = recorded.get(name), getattr(settings.model, name)
        recorded[name] = found_again(then, now)
    return recorded


def load_matching_theta(settings: Settings, source: Artifact) -> Theta:
    """Load the model that `precompute` ran, on the device of the settings.

    Raises:
        CorruptError: if its weights, tokenizer or template have changed since, or another version of ccot ran it.
    """
    recorded = recorded_model(settings, source)
    theta = load_unchanged_theta(source, recorded)
    if theta is None:
        raise CorruptError(
            f"{recorded['name']} has changed since {source.folder} was made from it",
            fix="put the model back, or run 'ccot precompute' again",
        )
    return theta


def load_unchanged_theta(source: Artifact, recorded: Mapping[str, Any]) -> Theta | None:
    """Load a model; None if its weights, tokenizer or template are not those of the one that `precompute` ran.

    Args:
        source: The artifact of `precompute`.
        recorded: The settings of the model that it records, of which some may be others here.

    Raises:
        CorruptError: if another version of ccot recorded them.
    """
    config, inputs = source.read_as(ModelConfig, recorded), source.manifest.inputs
    theta = load_theta(config)
    adapter = None if config.adapter is None else adapter_hash(config.adapter)
    is_same = theta.fingerprint() == inputs["model"] and inputs["weights"] == weights_hash(config)
    return theta if is_same and inputs.get("adapter") == adapter else None


def short_enough(theta: Theta, problems: Sequence[Problem]) -> list[Problem]:
    """Leave out the problems whose solutions are too long for the model, as `precompute` does."""
    encoded = theta.encoder.problems(problems)
    return [problem for problem, each in zip(problems, encoded, strict=True) if fits(theta, each)]


def load_examples(theta: Theta, source: Artifact, selected: Artifact) -> tuple[list[GoldExample], list[GoldExample]]:
    """Load the training and validation problems, each with the gold states that `score` selected for it.

    Args:
        source: The artifact of `precompute`.
        selected: The artifact of `score`.
    """
    items = read_problems(source)
    problems = theta.encoder.problems([item.problem for item in items])
    train: list[GoldExample] = []
    validation: list[GoldExample] = []
    for record in sorted(read_records(selected.folder), key=lambda record: record.number):
        encoded = problems[record.number]
        following, start = following_ids(theta, encoded), len(encoded.query)
        next_K = torch.tensor([following[position - start] for position in record.positions_J[1:].tolist()])
        example = GoldExample(encoded.query, record.states_JID, next_K)
        (validation if items[record.number].is_validation else train).append(example)
    return train, validation
