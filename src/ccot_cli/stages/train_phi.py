"""Train φ, the generator of contemplation tokens (paper, section 4.1)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import cached_property, partial
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from ccot_cli import ranks
from ccot_cli.config import AUTO, Settings, TrainPhiConfig, stage_config
from ccot_cli.errors import DivergedError, UsageError
from ccot_cli.files import check_space
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.memory import fits
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training.checkpoints import load_checkpoint, save_checkpoint
from ccot_cli.models.training.loop import CHECKPOINT_FILE, LOG_FILE, read_lines, train, write_lines
from ccot_cli.models.training.phi_joint import JointTraining
from ccot_cli.models.training.phi_layerwise import LayerReport, stored_bytes, train_layerwise
from ccot_cli.models.training.phi_report import PhiJudge, PhiReport
from ccot_cli.models.training.queries import Queries
from ccot_cli.names import PRECOMPUTE, SCORE, TRAIN_PHI, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import building, load_examples, load_matching_theta, ready_result
from ccot_cli.stages.query_cache import open_queries
from ccot_cli.stages.start import attach, find_phi, start_inputs
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec
from ccot_cli.workspace.build import Build, remove
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class TrainPhiResult:
    """How φ's rollouts do on the validation problems."""

    ratio: float
    schedule: str
    num_steps: int
    report: dict[str, Any]
    """A `PhiReport` of the saved φ."""
    layers: list[dict[str, Any]]
    """A `LayerReport` for every layer if it was trained layer by layer; else empty."""
    autoregressive_layer: int
    """l."""
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
    """Train and save φ for one ratio; an interrupted run resumes from its last checkpoint.

    Args:
        variant: End of the artifact's key; not empty if the settings are not the workspace's own.
        selected: Key of the `score` artifact to train on; by default the same key as that of the new artifact.

    Raises:
        MissingError: if `score` has not run for this ratio, or there is no φ to start from.
        UsageError: if the layer, the start or the number of epochs of the settings is impossible.
        ResourceError: if a single problem does not fit into memory, or stored states do not fit on the disk.
        DivergedError: if the trained φ generates states that are not finite.
    """
    key = ratio_name(ratio) + variant
    scored = workspace.require(SCORE, selected or key)
    source = workspace.require(PRECOMPUTE)
    inputs = {workspace.input_name(scored, key): scored.fingerprint}
    start = find_phi(workspace, settings.train_phi, key)
    inputs |= start_inputs(start)
    spec = ArtifactSpec(TRAIN_PHI, key, stage_config(settings, TRAIN_PHI), inputs, tuple(overrides))
    if ready := ranks.first(lambda: ready_result(workspace, spec, TrainPhiResult)):
        return ready
    theta = load_matching_theta(settings, source)
    check(settings.train_phi, theta)
    config = _with_layer(settings.train_phi, scored, theta, progress)
    scored.check()
    adapters = Adapters(theta)
    attach(adapters, PHI, config, start)
    if start:
        adapters.clear(PHI, start.layers_of_psi(theta))
    examples = load_examples(theta, source, scored)
    with building(workspace, spec, progress) as build:
        job = _Job(workspace, source, adapters, *examples, config, build, f"φ at r = {ratio:f}", progress)
        layers, num_steps = job.train_layers() if config.schedule == "layerwise" else ([], job.train_jointly())
        adapters.train_only(())
        passes = config.epochs + (config.taught_epochs if config.schedule == "joint" else 0)
        adapters.record(PHI, steps=num_steps, batch_size=config.batch_size, problems=len(job.train), passes=passes)
        adapters.save(PHI, build.folder)
        report = job.last_report or job.judge.report()
        if not all(map(isfinite, report.losses)):
            raise DivergedError(
                "φ generates states that are not finite",
                fix="lower train_phi.learning_rate in ccot.yaml and run it again from the start",
            )
        result = TrainPhiResult(
            ratio=float(ratio),
            schedule=config.schedule,
            num_steps=num_steps,
            report=asdict(report),
            layers=[asdict(report) for report in layers],
            autoregressive_layer=config.layer,
        )
        build.summary.update(asdict(result))
    return result


def check(config: TrainPhiConfig, theta: Theta) -> None:
    """Refuse settings that this model cannot be trained with.

    Raises:
        UsageError: if it has no such layer, or φ would be trained for no epoch.
    """
    if config.autoregressive_layer != AUTO and config.layer > theta.num_layers:
        raise UsageError(
            f"autoregressive_layer is {config.layer}, but {theta.name} has {theta.num_layers} layers",
            fix=f"take {theta.num_layers} or less, or {AUTO}, which finds one",
        )
    if config.taught_epochs + config.epochs == 0 or (config.schedule == "layerwise" and not config.epochs):
        raise UsageError("φ would be trained for no epoch at all", fix="set train_phi.epochs in ccot.yaml")


def _with_layer(config: TrainPhiConfig, scored: Artifact, theta: Theta, progress: Progress) -> TrainPhiConfig:
    """Put a number in the place of `auto`: the layer that `score` found, or the paper's L/2 if it found none."""
    if config.autoregressive_layer != AUTO:
        return config
    found = scored.manifest.summary.get("autoregressive_layer")
    layer = found or max(1, theta.num_layers // 2)
    reason = "the lowest that holds nearly as much as L" if found else "L/2, because no probe tells"
    progress.say(f"l = {layer} of {theta.num_layers}: {reason}")
    return config.model_copy(update={"autoregressive_layer": layer})


@dataclass
class _Job:
    """The training of one ratio."""

    workspace: Workspace
    source: Artifact
    adapters: Adapters
    all_train: list[GoldExample]
    """All training problems; φ may learn from fewer."""
    validation: list[GoldExample]
    config: TrainPhiConfig
    build: Build
    label: str
    progress: Progress
    last_report: PhiReport | None = None
    """Report of the finished φ, if it was made after the last epoch."""

    @property
    def theta(self) -> Theta:
        return self.adapters.theta

    @property
    def train(self) -> list[GoldExample]:
        """The training problems that φ learns from."""
        return self.all_train[: self.config.limit]

    def _queries(self, examples: list[GoldExample]) -> Queries:
        ids, config = [each.query for each in examples], self.config
        return open_queries(
            self.workspace, self.source, self.adapters, ids, config.layer, config.query_under, self.progress
        )

    @cached_property
    def judge(self) -> PhiJudge:
        # Probes are fitted on all problems, so that figures compare whatever φ learns from.
        return PhiJudge(self.adapters, self.all_train, self.validation, self._queries(self.validation), self.config)

    def train_jointly(self) -> int:
        """Train all layers together, and report on the validation rollouts after every epoch.

        Returns:
            The number of steps.
        """
        config = self.config
        training = JointTraining(self.adapters, self.train, self._queries(self.train), config)

        def on_epoch(train_loss: float) -> dict[str, Any]:
            optimiser, report = training.optimiser, self.judge.report()
            self.last_report = report if optimiser.step_count == optimiser.num_steps else None
            at_l, at_last = report.generated_read
            self.progress.say(
                f"epoch {optimiser.step_count // training.steps_per_epoch}: loss {train_loss:.3f};"
                f" validation error {report.loss:.3f}, numbers read at l {at_l:.3f}, at L {at_last:.3f}"
            )
            return {"gold_share": training.gold_fraction, **asdict(report)}

        train(
            training,
            log=self.build.folder / LOG_FILE,
            checkpoint=self.build.scratch(CHECKPOINT_FILE),
            label=self.label,
            checkpoint_steps=config.checkpoint_steps,
            progress=self.progress,
            figures=lambda loss: {"gold_inputs": f"{training.gold_fraction:.0%}", "loss": f"{loss:.3f}"},
            on_epoch=on_epoch,
        )
        return training.optimiser.num_steps

    def train_layers(self) -> tuple[list[LayerReport], int]:
        """Train the layers that are left, with a checkpoint after each.

        Returns:
            A report for every layer, and the number of steps.
        """
        config, checkpoint, log = self.config, self.build.scratch(CHECKPOINT_FILE), self.build.folder / LOG_FILE
        reports = _resume(self.adapters, log, checkpoint)
        # Declared scratch even if it is not used now, because an earlier attempt with less memory may have used it.
        scratch_folder = ranks.first(lambda: self.build.scratch("resting"))
        needed = stored_bytes(self.theta, [*self.train, *self.validation])
        folder = None
        # What an interrupted run left there would count as used.
        ranks.first(lambda: remove(scratch_folder))
        if ranks.is_any(not fits(needed // ranks.size(), self.theta.device)):
            ranks.first(lambda: check_space(self.build.folder, needed))
            folder = scratch_folder / str(ranks.rank())
            folder.mkdir(parents=True, exist_ok=True)
        per_layer = config.epochs * -(-len(self.train) // config.batch_size)
        steps = count(len(reports) * per_layer + 1)
        total = (self.theta.num_layers - len(reports)) * per_layer
        with self.progress.task(self.label, total=total, unit="steps") as advance:

            def on_step(index: int, loss: float) -> None:
                self.progress.measure(next(steps), {"layer": index, "loss": loss})
                advance(1, layer=f"{index}/{self.theta.num_layers}", loss=f"{loss:.4f}")

            for report in train_layerwise(
                self.adapters,
                self.train,
                self.validation,
                config,
                num_trained=len(reports),
                folder=folder,
                on_step=on_step,
            ):
                reports.append(report)
                ranks.first(partial(write_lines, log, [asdict(each) for each in reports]))
                weights = self.adapters.parameters(PHI)
                save_checkpoint(checkpoint, {NUM_TRAINED: torch.tensor(len(reports)), **weights})
        return reports, self.theta.num_layers * per_layer


NUM_TRAINED = "layers"
"""Name in a checkpoint, beside the weights, of the number of layers that are trained."""


def _resume(adapters: Adapters, log: Path, checkpoint: Path) -> list[LayerReport]:
    """Load the weights of an interrupted run, if there was one, and return the reports of the layers it finished."""
    if not ranks.first(lambda: log.exists() and checkpoint.exists()):
        return []
    saved = load_checkpoint(checkpoint)
    num_trained = int(saved[NUM_TRAINED])
    with torch.no_grad():
        for name, parameter in adapters.named_parameters():
            if name in saved:
                parameter.copy_(saved[name])
    return [LayerReport(**line) for line in ranks.first(lambda: read_lines(log, at_least=num_trained))[:num_trained]]
