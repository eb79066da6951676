"""Train φ, the generator of contemplation tokens, layer by layer (paper, section 4.1)."""

import json
from collections.abc import Sequence as Rows
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from ccot_cli.config import Settings, TrainPhiConfig, ratio_name, stage_config
from ccot_cli.data.shards import read_records
from ccot_cli.errors import UsageError
from ccot_cli.files import commit
from ccot_cli.models.adapters import PHI, Adapters
from ccot_cli.models.layerwise import LayerReport, PhiExample, train_layerwise
from ccot_cli.models.theta import Theta
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score
from ccot_cli.workspace import Artifact, Build, Workspace

STAGE = "train-phi"
LOG_FILE = "log.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"


@dataclass(frozen=True)
class TrainPhiResult:
    """The losses of every layer."""

    ratio: str
    layers: list[dict[str, Any]]
    """One `LayerReport` a layer."""
    was_ready: bool = False


def run(
    workspace: Workspace, settings: Settings, ratio: Decimal, *, overrides: Rows[str] = (), progress: Progress
) -> TrainPhiResult:
    """Train and save φ for one ratio; an interrupted run goes on after its last finished layer.

    Raises:
        MissingError: where `score` has not run for this ratio.
    """
    key = ratio_name(ratio)
    selected = workspace.require(score.STAGE, key)
    source = workspace.require(precompute.STAGE)
    config = stage_config(settings, STAGE)
    inputs = {score.STAGE: selected.manifest.fingerprint}
    if ready := workspace.ready(STAGE, key, config=config, inputs=inputs):
        return TrainPhiResult(**{**ready.manifest.summary, "was_ready": True})
    theta = score.load_matching_theta(settings, source)
    chosen = settings.train_phi
    if chosen.autoregressive_layer > theta.num_layers:
        raise UsageError(
            f"autoregressive_layer is {chosen.autoregressive_layer}, but {theta.name} has {theta.num_layers} layers",
            fix="set train_phi.autoregressive_layer in ccot.yaml",
        )
    adapters = Adapters(theta)
    adapters.add(PHI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=chosen.seed)
    examples = load_examples(theta, source, selected)
    with workspace.building(STAGE, key, config=config, inputs=inputs, overrides=overrides) as build:
        reports = _train_layers(adapters, *examples, chosen, build, f"φ at r = {ratio:f}", progress)
        adapters.save(PHI, build.folder)
        result = TrainPhiResult(ratio=f"{ratio:f}", layers=[asdict(report) for report in reports])
        build.summary.update(asdict(result))
    return result


def _train_layers(
    adapters: Adapters,
    train: list[PhiExample],
    validation: list[PhiExample],
    chosen: TrainPhiConfig,
    build: Build,
    label: str,
    progress: Progress,
) -> list[LayerReport]:
    """Train the layers that are left, with a checkpoint after each."""
    theta, checkpoint = adapters.theta, build.scratch(CHECKPOINT_FILE)
    reports = _resume(adapters, build.folder / LOG_FILE, checkpoint)
    num_batches = -(-len(train) // chosen.batch_size)
    total = (theta.num_layers - len(reports)) * chosen.epochs * num_batches
    with progress.task(label, total=total, unit="steps") as advance:
        for report in train_layerwise(
            theta,
            adapters,
            train,
            validation,
            layer=chosen.autoregressive_layer,
            epochs=chosen.epochs,
            batch_size=chosen.batch_size,
            learning_rate=chosen.learning_rate,
            seed=chosen.seed,
            num_trained=len(reports),
            on_step=lambda index, loss: advance(1, layer=f"{index}/{theta.num_layers}", loss=f"{loss:.4f}"),
        ):
            reports.append(report)
            _write_log(build.folder / LOG_FILE, reports)
            with commit(checkpoint) as part:
                save_file({name: tensor.contiguous() for name, tensor in _tensors(adapters).items()}, part)
    return reports


def load_examples(theta: Theta, source: Artifact, selected: Artifact) -> tuple[list[PhiExample], list[PhiExample]]:
    """The training and validation problems with the gold states that `score` selected."""
    problems = precompute.read_problems(source)
    train: list[PhiExample] = []
    validation: list[PhiExample] = []
    for record in sorted(read_records(selected.folder), key=lambda record: record.number):
        item = problems[record.number]
        example = PhiExample(theta.encoder.query(item.problem.question), record.states_JID)
        (validation if item.is_validation else train).append(example)
    return train, validation


def _tensors(adapters: Adapters) -> dict[str, Any]:
    return {name: parameter.detach() for name, parameter in adapters.named_parameters() if f".{PHI}." in name}


def _write_log(path: Path, reports: list[LayerReport]) -> None:
    with commit(path) as part:
        part.write_text("".join(json.dumps(asdict(report)) + "\n" for report in reports))


def _resume(adapters: Adapters, log: Path, checkpoint: Path) -> list[LayerReport]:
    """Take up the layers that an interrupted run has finished."""
    if not (log.exists() and checkpoint.exists()):
        return []
    saved = load_file(checkpoint)
    for name, parameter in adapters.named_parameters():
        if name in saved:
            parameter.data.copy_(saved[name])
    return [LayerReport(**json.loads(line)) for line in log.read_text().splitlines()]
