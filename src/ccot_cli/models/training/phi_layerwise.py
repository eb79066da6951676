"""Train φ layer by layer, as a stream over the data set (paper, section 4.1; LOSS_φ).

The training of layer i reads three things: the query's keys and values under θ, φ's own states at index i-1, and the
gold states at index i. They are stored for the whole data set, so only layer i runs while it is trained: an epoch of
all layers costs L layer passes instead of about L². The adapters become the same as if the first i layers ran again at
every step.

The stored tensors stay on the device, or in files, from which a batch is fetched while the one before it is in use. The
layers themselves may stay in main memory: only the one that is trained has to be on the device.

Of W ranks, rank i stores and runs the examples i, i + W and so on of every batch; all take the same steps.

Dimensions: B batch, N query, K contemplation tokens, J = 1 + K gold rows, S query and contemplation tokens, I all
indices 0..L, D width, H heads, C channels of a head.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf, isfinite
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccot_cli import ranks
from ccot_cli.config import TrainPhiConfig
from ccot_cli.data.batches import bucketed
from ccot_cli.files import reserve
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.cache import CachedSequence, empty_cache
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training.loop import mean_loss
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.tensors.losses import scaled_mse
from ccot_cli.tensors.masks import first_columns, pad_left


@dataclass(frozen=True)
class LayerReport:
    """How one layer's training ended."""

    layer: int
    """The hidden-state index that was trained, 1..L."""
    train_loss: float
    """Mean over the epoch whose weights were kept."""
    validation_loss: float
    """Of the weights that were kept."""
    untrained_loss: float
    """Validation loss before the first step."""
    kept_epoch: int
    """The epoch after which the validation loss was lowest."""


ALL = slice(None)


@dataclass(frozen=True)
class _LayerInput:
    """What one layer reads of a batch, on the device."""

    theta: Theta
    index: int
    """The index that the layer computes, 1..L."""
    keys_BHNC: Tensor
    """The query's keys at that layer, under θ."""
    values_BHNC: Tensor
    """The query's values there."""
    state_BKD: Tensor
    """φ's states at index - 1."""
    mask_BS: Tensor
    """True at tokens of query and contemplation that exist."""

    def run(self, part: slice = ALL) -> Tensor:
        """Run the layer on the contemplation tokens of some examples, under the weights in use: B, K, D."""
        cache = empty_cache()
        cache.update(self.keys_BHNC[part], self.values_BHNC[part], layer_idx=self.index - 1)
        sequence = CachedSequence(cache, self.mask_BS[part])
        return self.theta.blocks.run(self.state_BKD[part], self.index - 1, self.index, sequence)


@dataclass(frozen=True)
class _LabelledInput(_LayerInput):
    """A layer's input, and the gold states that it should compute from it."""

    gold_BKD: Tensor
    """Gold states at the index that the layer computes."""
    mask_BK: Tensor
    """True at contemplation tokens that exist."""
    num_here: int
    """This rank's examples of the batch."""
    num_examples: int
    """All ranks' examples of the batch."""

    def loss(self, part: slice = ALL) -> Tensor:
        """Compute the mean scaled error of some examples, all by default."""
        return scaled_mse(self.run(part), self.gold_BKD[part], self.mask_BK[part])


class _Batch:
    """This rank's examples of a batch, padded, and their states, which move up one layer at a time.

    Args:
        examples: The whole batch. A rank that gets none of it holds the first one, which then does not count.
        layer: Autoregressive layer l, whose gold states are the inputs.
        number: The batch's number, part of its files' names.
        folder: Where its tensors are stored from one layer to the next, in files of this rank that are mapped into
            memory; on the device by default.
    """

    def __init__(
        self, theta: Theta, examples: Sequence[GoldExample], *, layer: int, number: int, folder: Path | None
    ) -> None:
        self.theta, self._number, self._folder, self.num_examples = theta, number, folder, len(examples)
        here = examples[ranks.rank() :: ranks.size()]
        self.num_here, examples = len(here), here or examples[:1]
        ids_BN, self.query_mask_BN = pad_left(
            [example.query for example in examples], fill=theta.pad_id, device=theta.device
        )
        self.mask_BK = first_columns([len(example.gold_JID) - 1 for example in examples], device=theta.device)
        # Files of the workspace, mapped into memory: an index is read from disk when its layer is trained.
        self._gold = [example.gold_JID for example in examples]
        sequence, blocks = self._query_sequence(), theta.blocks
        self._query_BND = self._store("query", blocks.enter(blocks.embed(ids_BN), sequence))
        sequence.extend(self.mask_BK)
        inputs_BKD = self._padded_gold(slice(0, -1), layer).to(theta.device, theta.dtype)
        self._state_BKD = self._store("state", blocks.enter(inputs_BKD, sequence))
        self._keys_values: tuple[Tensor, Tensor] | None = None

    def _store(self, name: str, tensor: Tensor) -> Tensor:
        """Keep a tensor until the next layer: as it is, or in a file over the one that had this name."""
        if self._folder is None:
            return tensor
        path = self._folder / f"{self._number}-{name}"
        reserve(path, tensor.nbytes)
        mapped = torch.from_file(str(path), shared=True, size=tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
        return mapped.copy_(tensor)

    def _padded_gold(self, rows: slice, index: int) -> Tensor:
        """Stack some gold rows at an index, padded on the right: B, K, D."""
        return pad_sequence([gold_JID[rows, index] for gold_JID in self._gold], batch_first=True)

    def _query_sequence(self) -> CachedSequence:
        """Make a sequence with columns for the query and an empty cache."""
        sequence = CachedSequence.empty(len(self.query_mask_BN), self.query_mask_BN.device)
        sequence.extend(self.query_mask_BN)
        return sequence

    def run_query(self, index: int) -> None:
        """Run the query from index - 1 to `index` under the weights in use; store the layer's keys and values."""
        sequence = self._query_sequence()
        query_BND = self.theta.blocks.run(self._query_BND.to(self.theta.device), index - 1, index, sequence)
        self._query_BND = self._store("query", query_BND)
        keys, values = sequence.keys_values(index - 1)
        self._keys_values = self._store("keys", keys), self._store("values", values)

    def layer_input(self, index: int) -> _LayerInput:
        """Bring to the device what the layer reads; `run_query` must have run for this index."""
        assert self._keys_values is not None
        device = self.theta.device
        keys_BHNC, values_BHNC = (tensor.to(device) for tensor in self._keys_values)
        return _LayerInput(
            theta=self.theta,
            index=index,
            keys_BHNC=keys_BHNC,
            values_BHNC=values_BHNC,
            state_BKD=self._state_BKD.to(device),
            mask_BS=torch.cat([self.query_mask_BN, self.mask_BK], dim=1),
        )

    def labelled_input(self, index: int) -> _LabelledInput:
        """Bring to the device what the layer reads, and the gold states that it should compute."""
        gold_BKD = self._padded_gold(slice(1, None), index).to(self.theta.device)
        return _LabelledInput(
            **vars(self.layer_input(index)),
            gold_BKD=gold_BKD,
            mask_BK=self.mask_BK,
            num_here=self.num_here,
            num_examples=self.num_examples,
        )

    def advance(self, index: int) -> None:
        """Run the contemplation tokens from index - 1 to `index` under the weights in use."""
        self._state_BKD = self._store("state", self.layer_input(index).run())


def stored_bytes(theta: Theta, examples: Sequence[GoldExample]) -> int:
    """Count the bytes that the batches of these examples store from one layer to the next, padding not included."""
    heads, channels = theta.blocks.heads
    width: int = theta.model.config.hidden_size
    num_query = sum(len(example.query) for example in examples)
    num_tokens = sum(len(example.gold_JID) - 1 for example in examples)
    return (num_query * (width + 2 * heads * channels) + num_tokens * width) * theta.dtype.itemsize


def _prefetched(batches: Iterable[_Batch], index: int) -> Iterator[_LabelledInput]:
    """Yield each batch's labelled input, fetching it while the one before it is in use."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        upcoming: Future[_LabelledInput] | None = None
        for batch in batches:
            upcoming, current = thread.submit(batch.labelled_input, index), upcoming
            if current is not None:
                yield current.result()
        if upcoming is not None:
            yield upcoming.result()


def train_layerwise(
    adapters: Adapters,
    train: Sequence[GoldExample],
    validation: Sequence[GoldExample],
    config: TrainPhiConfig,
    *,
    num_trained: int = 0,
    folder: Path | None = None,
    on_step: Callable[[int, float], None] = lambda index, loss: None,
) -> Iterator[LayerReport]:
    """Train φ's layers 1..L in turn and yield a report after each.

    A layer ends with the weights of the epoch after which its validation loss was lowest.

    Args:
        config: `autoregressive_layer` is the index of the gold states that are fed; `epochs` counts passes for each
            layer.
        num_trained: Layers that an earlier run has trained already; they are run, not trained.
        folder: Where states, keys and values are stored between two layers; on the device by default.
        on_step: Called with the layer, 1..L, and the loss after every step.

    Raises:
        DivergedError: if several steps in a row, or a layer's last one, are not finite.
        ResourceError: if a single example does not fit into memory.
    """
    theta, layer = adapters.theta, config.layer
    batch_numbers, shuffler = count(), random.Random(config.seed)

    def batches_of(examples: Sequence[GoldExample]) -> list[_Batch]:
        lengths = [len(example.query) for example in examples]
        return [
            _Batch(theta, [examples[each] for each in batch], layer=layer, number=next(batch_numbers), folder=folder)
            for batch in bucketed(lengths, batch_size=config.batch_size, shuffler=shuffler)
        ]

    train_batches, validation_batches = batches_of(train), batches_of(validation)
    all_batches = [*train_batches, *validation_batches]
    for index in range(1, theta.num_layers + 1):
        with theta.blocks.holding(index - 1):
            adapters.use(None)
            with torch.no_grad():
                for batch in all_batches:
                    batch.run_query(index)
            if index > num_trained:
                yield _train_layer(adapters, train_batches, validation_batches, index, config, on_step)
            adapters.train_only(())
            if index < theta.num_layers:
                adapters.use(PHI)
                with torch.no_grad():
                    for batch in all_batches:
                        batch.advance(index)


def _train_layer(
    adapters: Adapters,
    train: list[_Batch],
    validation: list[_Batch],
    index: int,
    config: TrainPhiConfig,
    on_step: Callable[[int, float], None],
) -> LayerReport:
    parameters = adapters.parameters(PHI, layers=range(index - 1, index))
    optimiser = Optimiser.from_config(parameters, config, num_steps=config.epochs * len(train))
    untrained_loss = _validation_loss(adapters, validation, index)
    adapters.train_only(parameters)
    shuffler = random.Random(f"{config.seed}/{index}")
    best: LayerReport | None = None
    for epoch in range(1, config.epochs + 1):
        losses = []
        for batch in _prefetched(shuffler.sample(train, len(train)), index):
            losses.append(optimiser.step_on(range(batch.num_examples), partial(_part_loss, adapters, batch)))
            on_step(index, losses[-1])
        validation_loss = _validation_loss(adapters, validation, index)
        if best is None or _or_worst(validation_loss) < _or_worst(best.validation_loss):
            best = LayerReport(index, mean_loss(losses), validation_loss, untrained_loss, epoch)
            optimiser.keep()
    optimiser.restore()
    assert best is not None, "a layer is trained for an epoch at least"
    return best


def _or_worst(loss: float) -> float:
    """Return a loss; infinity for one that is not a number."""
    return loss if isfinite(loss) else inf


def _part_loss(adapters: Adapters, batch: _LabelledInput, part: Sequence[int], whole: Sequence[int]) -> Tensor:
    """Compute what consecutive ones of this rank's examples add to a batch's loss."""
    adapters.use(PHI)
    first, last = (number // ranks.size() for number in (part[0], part[-1]))
    return batch.loss(slice(first, last + 1)) * (len(part) / len(whole))


@torch.no_grad()
def _validation_loss(adapters: Adapters, batches: list[_Batch], index: int) -> float:
    adapters.use(PHI)
    total = torch.zeros((), dtype=torch.float64)
    for batch in _prefetched(batches, index):
        total += batch.loss().item() * batch.num_here
    ranks.add_up(total)
    return float(total) / sum(batch.num_examples for batch in batches)
