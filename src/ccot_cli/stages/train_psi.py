"""Train ψ, the answer decoder, and END, the stop classifier (paper, section 4.2)."""

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ccot_cli.config import Settings, stage_config
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.adapters import PHI, PSI, Adapters
from ccot_cli.models.ccot import CcotReasoner
from ccot_cli.models.draft import Draft, fit_draft
from ccot_cli.models.end import BEYOND, End, LateEnds, fit_end, labelled
from ccot_cli.models.psi_training import (
    Context,
    Lessons,
    PsiExample,
    PsiTraining,
    RolloutContext,
    Rollouts,
    UnrolledContext,
    judge_end,
    roll_out,
    token_states,
)
from ccot_cli.models.queries import Queries
from ccot_cli.models.reasoner import Method
from ccot_cli.models.theta import Theta
from ccot_cli.names import ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages import precompute, score, train_phi
from ccot_cli.stages.queries import open_queries
from ccot_cli.stages.training import take_steps
from ccot_cli.stages.validation import caps, changed_figures, marks_of
from ccot_cli.tensors.probes import fit_logistic
from ccot_cli.tensors.select import num_kept
from ccot_cli.workspace import Artifact, Build, Workspace

STAGE = "train-psi"

SURENESS = (0.0, 1.0, 2.0, 3.0)
"""Logits that END may have to exceed: the paper's 0, and where ψ learns from late ends, whichever validates best."""


@dataclass(frozen=True)
class TrainPsiResult:
    """How well the trained method does on the validation problems."""

    ratio: str
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
    sureness: float = 0.0
    """What END's logit has to exceed. Where several were tried, the accuracy is that of one half of the problems under
    what the other half would choose, and the other way round."""
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
    overrides: Rows[str] = (),
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
    source = workspace.require(precompute.STAGE)
    phi = workspace.require(train_phi.STAGE, generator or key)
    config = stage_config(settings, STAGE)
    inputs = {workspace.input_name(phi, key): phi.fingerprint}
    if ready := workspace.ready(STAGE, key, config=config, inputs=inputs, overrides=overrides):
        result = TrainPsiResult(**{**ready.manifest.summary, "was_ready": True})
        return replace(result, **changed_figures(result.decoding, settings, source, ready, progress))
    workspace.refuse_while_busy()
    job = _Job(workspace, settings, ratio, score.load_matching_theta(settings, source), source, phi, progress)
    with workspace.building(STAGE, key, config=config, inputs=inputs, overrides=overrides) as build:
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
        self.theta.require_whole("training ψ")
        chosen = self.settings.train_psi
        self.adapters = Adapters(self.theta)
        self.layer = self.phi.manifest.config["train_phi"]["autoregressive_layer"]
        self.adapters.load(PHI, self.phi.folder / PHI)
        self.adapters.add(PSI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=chosen.seed)
        stored = precompute.read_problems(self.source)
        self.held_out = [item.problem for item in stored if item.is_validation]
        encoder = self.theta.encoder
        training = encoder.problems([item.problem for item in stored if not item.is_validation])
        self.chain_lengths = [len(each.chain) for each in training]
        self.train_examples = self._examples(training)
        self.held_examples = self._examples(encoder.problems(self.held_out))

    def _examples(self, problems: Rows[EncodedProblem]) -> list[PsiExample]:
        """What ψ learns from these problems, with the true k."""
        marker = self.theta.encoder.answer_marker
        return [PsiExample(each.query, marker, each.answer, num_kept(self.ratio, len(each.chain))) for each in problems]

    def _queries(self, examples: list[PsiExample]) -> Queries:
        ids = [each.query for each in examples]
        return open_queries(self.workspace, self.source, self.adapters, ids, self.layer, self.progress)

    def _lessons(self, queries: Queries) -> tuple[Context, Rows[PsiExample] | Lessons]:
        """What ψ learns to decode from, and how much of it."""
        chosen, examples = self.settings.train_psi, self.train_examples
        if chosen.unfreeze == "all":
            return UnrolledContext(self.theta, self.adapters, queries, self.layer), examples
        rollouts = self._roll_out(queries, self._rolled_out)
        context = RolloutContext(
            self.theta, self.adapters, queries, rollouts, self.layer, trains_above=chosen.unfreeze == "above"
        )
        if not self._may_be_late:
            return context, examples
        last = token_states(context, self._rolled_out, batch_size=self._forward_size)[1]
        ends = LateEnds(last, [each.num_tokens for each in examples], seed=chosen.seed)

        def lessons(epoch: int) -> list[PsiExample]:
            counts = ends(epoch)
            return [
                replace(each, num_tokens=count, num_before_end=each.num_tokens)
                for each, count in zip(examples, counts, strict=True)
            ]

        return context, lessons

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
            replace(each, num_tokens=min(each.num_tokens + BEYOND, length))
            for each, length in zip(self.train_examples, self.chain_lengths, strict=True)
        ]

    def _roll_out(self, queries: Queries, examples: list[PsiExample]) -> Rollouts:
        rollouts = {}
        counts = [each.num_tokens for each in examples]
        with self.progress.task("contemplation tokens", total=len(examples), unit="problems") as advance:
            for number, inputs_KD in roll_out(
                self.theta, self.adapters, queries, counts, layer=self.layer, batch_size=self._forward_size
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
        context, lessons = self._lessons(queries)
        training = PsiTraining(
            self.theta,
            self.adapters,
            lessons,
            context,
            epochs=chosen.epochs,
            batch_size=chosen.batch_size,
            learning_rate=chosen.learning_rate,
            optimiser=chosen.optimiser,
            micro_batch_size=chosen.micro_batch_size,
            seed=chosen.seed,
        )
        train_loss = take_steps(
            training,
            build,
            label=f"ψ at r = {self.ratio:f}",
            checkpoint_steps=chosen.checkpoint_steps,
            progress=self.progress,
        )
        self.adapters.train_only(())
        self.adapters.save(PSI, build.folder)
        self.adapters.save(PHI, build.folder)
        method = Method("ccot", f"{self.ratio:f}", self.layer)
        method.save(build.folder)
        # What φ is fed has changed only where its layers up to l have learned.
        rollouts = (
            context.rollouts if isinstance(context, RolloutContext) else self._roll_out(queries, self.train_examples)
        )
        read, held_out = self._states(queries, rollouts, self._rolled_out, self.train_examples), self._held_states()
        draft = fit_draft(*read.answered, validation=held_out.answered)
        draft.save(build.folder)
        end, sureness, accuracy, mean_tokens = self._settle_end(method, read, draft)
        end.save(build.folder)
        report = judge_end(end, *held_out.labelled)
        return TrainPsiResult(
            ratio=f"{self.ratio:f}",
            num_steps=training.optimiser.step_count,
            train_loss=train_loss,
            num_validation=len(self.held_out),
            validation_accuracy=accuracy,
            mean_tokens=mean_tokens,
            target_tokens=sum(each.num_tokens for each in self.held_examples) / len(self.held_out),
            end={**asdict(report), "accuracy": report.accuracy},
            sureness=sureness,
            draft=draft.share,
            decoding=caps(self.settings),
        )

    def _settle_end(self, method: Method, read: "_States", draft: Draft) -> tuple[End, float, float, float]:
        """END, how sure it has to be, and what validation comes to then: accuracy and the mean number of tokens.

        To a ψ that has learned to read a token too many, ending late costs less than ending early.
        """
        decoding, batch_size = self.settings.decoding, self.settings.eval.batch_size
        fitted = fit_logistic(*read.labelled)
        ends: dict[float, End] = {}
        marks: dict[float, list[bool]] = {}
        tokens: dict[float, float] = {}
        for sureness in SURENESS if self._may_be_late else SURENESS[:1]:
            ends[sureness] = fit_end(fitted.stricter(sureness), read.lower, read.last)
            reasoner = CcotReasoner(self.theta, self.adapters, method, decoding, ends[sureness], draft)
            marks[sureness], tokens[sureness] = marks_of(reasoner, self.held_out, batch_size, self.progress)
        best = most_right(marks)
        return ends[best], best, unflattered(marks), tokens[best]

    def _held_states(self) -> "_States":
        """Of the validation problems, with the true k."""
        held = self.held_examples
        queries = self._queries(held)
        return self._states(queries, self._roll_out(queries, held), held, held)

    def _states(
        self, queries: Queries, rollouts: Rollouts, rolled_out: list[PsiExample], examples: list[PsiExample]
    ) -> "_States":
        context = RolloutContext(self.theta, self.adapters, queries, rollouts, self.layer)
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
    def labelled(self) -> tuple[Tensor, Tensor]:
        """Every token's at index L up to the k-th, and whether it is that."""
        return labelled(self.last, [each.num_tokens for each in self.examples])

    @property
    def answered(self) -> tuple[Tensor, Tensor]:
        """Every problem's k-th token's at index L, and what its answer begins with."""
        final_MD = torch.stack(
            [last_KD[each.num_tokens - 1] for last_KD, each in zip(self.last, self.examples, strict=True)]
        )
        return final_MD, torch.tensor([each.answer[0] for each in self.examples], device=final_MD.device)


def most_right(marks: Mapping[float, Rows[bool]]) -> float:
    """The choice under which most problems are right; the first of several."""
    return max(marks, key=lambda choice: sum(marks[choice]))


def unflattered(marks: Mapping[float, Rows[bool]]) -> float:
    """The accuracy of such a choice on problems that had no part in it: each half is judged by what the other chose."""
    halves = [{choice: each[start::2] for choice, each in marks.items()} for start in (0, 1)]
    judged = [half[most_right(other)] for half, other in zip(halves, reversed(halves), strict=True)]
    return fmean(mark for half in judged for mark in half)
