"""What ψ reads before it answers: the query alone, φ's kept rollouts, or gold states.

θ and φ's layers 1..l do not change while ψ learns, and only layer l feeds the recurrence. So the contemplation inputs
of every problem are constants: they are rolled out once, and each training step is one parallel pass over
[query; contemplation inputs; answer].

Dimensions: B batch, K contemplation tokens, D width.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.data.batches import bucketed
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.memory import in_parts
from ccot_cli.models.decoding.phi import contemplate, replay
from ccot_cli.models.decoding.query import read_query
from ccot_cli.models.selection.gold import place_gold
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.queries import Queries
from ccot_cli.tensors.masks import first_columns

Rollouts = list[Tensor]
"""Each problem's contemplation inputs: at least k, D."""


@torch.no_grad()
def roll_out(
    adapters: Adapters, queries: Queries, num_tokens: Sequence[int], *, layer: int, batch_size: int
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

    adapters: Adapters

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {}

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Read:
        sequence = read_query(self.adapters, [example.query for example in batch], adapter=PSI)
        self.append(sequence, [example.num_tokens for example in batch])
        return Read(sequence)

    def append(self, sequence: CachedSequence, counts: Sequence[int]) -> None:
        """Put a number of tokens behind each query, under ψ; here none."""


@dataclass(frozen=True)
class RolloutContext:
    """Kept contemplation inputs, once more through φ in one parallel pass.

    Layers 1..l never see a gradient; those above do where `trains_above` (paper, section 4.2).
    """

    adapters: Adapters
    queries: Queries
    rollouts: Rollouts
    layer: int
    trains_above: bool = False

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        layers = range(self.layer, self.adapters.theta.num_layers)
        return self.adapters.parameters(PHI, layers=layers) if self.trains_above else {}

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Read:
        inputs = [self.rollouts[number][: each.num_tokens] for number, each in zip(numbers, batch, strict=True)]
        inputs_BKD = pad_sequence(inputs, batch_first=True).to(self.adapters.theta.device)
        mask_BK = first_columns([len(rows) for rows in inputs], device=self.adapters.theta.device)
        sequence, above = self.queries.sequence(numbers), self.trains_above
        arguments = (self.adapters, sequence, inputs_BKD, mask_BK)
        return Read(sequence, *replay(*arguments, layer=self.layer, trains_above=above))


@dataclass(frozen=True)
class GoldContext:
    """Gold states in the contemplation tokens' place: what a perfect φ would leave (paper, section 3.2)."""

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
        place_gold(self.adapters, sequence, gold)
        return Read(sequence)


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
