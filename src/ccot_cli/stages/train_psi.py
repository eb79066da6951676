"""Train ψ, the answer decoder, and END, the stop classifier (paper, section 4.2)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ccot_cli.config import Settings, stage_config
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training.draft import fit_draft
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.models.training.contexts import RolloutContext, Rollouts, roll_out, token_states
from ccot_cli.models.training.end import MOST_EXTRA, LateEnds, fit_end, judge_end, label_ends
from ccot_cli.models.training.examples import ExamplesByEpoch, PsiExample
from ccot_cli.models.training.loop import CHECKPOINT_FILE, LOG_FILE, train
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.queries import Queries
from ccot_cli.names import PRECOMPUTE, TRAIN_PHI, TRAIN_PSI, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import load_matching_theta, read_problems, ready_result
from ccot_cli.stages.query_cache import open_queries
from ccot_cli.stages.validation import accuracy_of, caps, changed_figures
from ccot_cli.tensors.probes import fit_logistic
from ccot_cli.tensors.select import num_kept
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class TrainPsiResult:
    """How well the trained method does on the validation problems."""

    ratio: float
    num_steps: int
    train_loss: float
    """Mean over the last epoch."""
    num_validation: int
    validation_accuracy: float
    mean_tokens: float
    """Contemplation tokens generated on validation, END deciding."""
    target_tokens: float
    """Mean k."""
    end: dict[str, float]
    """END's confusion on validation tokens."""
    draft: float = 0.0
    """How many of the validation problems' answers begin as is read off the last contemplation token, as a share."""
    decoding: dict[str, Any] = field(default_factory=dict)
    """The caps with which that was measured."""
    was_ready: bool = False


def run(
    workspace: Workspace,
    settings: Settings,
    ratio: Decimal,
    *,
    variant: str = "",
    generator: str | None = None,
    overrides: Sequence[str] = (),
    progress: Progress,
) -> TrainPsiResult:
    """Train one ratio; an interrupted run goes on from its last checkpoint.

    Args:
        variant: Set where the settings are not the workspace's own: the end of the artifact's key.
        generator: Key of the φ to start from; the artifact's own by default.

    Raises:
        MissingError: where an earlier stage has not run for this ratio.
    """
    key = ratio_name(ratio) + variant
    source = workspace.require(PRECOMPUTE)
    phi = workspace.require(TRAIN_PHI, generator or key)
    inputs = {workspace.input_name(phi, key): phi.fingerprint}
    spec = ArtifactSpec(TRAIN_PSI, key, stage_config(settings, TRAIN_PSI), inputs, tuple(overrides))
    if ready := ready_result(workspace, spec, TrainPsiResult):
        return replace(ready, **changed_figures(ready.decoding, workspace, settings, spec, progress))
    job = _Job(workspace, settings, ratio, load_matching_theta(settings, source), source, phi, progress)
    with workspace.building(spec) as build:
        result = job.train(build)
        build.summary.update(asdict(result))
    return result


@dataclass
class _Job:
    """The training of one ratio."""

    workspace: Workspace
    settings: Settings
    ratio: Decimal
    theta: Theta
    source: Artifact
    phi: Artifact
    progress: Progress

    def __post_init__(self) -> None:
        self.theta.require_resident("training ψ")
        chosen = self.settings.train_psi
        self.adapters = Adapters(self.theta)
        self.layer = self.phi.manifest.config["train_phi"]["autoregressive_layer"]
        self.adapters.load(PHI, self.phi.folder / PHI)
        self.adapters.add(PSI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=chosen.seed)
        stored = read_problems(self.source)
        self.held_out = [item.problem for item in stored if item.is_validation]
        encoder = self.theta.encoder
        training = encoder.problems([item.problem for item in stored if not item.is_validation])
        self.chain_lengths = [len(each.chain) for each in training]
        self.train_examples = self._examples(training)
        self.held_examples = self._examples(encoder.problems(self.held_out))

    def _examples(self, problems: Sequence[EncodedProblem]) -> list[PsiExample]:
        """What ψ learns from these problems, with the true k."""
        marker = self.theta.encoder.answer_marker
        return [PsiExample(each.query, marker, each.answer, num_kept(self.ratio, len(each.chain))) for each in problems]

    def _queries(self, examples: list[PsiExample]) -> Queries:
        ids = [each.query for each in examples]
        return open_queries(self.workspace, self.source, self.adapters, ids, self.layer, self.progress)

    def _context(self, queries: Queries) -> tuple[RolloutContext, Sequence[PsiExample] | ExamplesByEpoch]:
        """What ψ learns to decode from, and how much of it."""
        chosen, examples = self.settings.train_psi, self.train_examples
        rollouts = self._roll_out(queries, self._rolled_out)
        context = RolloutContext(self.adapters, queries, rollouts, self.layer, trains_above=chosen.unfreeze == "above")
        if not self._may_be_late:
            return context, examples
        last = token_states(context, self._rolled_out, batch_size=self._forward_size)[1]
        ends = LateEnds(last, [each.num_tokens for each in examples], seed=chosen.seed)

        def by_epoch(epoch: int) -> list[PsiExample]:
            counts = ends(epoch)
            return [
                replace(each, num_tokens=count, num_before_end=each.num_tokens)
                for each, count in zip(examples, counts, strict=True)
            ]

        return context, by_epoch

    @property
    def _may_be_late(self) -> bool:
        """Whether ψ learns from rollouts that END might have ended behind the k-th token."""
        return self.settings.train_psi.ends == "late"

    @cached_property
    def _rolled_out(self) -> list[PsiExample]:
        """The training problems with as many tokens as φ generates for them."""
        if not self._may_be_late:
            return self.train_examples
        # A rollout is never longer than the chain, for which the model has room.
        return [
            replace(each, num_tokens=min(each.num_tokens + MOST_EXTRA, length))
            for each, length in zip(self.train_examples, self.chain_lengths, strict=True)
        ]

    def _roll_out(self, queries: Queries, examples: list[PsiExample]) -> Rollouts:
        rollouts = {}
        counts = [each.num_tokens for each in examples]
        with self.progress.task("contemplation tokens", total=len(examples), unit="problems") as advance:
            for number, inputs_KD in roll_out(
                self.adapters, queries, counts, layer=self.layer, batch_size=self._forward_size
            ):
                rollouts[number] = inputs_KD
                advance()
        return [rollouts[number] for number in range(len(examples))]

    @property
    def _forward_size(self) -> int:
        """Problems at a time where no gradient is kept."""
        return 2 * self.settings.train_psi.batch_size

    def train(self, build: Build) -> TrainPsiResult:
        """ψ, then END with ψ frozen, then a look at the validation problems."""
        chosen = self.settings.train_psi
        queries = self._queries(self.train_examples)
        context, examples = self._context(queries)
        training = PsiTraining(self.adapters, examples, context, chosen)
        train_loss = train(
            training,
            log=build.folder / LOG_FILE,
            checkpoint=build.scratch(CHECKPOINT_FILE),
            label=f"ψ at r = {self.ratio:f}",
            checkpoint_steps=chosen.checkpoint_steps,
            progress=self.progress,
        )
        self.adapters.train_only(())
        self.adapters.save(PSI, build.folder)
        self.adapters.save(PHI, build.folder)
        info = MethodInfo("ccot", f"{self.ratio:f}", self.layer)
        info.save(build.folder)
        # φ's layers up to l have not learned, so its inputs are those that were rolled out.
        read = self._states(queries, context.rollouts, self._rolled_out, self.train_examples)
        held_out = self._held_states()
        draft = fit_draft(*read.answered, validation=held_out.answered)
        draft.save(build.folder)
        end = fit_end(fit_logistic(*read.label_ends).stricter(chosen.end_threshold), read.lower, read.last)
        end.save(build.folder)
        method = CcotMethod(self.adapters, info, self.settings.decoding, end, draft)
        accuracy, mean_tokens = accuracy_of(method, self.held_out, self.settings.eval.batch_size, self.progress)
        report = judge_end(end, *held_out.label_ends)
        return TrainPsiResult(
            ratio=float(self.ratio),
            num_steps=training.optimiser.step_count,
            train_loss=train_loss,
            num_validation=len(self.held_out),
            validation_accuracy=accuracy,
            mean_tokens=mean_tokens,
            target_tokens=sum(each.num_tokens for each in self.held_examples) / len(self.held_out),
            end={**asdict(report), "accuracy": report.accuracy},
            draft=draft.accuracy,
            decoding=caps(self.settings),
        )

    def _held_states(self) -> "_States":
        """Of the validation problems, with the true k."""
        held = self.held_examples
        queries = self._queries(held)
        return self._states(queries, self._roll_out(queries, held), held, held)

    def _states(
        self, queries: Queries, rollouts: Rollouts, rolled_out: list[PsiExample], examples: list[PsiExample]
    ) -> "_States":
        context = RolloutContext(self.adapters, queries, rollouts, self.layer)
        return _States(*token_states(context, rolled_out, batch_size=self._forward_size), examples)


@dataclass(frozen=True)
class _States:
    """Raw states of every problem's contemplation tokens, k of them or more."""

    lower: list[Tensor]
    """At index l: K, D of each."""
    last: list[Tensor]
    """At index L."""
    examples: list[PsiExample]
    """With the true k."""

    @property
    def label_ends(self) -> tuple[Tensor, Tensor]:
        """Every token's at index L up to the k-th, and whether it is that."""
        return label_ends(self.last, [each.num_tokens for each in self.examples])

    @property
    def answered(self) -> tuple[Tensor, Tensor]:
        """Every problem's k-th token's at index L, and what its answer begins with."""
        final_MD = torch.stack(
            [last_KD[each.num_tokens - 1] for last_KD, each in zip(self.last, self.examples, strict=True)]
        )
        return final_MD, torch.tensor([each.answer[0] for each in self.examples], device=final_MD.device)
