"""What ψ reads before it answers, in training: the query alone, φ's contemplation tokens, or gold states.

θ and φ's layers 1..l do not change while ψ learns, and the recurrence feeds back states at index l only. So the inputs
of the contemplation tokens are constants. They are rolled out once, and each training step is one parallel pass over
[query; contemplation inputs; answer].

Dimensions: B batch, K contemplation tokens, D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.memory import by_number
from ccot_cli.models.decoding.explanation import KeptTokens, append_told, hidden_columns
from ccot_cli.models.decoding.phi import contemplate, replay
from ccot_cli.models.decoding.query import read_query
from ccot_cli.models.selection.gold import place_gold
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.queries import Queries
from ccot_cli.tensors.masks import first_columns

Rollouts = list[Tensor]
"""By problem, the inputs of its contemplation tokens: K, D, with K >= k."""


@torch.no_grad()
def roll_out(
    adapters: Adapters,
    queries: Queries,
    num_tokens: Sequence[int],
    *,
    layer: int,
    batch_size: int,
    advance: Callable[[int], object] = lambda count: None,
) -> Rollouts:
    """Generate every problem's contemplation tokens with φ; return what they were fed.

    Args:
        num_tokens: K of every problem.
        layer: Autoregressive layer l.
        batch_size: Problems in one rollout; fewer if memory does not suffice.
        advance: Called with the number of problems that are done.

    Raises:
        ResourceError: if a single problem does not fit into memory.
    """

    def run(batch: Sequence[int]) -> list[Tensor]:
        counts = torch.tensor([num_tokens[number] for number in batch])
        sequence, first_BD = queries.encoded(batch)
        tokens = contemplate(adapters, sequence, first_BD, layer=layer, max_tokens=counts)
        # Copies, because views would keep the whole batch in memory.
        return [tokens.inputs_BKD[row, : num_tokens[number]].clone() for row, number in enumerate(batch)]

    return by_number([*map(len, queries.queries)], run, batch_size=batch_size, advance=advance)


@dataclass(frozen=True)
class Prefix:
    """What ψ reads of a batch before it answers."""

    sequence: CachedSequence
    """The queries, and what comes between them and the answers."""
    lower_BKD: Tensor | None = None
    """Raw states of φ's contemplation tokens at index l, padded on the right; None without such tokens."""
    last_BKD: Tensor | None = None
    """Their raw states at index L."""


class Context(ABC):
    """Makes what ψ decodes the answers from."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters that learn together with ψ, by name."""
        return {}

    @abstractmethod
    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Prefix:
        """Run everything before the answers of a batch.

        Args:
            numbers: The problems' numbers in the data set.
            batch: Their examples in this epoch.
        """


@dataclass(frozen=True)
class QueryContext(Context):
    """The query under ψ itself, which is plain fine-tuning."""

    adapters: Adapters

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Prefix:
        return Prefix(read_query(self.adapters, [example.query for example in batch], adapter=PSI))


@dataclass(frozen=True)
class RolloutContext(Context):
    """The query and its contemplation tokens: their stored inputs run through φ in one parallel pass.

    φ's layers 1..l never learn; those above l do if `trains_above` is set (paper, section 4.2), where they read the
    query too if φ reads it.
    """

    adapters: Adapters
    queries: Queries
    rollouts: Rollouts
    layer: int
    """Autoregressive layer l."""
    trains_above: bool = False

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        layers = range(self.layer, self.adapters.theta.num_layers)
        return self.adapters.parameters(PHI, layers=layers) if self.trains_above else {}

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Prefix:
        inputs = [self.rollouts[number][: each.num_tokens] for number, each in zip(numbers, batch, strict=True)]
        inputs_BKD = pad_sequence(inputs, batch_first=True).to(self.adapters.theta.device)
        mask_BK = first_columns([len(rows) for rows in inputs], device=self.adapters.theta.device)
        sequence = self.queries.sequence(numbers)
        states = replay(self.adapters, sequence, inputs_BKD, mask_BK, layer=self.layer, trains_above=self.trains_above)
        return Prefix(sequence, *states)


@dataclass(frozen=True)
class TokensContext(Context):
    """Contemplation tokens as they were generated, with their queries hidden, and what else the decoder is told.

    Nothing that the tokens depend on learns. So what they have left in the cache is constant, and is kept.
    """

    adapters: Adapters
    queries: Sequence[list[int]]
    """Token ids by problem."""
    kept: Sequence[KeptTokens]
    """By problem."""

    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Prefix:
        theta, (heads, channels) = self.adapters.theta, self.adapters.theta.blocks.heads
        queries, kept = [self.queries[number] for number in numbers], [self.kept[number].states for number in numbers]
        num_query, most = max(map(len, queries)), max(each.shape[2] for each in kept) - 1
        # Hidden columns hold zeros. They are there because they count in positions.
        both = torch.zeros(2 * theta.num_layers, len(kept), heads, num_query + most, channels, dtype=theta.dtype)
        mask_BS = torch.zeros(len(kept), num_query + most, dtype=torch.bool)
        for row, (query, each) in enumerate(zip(queries, kept, strict=True)):
            first, end = num_query - len(query), num_query + each.shape[2] - 1
            both[:, row, :, first], both[:, row, :, num_query:end] = each[:, :, 0], each[:, :, 1:]
            mask_BS[row, first:end] = True
        sequence = CachedSequence.of(both.to(theta.device), mask_BS.to(theta.device))
        hidden = sequence.hiding(hidden_columns(theta.encoder, queries).to(theta.device))
        append_told(self.adapters, hidden, [self.kept[number].told for number in numbers])
        return Prefix(hidden)


@dataclass(frozen=True)
class GoldContext(Context):
    """The query under θ and gold states, which a perfect φ would generate (paper, section 3.2)."""

    adapters: Adapters
    queries: Queries
    gold: Sequence[Tensor]
    """z_0 .. z_k of every problem at every index: 1 + k, L + 1, D."""

    @torch.no_grad()
    def read(self, numbers: Sequence[int], batch: Sequence[PsiExample]) -> Prefix:
        sequence = self.queries.sequence(numbers)
        gold = [self.gold[number][1:] for number in numbers]
        place_gold(self.adapters, sequence, gold)
        return Prefix(sequence)


@torch.no_grad()
def token_states(
    context: RolloutContext, examples: Sequence[PsiExample], *, batch_size: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute the raw states of all contemplation tokens at index l and at index L.

    Args:
        examples: One for each problem of the data set; `num_tokens` says how many tokens it has.
        batch_size: Problems in one pass; fewer if memory does not suffice.

    Returns:
        The states at index l and those at index L, by problem: K, D.

    Raises:
        ResourceError: if a single problem does not fit into memory.
    """

    def run(numbers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        batch = [examples[number] for number in numbers]
        prefix = context.read(numbers, batch)
        assert prefix.lower_BKD is not None
        assert prefix.last_BKD is not None
        return [
            (lower_KD[: each.num_tokens].clone(), last_KD[: each.num_tokens].clone())
            for lower_KD, last_KD, each in zip(prefix.lower_BKD, prefix.last_BKD, batch, strict=True)
        ]

    states = by_number([*map(len, context.queries.queries)], run, batch_size=batch_size)
    return [lower_KD for lower_KD, _ in states], [last_KD for _, last_KD in states]
