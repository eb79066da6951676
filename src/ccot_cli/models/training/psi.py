"""Train ψ on answers, and φ's layers above l together with it (paper, section 4.2, LOSS_ψ).

Dimensions: B batch, T tokens that are fed, O answer tokens, M answer tokens of all rows, K contemplation tokens,
D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ccot_cli.config import TrainPsiConfig
from ccot_cli.data.batches import cut
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.memory import shared_parts
from ccot_cli.models.training.contexts import Context
from ccot_cli.models.training.end import end_loss, fresh_end, label_ends
from ccot_cli.models.training.examples import ExamplesByEpoch, PsiExample
from ccot_cli.models.training.loop import Judgement, Training
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.tensors.masks import pad_right


def answer_loss(
    adapters: Adapters,
    sequence: CachedSequence,
    start: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    adapter: str = PSI,
) -> Tensor:
    """Compute the mean cross-entropy of the answers' tokens after `start` (<ANS>), under ψ (paper, LOSS_ψ).

    The arguments are those of `answer_logits`.

    Returns:
        A scalar, the mean over all answer tokens of the batch.
    """
    logits_MV, target_M, _ = answer_logits(adapters, sequence, start, answers, adapter=adapter)
    return F.cross_entropy(logits_MV, target_M)


def answer_logits(
    adapters: Adapters,
    sequence: CachedSequence,
    start: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    adapter: str = PSI,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ψ's logits at the answers' tokens, each given those before it.

    Args:
        sequence: Queries and contemplation tokens; extended.
        start: Ids that each row is given, the same number in all rows, at least one; they have no loss.
        answers: Ids that each row must write, end of sequence included.
        adapter: The adapter that writes.

    Returns:
        The logits in float32 (M, V), the ids to write (M), and where they are in the answers (B, O; M are True).
    """
    theta = adapters.theta
    adapters.use(adapter)
    num_start = len(start[0])
    fed = [[*opening, *answer[:-1]] for opening, answer in zip(start, answers, strict=True)]
    fed_BT, mask_BT = pad_right(fed, fill=theta.pad_id, device=theta.device)
    hidden_BOD = theta.blocks.run_ids(fed_BT, mask_BT, sequence)[:, num_start - 1 :]
    target_BO, mask_BO = pad_right(answers, fill=theta.pad_id, device=theta.device)
    # No logits are computed at padding: they are the largest tensor of a step if whole chains are written.
    return theta.blocks.logits(hidden_BOD[mask_BO]).float(), target_BO[mask_BO], mask_BO


END_WEIGHT = 0.5
"""Weight of END's loss beside the answer's, if φ learns with ψ."""


@dataclass(frozen=True)
class HeldOut:
    """Validation problems, as a method answers them."""

    examples: Sequence[PsiExample]
    context: Context
    """Makes what ψ reads before it answers these."""


class PsiTraining(Training):
    """Trains ψ, and what learns with it in its context; the parameters are declared trainable on construction.

    Args:
        adapters: With a ψ, or the other adapter.
        examples: What ψ learns from: the same in every epoch, or a curriculum.
        context: Makes what ψ reads before it answers.
        stages: Epochs that begin a new stage of the curriculum: the optimiser forgets its moments and warms up again.
        adapter: What learns in ψ's place: the chain decoder, which writes chains instead of answers.
    """

    def __init__(
        self,
        adapters: Adapters,
        examples: Sequence[PsiExample] | ExamplesByEpoch,
        context: Context,
        config: TrainPsiConfig,
        *,
        stages: Sequence[int] = (),
        adapter: str = PSI,
    ) -> None:
        self.adapters, self.context, self.adapter = adapters, context, adapter
        # An epoch's examples are made once; only one epoch's are kept.
        self._examples = lru_cache(maxsize=1)(examples if callable(examples) else lambda epoch: examples)
        self.batch_size, self.seed = config.batch_size, config.seed
        self._recomputes = config.gradient_checkpointing
        parameters = {**adapters.parameters(adapter), **context.trained}
        adapters.train_only(parameters)
        self.end_1W = fresh_end(adapters.theta)
        # φ's layers that learn with ψ can learn to show which token is the last.
        self._teaches_end = any(f".{PHI}." in name for name in context.trained)
        if self._teaches_end:
            parameters["end"] = self.end_1W
        self.lengths = [len(example.query) + len(example.answer) for example in self._examples(0)]
        self.optimiser = Optimiser.from_config(
            parameters,
            config,
            num_steps=config.epochs * self.steps_per_epoch,
            restarts=[epoch * self.steps_per_epoch for epoch in stages],
        )

    def count_tokens(self, batch: Sequence[int]) -> int:
        examples = self._current_examples()
        return sum(examples[number].length for number in batch)

    def _current_examples(self) -> Sequence[PsiExample]:
        return self._examples(self.optimiser.step_count // self.steps_per_epoch)

    def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
        """Compute what a part adds to the answers' mean cross-entropy, and to END's mean loss if φ learns with ψ."""
        examples = self._current_examples()
        part_batch, whole_batch = [examples[number] for number in part], [examples[number] for number in whole]
        start, answers = [example.start for example in part_batch], [example.answer for example in part_batch]
        with self.adapters.theta.blocks.recomputing(self._recomputes):
            prefix = self.context.read(part, part_batch)
            loss = answer_loss(self.adapters, prefix.sequence, start, answers, adapter=self.adapter)
        # A part's means count by its proportion of the batch's tokens.
        loss = loss * (_num_answer(part_batch) / _num_answer(whole_batch))
        if not self._teaches_end:
            return loss
        assert prefix.last_BKD is not None
        counts = [_num_before_end(example) for example in part_batch]
        loss_of_end = end_loss(self.end_1W, *label_ends(prefix.last_BKD.unbind(), counts))
        return loss + END_WEIGHT * loss_of_end * (sum(counts) / sum(map(_num_before_end, whole_batch)))

    def record(self) -> None:
        """Add this training to the history of the adapter."""
        self.adapters.record(
            self.adapter,
            steps=self.optimiser.step_count,
            batch_size=self.batch_size,
            problems=len(self.lengths),
            passes=self.optimiser.step_count // self.steps_per_epoch,
        )

    @torch.no_grad()
    def judge(self, held_out: HeldOut) -> Judgement:
        """Judge ψ on validation problems, teacher-forced: no token is decoded.

        Raises:
            ResourceError: if a single problem does not fit into memory.
        """
        are_right, total = list[bool](), 0.0

        def run(part: Sequence[int]) -> tuple[list[bool], float]:
            batch = [held_out.examples[number] for number in part]
            sequence = held_out.context.read(part, batch).sequence
            start, answers = [each.start for each in batch], [each.answer for each in batch]
            logits_MV, target_M, mask_BO = answer_logits(self.adapters, sequence, start, answers, adapter=self.adapter)
            is_right_BO = ~mask_BO
            is_right_BO[mask_BO] = logits_MV.argmax(dim=1) == target_M
            return is_right_BO.all(dim=1).tolist(), float(F.cross_entropy(logits_MV, target_M, reduction="sum"))

        for marks, loss in shared_parts(cut(range(len(held_out.examples)), self.batch_size), run):
            are_right += marks
            total += loss
        return Judgement(sum(are_right) / len(are_right), total / _num_answer(held_out.examples))


def _num_answer(batch: Sequence[PsiExample]) -> int:
    return sum(len(example.answer) for example in batch)


def _num_before_end(example: PsiExample) -> int:
    """Return k."""
    return example.num_tokens if example.num_before_end is None else example.num_before_end
