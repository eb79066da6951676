"""Train ψ, the answer decoder, and END, the stop classifier (paper, section 4.2).

Dimensions: B problems, K contemplation tokens of one, M contemplation tokens of all problems, D width.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ccot_cli import ranks
from ccot_cli.config import Settings, stage_config
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.models.training.contexts import RolloutContext, Rollouts, roll_out, token_states
from ccot_cli.models.training.draft import fit_draft
from ccot_cli.models.training.end import MOST_EXTRA, LateEnds, fit_end, judge_end, label_ends
from ccot_cli.models.training.examples import ExamplesByEpoch, PsiExample
from ccot_cli.models.training.loop import CHECKPOINT_FILE, LOG_FILE, train
from ccot_cli.models.training.psi import HeldOut, PsiTraining
from ccot_cli.models.training.queries import Queries
from ccot_cli.names import PRECOMPUTE, TRAIN_PHI, TRAIN_PSI, QueryUnder, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages.inputs import building, load_matching_theta, ready_result
from ccot_cli.stages.problems import read_problems
from ccot_cli.stages.query_cache import open_queries
from ccot_cli.stages.start import Start, attach, find_psi, start_inputs
from ccot_cli.stages.validation import MOST_JUDGED, calibrate, caps, changed_figures, validate_method
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
    """Mean loss of the last epoch."""
    num_validation: int
    validation_accuracy: float
    mean_tokens: float
    """Mean number of contemplation tokens on validation problems, if END decides."""
    target_tokens: float
    """Mean k of the validation problems."""
    end: dict[str, float]
    """END's confusion matrix and accuracy on validation tokens."""
    draft: float = 0.0
    """Proportion of the validation problems for which the draft of the answer's first token is right."""
    decoding: dict[str, Any] = field(default_factory=dict)
    """The caps that accuracy and tokens were measured with."""
    kept_step: int | None = None
    """The step whose weights did best on validation problems, and were kept; None if an older version trained it."""
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
    """Train and save ψ and END for one ratio; an interrupted run resumes from its last checkpoint.

    Args:
        variant: End of the artifact's key; not empty if the settings are not the workspace's own.
        generator: Key of the φ to start from; by default the same key as that of the new artifact.

    Raises:
        MissingError: if an earlier stage has not run for this ratio, or there is no adapter to start from.
        UsageError: if the adapter to start from has another rank or alpha.
        ResourceError: if a single problem does not fit into memory.
    """
    key = ratio_name(ratio) + variant
    source = workspace.require(PRECOMPUTE)
    phi = workspace.require(TRAIN_PHI, generator or key)
    # `precompute` is one of φ's inputs already, but φ may be gone, and answering reads the model of `precompute`.
    inputs = {PRECOMPUTE: source.fingerprint, workspace.input_name(phi, key): phi.fingerprint}
    start = find_psi(settings.train_psi, workspace.folder(TRAIN_PSI, key))
    inputs |= start_inputs(start)
    spec = ArtifactSpec(TRAIN_PSI, key, stage_config(settings, TRAIN_PSI), inputs, tuple(overrides))
    if ready := ranks.first(lambda: ready_result(workspace, spec, TrainPsiResult)):
        return replace(ready, **changed_figures(ready.decoding, workspace, settings, spec, progress))
    job = _Job(workspace, settings, ratio, load_matching_theta(settings, source), source, phi, start, progress)
    with building(workspace, spec, progress) as build:
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
    start: Start | None
    progress: Progress

    def __post_init__(self) -> None:
        config = self.settings.train_psi
        self.adapters = Adapters(self.theta)
        trained = self.phi.manifest
        self.layer = trained.summary["autoregressive_layer"]
        self.query_under: QueryUnder = trained.config["train_phi"]["query_under"]
        self.phi.check()
        self.adapters.load(PHI, self.phi.folder / PHI)
        attach(self.adapters, PSI, config, self.start)
        if self.start and config.unfreeze == "above":
            self._take_up_layers(self.start)
        stored = read_problems(self.source)
        self.held_out = [item.problem for item in stored if item.is_validation]
        encoder = self.theta.encoder
        training = encoder.problems([item.problem for item in stored if not item.is_validation][: config.limit])
        self.chain_lengths = [len(each.chain) for each in training]
        self.train_examples = self._examples(training)
        self.held_out_examples = self._examples(encoder.problems(self.held_out))

    def _take_up_layers(self, start: Start) -> None:
        """Put into φ the layers above l that learned together with the ψ to start from, if they are known."""
        if (phi := start.phi_of_method) is None:
            return
        layers = range(max(self.layer, start.layers_of_psi(self.theta).start), self.theta.num_layers)
        if not self.adapters.load_layers(PHI, phi, layers):
            self.progress.say(f"the layers of φ that learned with {start.name} have another rank or alpha: left out")

    def _examples(self, problems: Sequence[EncodedProblem]) -> list[PsiExample]:
        """Return what ψ learns from these problems, with k contemplation tokens each."""
        marker = self.theta.encoder.answer_marker
        return [PsiExample(each.query, marker, each.answer, num_kept(self.ratio, len(each.chain))) for each in problems]

    def _queries(self, examples: list[PsiExample]) -> Queries:
        ids = [each.query for each in examples]
        return open_queries(
            self.workspace, self.source, self.adapters, ids, self.layer, self.query_under, self.progress
        )

    def _context(self, queries: Queries) -> tuple[RolloutContext, Sequence[PsiExample] | ExamplesByEpoch]:
        """Return the rollouts that ψ learns to decode from, and the examples: fixed, or by epoch if ends are late."""
        config, examples = self.settings.train_psi, self.train_examples
        rollouts = self._roll_out(queries, self._rollout_examples)
        context = RolloutContext(self.adapters, queries, rollouts, self.layer, trains_above=config.unfreeze == "above")
        if not self._has_late_ends:
            return context, examples
        last = token_states(context, self._rollout_examples, batch_size=self._forward_size)[1]
        counts = [each.num_tokens for each in examples]
        late_ends = LateEnds(last, counts, threshold=config.end_threshold, seed=config.seed)

        def by_epoch(epoch: int) -> list[PsiExample]:
            counts = late_ends(epoch)
            return [
                replace(each, num_tokens=count, num_before_end=each.num_tokens)
                for each, count in zip(examples, counts, strict=True)
            ]

        return context, by_epoch

    @property
    def _has_late_ends(self) -> bool:
        """Whether ψ also learns from rollouts that go on after the k-th token, as if END had missed it."""
        return self.settings.train_psi.ends == "late"

    @cached_property
    def _rollout_examples(self) -> list[PsiExample]:
        """The training examples with as many tokens as φ generates for them: k, or more if ends are late."""
        if not self._has_late_ends:
            return self.train_examples
        # A rollout no longer than the chain fits into the model's positions, because the chain does.
        return [
            replace(each, num_tokens=min(each.num_tokens + MOST_EXTRA, length))
            for each, length in zip(self.train_examples, self.chain_lengths, strict=True)
        ]

    def _roll_out(self, queries: Queries, examples: list[PsiExample]) -> Rollouts:
        """Generate the contemplation tokens of these examples: inputs K, D by problem."""
        counts = [each.num_tokens for each in examples]
        with self.progress.task("contemplation tokens", total=len(examples), unit="problems") as advance:
            return roll_out(
                self.adapters, queries, counts, layer=self.layer, batch_size=self._forward_size, advance=advance
            )

    @property
    def _forward_size(self) -> int:
        """Problems per pass without gradients, which take less memory."""
        return 2 * self.settings.train_psi.batch_size

    def train(self, build: Build) -> TrainPsiResult:
        """Train ψ, then fit the draft and END with ψ frozen, then measure and calibrate on validation problems."""
        config = self.settings.train_psi
        queries = self._queries(self.train_examples)
        context, examples = self._context(queries)
        training = PsiTraining(self.adapters, examples, context, config)
        held_out_queries = self._queries(self.held_out_examples)
        # What φ's tokens are fed comes from layers that do not learn, so it serves until the end.
        held_out_rollouts = self._roll_out(held_out_queries, self.held_out_examples)
        held_out = RolloutContext(self.adapters, held_out_queries, held_out_rollouts, self.layer)
        judged = HeldOut(self.held_out_examples[:MOST_JUDGED], held_out)
        trained = train(
            training,
            log=build.folder / LOG_FILE,
            checkpoint=build.scratch(CHECKPOINT_FILE),
            label=f"ψ at r = {self.ratio:f}",
            checkpoint_steps=config.checkpoint_steps,
            progress=self.progress,
            judge=lambda: training.judge(judged),
        )
        self.adapters.train_only(())
        training.record()
        self.adapters.save(PSI, build.folder)
        self.adapters.save(PHI, build.folder)
        info = MethodInfo("ccot", f"{self.ratio:f}", self.layer, query_under=self.query_under)
        info.save(build.folder)
        # Only φ's layers above l may have learned, so the inputs that were rolled out before training are still right.
        states = self._states(context, self._rollout_examples, self.train_examples)
        held_out_states = self._states(held_out, self.held_out_examples, self.held_out_examples)
        draft = fit_draft(*states.draft_data, validation=held_out_states.draft_data)
        draft.save(build.folder)
        end = fit_end(fit_logistic(*states.end_data).stricter(config.end_threshold), states.lower, states.last)
        end.save(build.folder)
        method = CcotMethod(self.adapters, info, self.settings.decoding, end, draft)
        measured = validate_method(method, self.held_out, self.settings.eval.batch_size, self.progress)
        calibrate(measured, build.folder, self.progress)
        report = judge_end(end, *held_out_states.end_data)
        return TrainPsiResult(
            ratio=float(self.ratio),
            num_steps=training.optimiser.step_count,
            kept_step=trained.kept_step,
            train_loss=trained.loss,
            num_validation=len(self.held_out),
            validation_accuracy=measured.accuracy,
            mean_tokens=measured.mean_tokens,
            target_tokens=sum(each.num_tokens for each in self.held_out_examples) / len(self.held_out),
            end={**asdict(report), "accuracy": report.accuracy},
            draft=draft.accuracy,
            decoding=caps(self.settings),
        )

    def _states(
        self, context: RolloutContext, rollout_examples: list[PsiExample], examples: list[PsiExample]
    ) -> "_States":
        """Compute the states of the tokens of a context's rollouts.

        Args:
            rollout_examples: The examples with as many tokens as their rollouts.
            examples: The examples with k tokens.
        """
        return _States(*token_states(context, rollout_examples, batch_size=self._forward_size), examples)


@dataclass(frozen=True)
class _States:
    """Raw states of every problem's contemplation tokens, k or more."""

    lower: list[Tensor]
    """At index l, by problem: K, D."""
    last: list[Tensor]
    """At index L, by problem: K, D."""
    examples: list[PsiExample]
    """With k tokens each."""

    @property
    def end_data(self) -> tuple[Tensor, Tensor]:
        """What END learns from: states at index L of every problem's first k tokens (M, D), and which are k-th (M)."""
        return label_ends(self.last, [each.num_tokens for each in self.examples])

    @property
    def draft_data(self) -> tuple[Tensor, Tensor]:
        """What the draft learns from: states at index L of the k-th tokens (B, D), and the answers' first ids (B)."""
        final_BD = torch.stack(
            [last_KD[each.num_tokens - 1] for last_KD, each in zip(self.last, self.examples, strict=True)]
        )
        return final_BD, torch.tensor([each.answer[0] for each in self.examples], device=final_BD.device)
