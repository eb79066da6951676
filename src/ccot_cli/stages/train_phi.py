"""Train φ, the generator of contemplation tokens (paper, section 4.1)."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ccot_cli.config import Settings, TrainPhiConfig, stage_config
from ccot_cli.errors import DivergedError, MissingError, UsageError
from ccot_cli.files import check_space, commit
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.memory import fits
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training.loop import CHECKPOINT_FILE, LOG_FILE, train, write_lines
from ccot_cli.models.training.phi_joint import JointTraining
from ccot_cli.models.training.phi_layerwise import LayerReport, stored_bytes, train_layerwise
from ccot_cli.models.training.phi_report import PhiJudge, PhiReport
from ccot_cli.models.training.queries import Queries
from ccot_cli.names import PRECOMPUTE, SCORE, TRAIN_PHI, parse_ratio, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import load_examples, load_matching_theta, ready_result
from ccot_cli.stages.query_cache import open_queries
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class TrainPhiResult:
    """How φ's rollouts do on the validation problems."""

    ratio: float
    schedule: str
    num_steps: int
    report: dict[str, Any]
    """A `PhiReport` of φ as it is saved."""
    layers: list[dict[str, Any]]
    """One `LayerReport` a layer, where it was trained layer by layer."""
    was_ready: bool = False


def run(
    workspace: Workspace,
    settings: Settings,
    ratio: Decimal,
    *,
    variant: str = "",
    selected: str | None = None,
    overrides: Sequence[str] = (),
    progress: Progress,
) -> TrainPhiResult:
    """Train and save φ for one ratio; an interrupted run goes on from its last checkpoint.

    Args:
        variant: Set where the settings are not the workspace's own: the end of the artifact's key.
        selected: Key of the tokens that `score` selected; the artifact's own by default.

    Raises:
        MissingError: where `score` has not run for this ratio, or the φ to go on from is not there.
        UsageError: where the settings ask for a layer, a start or a length of training that cannot be.
    """
    key = ratio_name(ratio) + variant
    scored = workspace.require(SCORE, selected or key)
    source = workspace.require(PRECOMPUTE)
    inputs = {workspace.input_name(scored, key): scored.fingerprint}
    start = _start(workspace, settings.train_phi, key)
    if start is not None:
        inputs[start.name] = start.fingerprint
    spec = ArtifactSpec(TRAIN_PHI, key, stage_config(settings, TRAIN_PHI), inputs, tuple(overrides))
    if ready := ready_result(workspace, spec, TrainPhiResult):
        return ready
    theta = load_matching_theta(settings, source)
    chosen = settings.train_phi
    if chosen.autoregressive_layer > theta.num_layers:
        raise UsageError(
            f"autoregressive_layer is {chosen.autoregressive_layer}, but {theta.name} has {theta.num_layers} layers",
            fix="set train_phi.autoregressive_layer in ccot.yaml",
        )
    if chosen.taught_epochs + chosen.epochs == 0 or (chosen.schedule == "layerwise" and not chosen.epochs):
        raise UsageError("φ is asked to train for no epoch at all", fix="set train_phi.epochs in ccot.yaml")
    if chosen.schedule == "joint":
        theta.require_resident("training φ jointly", instead="--schedule layerwise, or ")
    adapters = Adapters(theta)
    if start is None:
        adapters.add(PHI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=chosen.seed)
    else:
        adapters.load(PHI, start.path(PHI))
    examples = load_examples(theta, source, scored)
    with workspace.building(spec) as build:
        job = _Job(workspace, source, adapters, *examples, chosen, build, f"φ at r = {ratio:f}", progress)
        layers, num_steps = job.train_layers() if chosen.schedule == "layerwise" else ([], job.train_jointly())
        adapters.train_only(())
        adapters.save(PHI, build.folder)
        report = job.last_report or job.judge.report()
        if not all(map(isfinite, report.losses)):
            raise DivergedError(
                "φ generates states that are not finite",
                fix="lower train_phi.learning_rate in ccot.yaml and run it again, from its start",
            )
        result = TrainPhiResult(
            ratio=float(ratio),
            schedule=chosen.schedule,
            num_steps=num_steps,
            report=asdict(report),
            layers=[asdict(report) for report in layers],
        )
        build.summary.update(asdict(result))
    return result


def _start(workspace: Workspace, chosen: TrainPhiConfig, key: str) -> Artifact | None:
    """The φ to go on from, where there is to be one."""
    if chosen.start is None:
        return None
    named = chosen.start
    with suppress(ValueError):
        named = ratio_name(parse_ratio(named))
    if named == key:
        raise UsageError(f"φ of {key} cannot start from itself", fix="name another key, or none, in train_phi.start")
    if named not in workspace.finished(TRAIN_PHI):
        there = ", ".join(workspace.keys(TRAIN_PHI)) or "none yet"
        raise MissingError(
            f"{workspace.name} has no φ {chosen.start!r} to start from", fix=f"train it, or name another ({there})"
        )
    start = workspace.require(TRAIN_PHI, named)
    before = start.manifest.config["train_phi"]
    unlike = [name for name in ("lora_rank", "lora_alpha") if before[name] != getattr(chosen, name)]
    if unlike:
        raise UsageError(
            f"{start.name} was trained with {unlike[0]} {before[unlike[0]]}, not {getattr(chosen, unlike[0])}",
            fix=f"set train_phi.{unlike[0]} to {before[unlike[0]]}",
        )
    return start


@dataclass
class _Job:
    """The training of one ratio."""

    workspace: Workspace
    source: Artifact
    adapters: Adapters
    train: list[GoldExample]
    validation: list[GoldExample]
    chosen: TrainPhiConfig
    build: Build
    label: str
    progress: Progress
    last_report: PhiReport | None = None
    """Of the finished φ, where it was looked at after its last epoch."""

    @property
    def theta(self) -> Theta:
        return self.adapters.theta

    def _queries(self, examples: list[GoldExample]) -> Queries:
        ids, layer = [each.query for each in examples], self.chosen.autoregressive_layer
        return open_queries(self.workspace, self.source, self.adapters, ids, layer, self.progress)

    @cached_property
    def judge(self) -> PhiJudge:
        return PhiJudge(self.adapters, self.train, self.validation, self._queries(self.validation), self.chosen)

    def train_jointly(self) -> int:
        """All layers together; a look at validation after every epoch. Returns the number of steps."""
        chosen = self.chosen
        training = JointTraining(self.adapters, self.train, self._queries(self.train), chosen)

        def on_epoch(train_loss: float) -> dict[str, Any]:
            report, gold_share = self.judge.report(), training.gold_fraction
            self.last_report = report if training.optimiser.step_count == training.optimiser.num_steps else None
            read = report.generated_read
            self.progress.say(
                f"epoch {training.optimiser.step_count // training.steps_per_epoch}: error {train_loss:.3f};"
                f" validation rollouts {report.loss:.3f}, numbers read at l {read[0]:.3f}, at L {read[1]:.3f}"
            )
            return {"gold_share": gold_share, **asdict(report)}

        train(
            training,
            log=self.build.folder / LOG_FILE,
            checkpoint=self.build.scratch(CHECKPOINT_FILE),
            label=self.label,
            checkpoint_steps=chosen.checkpoint_steps,
            progress=self.progress,
            figures=lambda loss: {"gold_inputs": f"{training.gold_fraction:.0%}", "error": f"{loss:.3f}"},
            on_epoch=on_epoch,
        )
        return training.optimiser.num_steps

    def train_layers(self) -> tuple[list[LayerReport], int]:
        """Train the layers that are left, with a checkpoint after each."""
        chosen, checkpoint, log = self.chosen, self.build.scratch(CHECKPOINT_FILE), self.build.folder / LOG_FILE
        reports = _resume(self.adapters, log, checkpoint)
        # An attempt that had less memory may have left files there.
        folder, kept = None, self.build.scratch("resting")
        resting = stored_bytes(self.theta, [*self.train, *self.validation])
        if not fits(resting, self.theta.device):
            check_space(self.build.folder, resting, fix="free some space")
            folder = kept
            folder.mkdir(exist_ok=True)
        per_layer = chosen.epochs * -(-len(self.train) // chosen.batch_size)
        total = (self.theta.num_layers - len(reports)) * per_layer
        with self.progress.task(self.label, total=total, unit="steps") as advance:
            for report in train_layerwise(
                self.adapters,
                self.train,
                self.validation,
                chosen,
                num_trained=len(reports),
                folder=folder,
                on_step=lambda index, loss: advance(1, layer=f"{index}/{self.theta.num_layers}", loss=f"{loss:.4f}"),
            ):
                reports.append(report)
                write_lines(log, [asdict(each) for each in reports])
                with commit(checkpoint) as part:
                    weights = {name: each.detach().contiguous() for name, each in self.adapters.parameters(PHI).items()}
                    save_file({NUM_TRAINED: torch.tensor(len(reports)), **weights}, part)
        return reports, self.theta.num_layers * per_layer


NUM_TRAINED = "layers"
"""In a checkpoint, beside the weights: how many layers they have been trained for."""


def _resume(adapters: Adapters, log: Path, checkpoint: Path) -> list[LayerReport]:
    """Take up the layers that an interrupted run has finished."""
    if not (log.exists() and checkpoint.exists()):
        return []
    saved = load_file(checkpoint)
    # The log is written first, and may tell of one layer more.
    num_trained = int(saved[NUM_TRAINED])
    with torch.no_grad():
        for name, parameter in adapters.named_parameters():
            if name in saved:
                parameter.copy_(saved[name])
    return [LayerReport(**json.loads(line)) for line in log.read_text().splitlines()][:num_trained]
