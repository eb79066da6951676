"""Train ψ on answers, and φ's layers above l with it (paper, section 4.2, LOSS_ψ).

Dimensions: B batch, T tokens, O answer tokens, K contemplation tokens, D width.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ccot_cli.config import TrainPsiConfig
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.training.contexts import Context
from ccot_cli.models.training.end import end_loss, label_ends
from ccot_cli.models.training.examples import ExamplesByEpoch, PsiExample
from ccot_cli.models.training.loop import Training
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.tensors.masks import pad_right


def answer_loss(
    adapters: Adapters,
    sequence: CachedSequence,
    start: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
) -> Tensor:
    """Mean cross-entropy of the answers' tokens after `start` (<ANS>), under ψ (paper, LOSS_ψ).

    Args:
        sequence: Query and contemplation tokens so far.
        start: Ids that every row is given, the same number in each, at least one; not counted.
        answers: Ids that every row must say, end of sequence included.
    """
    theta = adapters.theta
    adapters.use(PSI)
    given = len(start[0])
    fed = [[*opening, *answer[:-1]] for opening, answer in zip(start, answers, strict=True)]
    fed_BT, mask_BT = pad_right(fed, fill=theta.pad_id, device=theta.device)
    hidden_BOD = theta.blocks.run_ids(fed_BT, mask_BT, sequence)[:, given - 1 :]
    target_BO, mask_BO = pad_right(answers, fill=theta.pad_id, device=theta.device)
    # Padding gets no logits: they are the largest tensor of a step that writes whole chains.
    return F.cross_entropy(theta.blocks.logits(hidden_BOD[mask_BO]).float(), target_BO[mask_BO])


END_WEIGHT = 0.5
"""Weight of END's loss beside the answer's, if φ learns with ψ."""


class PsiTraining(Training):
    """Steps over the data set; which parameters learn is fixed on construction.

    Args:
        examples: What ψ learns from: the same in every epoch, or a curriculum.
        context: What ψ reads before it answers.
        stages: Epochs with which a new stage of the curriculum begins: the optimiser forgets its moments and warms up
            again.
    """

    def __init__(
        self,
        adapters: Adapters,
        examples: Sequence[PsiExample] | ExamplesByEpoch,
        context: Context,
        config: TrainPsiConfig,
        *,
        stages: Sequence[int] = (),
    ) -> None:
        self.adapters, self.context = adapters, context
        # An epoch's examples are made once, and those of the last epoch are dropped.
        self._examples = lru_cache(maxsize=1)(examples if callable(examples) else lambda epoch: examples)
        self.batch_size, self.seed = config.batch_size, config.seed
        parameters = {**adapters.parameters(PSI), **context.trained}
        adapters.train_only(parameters)
        theta = adapters.theta
        self.end_1W = nn.Parameter(torch.zeros(1, theta.model.config.hidden_size + 1, device=theta.device))
        if self._teaches_end:
            parameters["end"] = self.end_1W
        self.lengths = [len(example.query) + len(example.answer) for example in self._examples(0)]
        self.optimiser = Optimiser.from_config(
            parameters,
            config,
            num_steps=config.epochs * self.steps_per_epoch,
            restarts=[epoch * self.steps_per_epoch for epoch in stages],
        )

    @property
    def _teaches_end(self) -> bool:
        """Whether φ learns with ψ, and so may learn to show which token is its last."""
        return any(f".{PHI}." in name for name in self.context.trained)

    def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
        """Compute the answers' cross-entropy, a mean over the batch's tokens, and END's loss if φ learns with ψ."""
        examples = self._examples(self.optimiser.step_count // self.steps_per_epoch)
        batch, every = [examples[number] for number in part], [examples[number] for number in whole]
        read = self.context.read(part, batch)
        start, answers = [example.start for example in batch], [example.answer for example in batch]
        answered = answer_loss(self.adapters, read.sequence, start, answers)
        answered = answered * (_num_answer(batch) / _num_answer(every))
        if not self._teaches_end:
            return answered
        assert read.last_BKD is not None
        ended = end_loss(self.end_1W, *label_ends(read.last_BKD.unbind(), [_before_end(each) for each in batch]))
        return answered + END_WEIGHT * ended * (_num_before_end(batch) / _num_before_end(every))


def _num_answer(batch: Sequence[PsiExample]) -> int:
    return sum(len(example.answer) for example in batch)


def _before_end(example: PsiExample) -> int:
    return example.num_tokens if example.num_before_end is None else example.num_before_end


def _num_before_end(batch: Sequence[PsiExample]) -> int:
    return sum(map(_before_end, batch))
