"""Train φ layer by layer, as a stream over the data set (paper, section 4.1; LOSS_φ).

Layer i reads three things only: the query's keys and values under θ, φ's own states at index i-1, and the gold states
at index i. All of them are kept for the whole data set, so that one layer is at work at a time and the total cost is
L layer passes per epoch instead of L². The adapters are those of running the first i layers anew at every step.

Dimensions: B batch, N query, K contemplation tokens, I all indices 0..L, D width.
"""

import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.config import OptimiserName
from ccot_cli.data.batches import bucketed
from ccot_cli.models.adapters import PHI, Adapters
from ccot_cli.models.blocks import Sequence
from ccot_cli.models.cache import empty_cache
from ccot_cli.models.optimise import Optimiser
from ccot_cli.models.theta import Theta
from ccot_cli.tensors.losses import scaled_mse
from ccot_cli.tensors.masks import first_columns, pad_left


@dataclass(frozen=True)
class PhiExample:
    """One problem for φ."""

    query: list[int]
    gold_JID: Tensor
    """z_0 .. z_k at every index: 1 + k, L + 1, D."""
    next_K: Tensor
    """The token that follows each kept one in the chain."""


@dataclass(frozen=True)
class LayerReport:
    """How one layer's training ended."""

    layer: int
    """The hidden-state index that was trained, 1..L."""
    train_loss: float
    """Mean over the last epoch."""
    validation_loss: float
    untrained_loss: float
    """Validation loss of θ in φ's place, before the first step."""


ALL = slice(None)


class _Batch:
    """A padded group of examples and its place in the stream."""

    def __init__(self, theta: Theta, examples: Rows[PhiExample], *, layer: int) -> None:
        self.blocks = theta.blocks
        ids_BN, self.query_mask_BN = pad_left(
            [example.query for example in examples], fill=theta.pad_id, device=theta.device
        )
        self.mask_BK = first_columns([len(example.gold_JID) - 1 for example in examples], device=theta.device)
        # Mapped files as they come from the workspace: an index is read when its layer is trained.
        self._gold = [example.gold_JID for example in examples]
        sequence = self._query()
        self.query_BND = self.blocks.enter(self.blocks.embedding(ids_BN), sequence)
        sequence.extend(self.mask_BK)
        self.state_BKD = self.blocks.enter(self._padded(slice(0, -1), layer).to(theta.device, theta.dtype), sequence)
        self.keys_values: tuple[Tensor, Tensor] | None = None

    def _padded(self, rows: slice, index: int) -> Tensor:
        """Gold states at an index: B, K, D."""
        return pad_sequence([gold_JID[rows, index] for gold_JID in self._gold], batch_first=True)

    def _query(self) -> Sequence:
        sequence = Sequence.empty(len(self.query_mask_BN), self.query_mask_BN.device)
        sequence.extend(self.query_mask_BN)
        return sequence

    def run_query(self, index: int) -> None:
        """Take the query to `index` under θ and keep that layer's keys and values."""
        sequence = self._query()
        self.query_BND = self.blocks.run(self.query_BND, index - 1, index, sequence)
        self.keys_values = sequence.keys_values(index - 1)

    def run_tokens(self, index: int, part: slice = ALL) -> Tensor:
        """Take the contemplation tokens to `index` under the weights in use: B, K, D."""
        assert self.keys_values is not None
        keys, values = self.keys_values
        cache = empty_cache()
        cache.update(keys[part], values[part], layer_idx=index - 1)
        sequence = Sequence(cache, torch.cat([self.query_mask_BN, self.mask_BK], dim=1)[part])
        return self.blocks.run(self.state_BKD[part], index - 1, index, sequence)

    def loss(self, index: int, part: slice = ALL) -> Tensor:
        """The scaled error of some examples, all by default."""
        generated_BKD = self.run_tokens(index, part)
        gold_BKD = self._padded(slice(1, None), index)[part].to(generated_BKD.device)
        return scaled_mse(generated_BKD, gold_BKD, self.mask_BK[part])


def _batches(
    theta: Theta, examples: Rows[PhiExample], *, layer: int, batch_size: int, shuffler: random.Random
) -> list[_Batch]:
    lengths = [len(example.query) for example in examples]
    groups = bucketed(lengths, batch_size=batch_size, shuffler=shuffler)
    return [_Batch(theta, [examples[number] for number in group], layer=layer) for group in groups]


def train_layerwise(
    theta: Theta,
    adapters: Adapters,
    train: Rows[PhiExample],
    validation: Rows[PhiExample],
    *,
    layer: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    optimiser: OptimiserName = "adamw",
    micro_batch_size: int | None = None,
    seed: int,
    num_trained: int = 0,
    on_step: Callable[[int, float], None] = lambda index, loss: None,
) -> Iterator[LayerReport]:
    """Train φ's layers 1..L in turn and report each as it is done.

    Args:
        layer: Autoregressive layer l, whose gold states are the inputs.
        epochs: Passes over the data for each layer.
        micro_batch_size: Most examples whose gradients are computed at once; a whole batch's by default.
        num_trained: Layers that an earlier run has trained already; they are passed through.
        on_step: Called with the layer and the loss after every step.
    """
    shuffler = random.Random(seed)
    train_batches = _batches(theta, train, layer=layer, batch_size=batch_size, shuffler=shuffler)
    validation_batches = _batches(theta, validation, layer=layer, batch_size=batch_size, shuffler=shuffler)
    every = [*train_batches, *validation_batches]
    for index in range(1, theta.num_layers + 1):
        adapters.use(None)
        with torch.no_grad():
            for batch in every:
                batch.run_query(index)
        if index > num_trained:
            parameters = adapters.parameters(PHI, layers=range(index - 1, index))
            steps = Optimiser(
                parameters,
                learning_rate=learning_rate,
                num_steps=epochs * len(train_batches),
                kind=optimiser,
                micro_batch_size=micro_batch_size,
            )
            yield _train_layer(adapters, train_batches, validation_batches, index, epochs, steps, seed, on_step)
        adapters.train_only(())
        with torch.no_grad():
            adapters.use(PHI)
            for batch in every:
                batch.state_BKD = batch.run_tokens(index)


def _train_layer(
    adapters: Adapters,
    train: list[_Batch],
    validation: list[_Batch],
    index: int,
    epochs: int,
    optimiser: Optimiser,
    seed: int,
    on_step: Callable[[int, float], None],
) -> LayerReport:
    untrained = _mean_loss(adapters, validation, index)
    adapters.train_only(optimiser.parameters)
    shuffler = random.Random(f"{seed}/{index}")
    losses: list[float] = []
    for _ in range(epochs):
        losses = []
        for batch in shuffler.sample(train, len(train)):
            losses.append(optimiser.step_on(range(len(batch.mask_BK)), partial(_share, adapters, batch, index)))
            on_step(index, losses[-1])
    return LayerReport(
        layer=index,
        train_loss=sum(losses) / len(losses),
        validation_loss=_mean_loss(adapters, validation, index),
        untrained_loss=untrained,
    )


def _share(adapters: Adapters, batch: _Batch, index: int, part: Rows[int], whole: Rows[int]) -> Tensor:
    """What a stretch of a batch's rows adds to its loss."""
    adapters.use(PHI)
    return batch.loss(index, slice(part[0], part[-1] + 1)) * (len(part) / len(whole))


@torch.no_grad()
def _mean_loss(adapters: Adapters, batches: list[_Batch], index: int) -> float:
    adapters.use(PHI)
    total = sum(batch.loss(index).item() * len(batch.mask_BK) for batch in batches)
    return total / sum(len(batch.mask_BK) for batch in batches)
