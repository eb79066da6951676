"""Train ψ on answers and END on rollouts (paper, section 4.2).

θ and φ's layers 1..l do not change while ψ learns, and only layer l feeds the recurrence. So the contemplation inputs
of every problem are constants: they are rolled out once, and each step is one parallel pass over
[query; contemplation inputs; answer].

Dimensions: B batch, K contemplation tokens, M tokens of many examples, D width.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.data.batches import bucketed
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.blocks import CachedSequence
from ccot_cli.models.base.memory import in_parts
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.end import End, labelled
from ccot_cli.models.decoding.phi import contemplate, replay
from ccot_cli.models.decoding.psi import answer_loss
from ccot_cli.models.selection.gold import place_gold
from ccot_cli.models.training.optimiser import Optimiser, steps_over
from ccot_cli.models.training.queries import Queries, read_query
from ccot_cli.names import OptimiserName
from ccot_cli.tensors.masks import first_columns


@dataclass(frozen=True)
class PsiExample:
    """One problem for ψ."""

    query: list[int]
    """What θ encodes."""
    start: list[int]
    """What ψ is given first: <ANS>, or the token that opens an explicit chain."""
    answer: list[int]
    """What ψ must say, end of sequence included."""
    num_tokens: int
    """How many tokens it reads between query and answer; 0 for none."""
    num_before_end: int | None = None
    """k, where more tokens than that are read."""


Rollouts = list[Tensor]
"""Each problem's contemplation inputs: at least k, D."""


@torch.no_grad()
def roll_out(
    theta: Theta, adapters: Adapters, queries: Queries, num_tokens: Sequence[int], *, layer: int, batch_size: int
) -> Iterator[tuple[int, Tensor]]:
    """Generate every problem's contemplation tokens with φ and yield what was fed, by the problem's number.

    Args:
        num_tokens: How many of every problem.
    """
    lengths = [len(query) for query in queries.queries]

    def run(batch: Sequence[int]) -> list[tuple[int, Tensor]]:
        counts = torch.tensor([num_tokens[number] for number in batch])
        sequence, first_BD = queries.encoded(batch)
        tokens = contemplate(
            theta,
            adapters,
            sequence,
            first_BD,
            layer=layer,
            max_tokens=int(counts.max()),
            num_tokens_B=counts,
        )
        return [(number, tokens.inputs_BKD[row, : num_tokens[number]].clone()) for row, number in enumerate(batch)]

    for batch in bucketed(lengths, batch_size=batch_size, shuffler=random.Random(0)):
        for rollouts in in_parts(batch, run):
            yield from rollouts


@dataclass(frozen=True)
class Read:
    """What ψ reads of some problems before it answers."""

    sequence: CachedSequence
    """The queries, and what comes between them and the answers."""
    lower_BKD: Tensor | None = None
    """φ's contemplation tokens' raw states at index l, where there are any; a row's own come first."""
    last_BKD: Tensor | None = None
    """The same at index L."""


class Context(Protocol):
    """What ψ decodes the answer from, for some problems of the data set."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """What learns with ψ, by name."""
        ...

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Read:
        """Prepare the problems with these numbers, which are these examples in this epoch."""
        ...


@dataclass(frozen=True)
class QueryContext:
    """ψ reads the query itself, which is plain fine-tuning; what else it reads, if anything, is under ψ too."""

    theta: Theta
    adapters: Adapters

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {}

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Read:
        sequence = read_query(self.theta, self.adapters, [example.query for example in batch], adapter=PSI)
        self.append(sequence, [example.num_tokens for example in batch])
        return Read(sequence)

    def append(self, sequence: CachedSequence, counts: Sequence[int]) -> None:
        """Put a number of tokens behind each query, under ψ; here none."""


@dataclass(frozen=True)
class RolloutContext:
    """Kept contemplation inputs, once more through φ in one parallel pass.

    Layers 1..l never see a gradient; those above do where `trains_above` (paper, section 4.2).
    """

    theta: Theta
    adapters: Adapters
    queries: Queries
    rollouts: Rollouts
    layer: int
    trains_above: bool = False

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        layers = range(self.layer, self.theta.num_layers)
        return self.adapters.parameters(PHI, layers=layers) if self.trains_above else {}

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Read:
        inputs = [self.rollouts[number][: each.num_tokens] for number, each in zip(numbers, batch, strict=True)]
        inputs_BKD = pad_sequence(inputs, batch_first=True).to(self.theta.device)
        mask_BK = first_columns([len(rows) for rows in inputs], device=self.theta.device)
        sequence, above = self.queries.sequence(numbers), self.trains_above
        arguments = (self.theta, self.adapters, sequence, inputs_BKD, mask_BK)
        return Read(sequence, *replay(*arguments, layer=self.layer, trains_above=above))


@dataclass(frozen=True)
class GoldContext:
    """Gold states in the contemplation tokens' place: what a perfect φ would leave (paper, section 3.2)."""

    theta: Theta
    adapters: Adapters
    queries: Queries
    gold: Sequence[Tensor]
    """z_0 .. z_k of every problem at every index: 1 + k, L + 1, D."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {}

    @torch.no_grad()
    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample] = ()) -> Read:
        sequence = self.queries.sequence(numbers)
        gold = [self.gold[number][1:] for number in numbers]
        place_gold(self.theta, self.adapters, sequence, gold)
        return Read(sequence)


END_WEIGHT = 0.5
"""Weight of END's loss beside the answer's, where φ learns with ψ."""


def end_loss(weights_1W: Tensor, last_MD: Tensor, is_last_M: Tensor) -> Tensor:
    """Binary cross-entropy of a linear END on states of unit size, with a bias as its last weight.

    It serves to teach φ's layers above l; the END that is used is fitted afterwards.
    """
    last_MD = last_MD.float()
    unit_MD = F.normalize(last_MD, dim=-1) * last_MD.shape[-1] ** 0.5
    logits_M = (F.pad(unit_MD, (0, 1), value=1.0) @ weights_1W.T)[:, 0]
    return F.binary_cross_entropy_with_logits(logits_M, is_last_M.float())


Lessons = Callable[[int], Sequence[PsiExample]]
"""What every problem asks of ψ in an epoch, counted from 0."""


class PsiTraining:
    """Steps over the data set; which parameters learn is fixed on construction.

    Args:
        lessons: What ψ learns from: the same in every epoch, or a curriculum.
        stages: Epochs with which a new stage of the curriculum begins: the optimiser forgets its moments and warms up
            again.
    """

    def __init__(
        self,
        theta: Theta,
        adapters: Adapters,
        lessons: Sequence[PsiExample] | Lessons,
        context: Context,
        *,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        optimiser: OptimiserName = "adamw",
        micro_batch_size: int | None = None,
        seed: int,
        stages: Sequence[int] = (),
    ) -> None:
        self.theta, self.adapters, self.context = theta, adapters, context
        # An epoch's lessons are made once, and the last epoch's are forgotten.
        self._lessons = lru_cache(maxsize=1)(lessons if callable(lessons) else lambda epoch: lessons)
        self.batch_size, self.seed = batch_size, seed
        parameters = {**adapters.parameters(PSI), **context.trained}
        adapters.train_only(parameters)
        self.end_1W = nn.Parameter(torch.zeros(1, theta.model.config.hidden_size + 1, device=theta.device))
        if self._teaches_end:
            parameters["end"] = self.end_1W
        first = self._lessons(0)
        self._lengths = [len(example.query) + len(example.answer) for example in first]
        self.steps_per_epoch = -(-len(first) // batch_size)
        self.optimiser = Optimiser(
            parameters,
            learning_rate=learning_rate,
            num_steps=epochs * self.steps_per_epoch,
            kind=optimiser,
            micro_batch_size=micro_batch_size,
            restarts=[epoch * self.steps_per_epoch for epoch in stages],
        )

    def steps(self) -> Iterator[float]:
        """Train from wherever the optimiser stands to the end, yielding each step's loss."""
        return steps_over(self.optimiser, self._lengths, batch_size=self.batch_size, seed=self.seed, share=self.share)

    @property
    def _teaches_end(self) -> bool:
        """Whether φ learns with ψ, and so may learn to show which token is its last."""
        return any(f".{PHI}." in name for name in self.context.trained)

    def share(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
        """What some examples add to their batch's loss: the answers' cross-entropy, a mean over the batch's tokens.

        Where φ learns with ψ, END's loss is added.
        """
        lessons = self._lessons(self.optimiser.step_count // self.steps_per_epoch)
        batch, every = [lessons[number] for number in part], [lessons[number] for number in whole]
        read = self.context.read(part, batch)
        start, answers = [example.start for example in batch], [example.answer for example in batch]
        answered = answer_loss(self.theta, self.adapters, read.sequence, start, answers)
        answered = answered * (_num_answer(batch) / _num_answer(every))
        if not self._teaches_end:
            return answered
        assert read.last_BKD is not None
        ended = end_loss(self.end_1W, *labelled(read.last_BKD.unbind(), [_before_end(each) for each in batch]))
        return answered + END_WEIGHT * ended * (_num_before_end(batch) / _num_before_end(every))


def _num_answer(batch: Sequence[PsiExample]) -> int:
    return sum(len(example.answer) for example in batch)


def _before_end(example: PsiExample) -> int:
    return example.num_tokens if example.num_before_end is None else example.num_before_end


def _num_before_end(batch: Sequence[PsiExample]) -> int:
    return sum(map(_before_end, batch))


@torch.no_grad()
def token_states(
    context: RolloutContext, examples: Sequence[PsiExample], *, batch_size: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Raw states at index l and at index L of the contemplation tokens that each problem reads: K, D each."""

    def run(numbers: Sequence[int]) -> list[tuple[int, tuple[Tensor, Tensor]]]:
        batch = [examples[number] for number in numbers]
        read = context.read(numbers, batch)
        assert read.lower_BKD is not None
        assert read.last_BKD is not None
        return [
            (number, (lower_KD[: each.num_tokens].clone(), last_KD[: each.num_tokens].clone()))
            for number, lower_KD, last_KD, each in zip(numbers, read.lower_BKD, read.last_BKD, batch, strict=True)
        ]

    lengths = [len(query) for query in context.queries.queries]
    batches = bucketed(lengths, batch_size=batch_size, shuffler=random.Random(0))
    states = dict(found for batch in batches for part in in_parts(batch, run) for found in part)
    lower, last = zip(*(states[number] for number in range(len(examples))), strict=True)
    return [*lower], [*last]


@dataclass(frozen=True)
class EndReport:
    """END against the truth, token by token."""

    true_ends: int
    missed_ends: int
    false_ends: int
    true_continues: int

    @property
    def accuracy(self) -> float:
        total = self.true_ends + self.missed_ends + self.false_ends + self.true_continues
        return (self.true_ends + self.true_continues) / total


def judge_end(end: End, last_MD: Tensor, is_last_M: Tensor) -> EndReport:
    """END's confusion on tokens whose label is known."""
    says_end_M = end(last_MD)
    return EndReport(
        true_ends=int((says_end_M & is_last_M).sum()),
        missed_ends=int((~says_end_M & is_last_M).sum()),
        false_ends=int((says_end_M & ~is_last_M).sum()),
        true_continues=int((~says_end_M & ~is_last_M).sum()),
    )
