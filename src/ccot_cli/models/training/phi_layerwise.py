"""Train φ layer by layer, as a stream over the data set (paper, section 4.1; LOSS_φ).

Layer i reads three things only: the query's keys and values under θ, φ's own states at index i-1, and the gold states
at index i. All of them are kept for the whole data set, so that one layer is at work at a time and the total cost is
L layer passes per epoch instead of L². The adapters are those of running the first i layers anew at every step. What is
kept rests on the device, or in files, from which a batch is fetched while the one before it is in use. The layers
themselves may rest in main memory: only the one that is trained has to be on the device.

Dimensions: B batch, N query, K contemplation tokens, S query and contemplation tokens, I all
indices 0..L, D width, H heads, C channels of a head.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.config import TrainPhiConfig
from ccot_cli.data.batches import bucketed
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.cache import CachedSequence, empty_cache
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.tensors.losses import scaled_mse
from ccot_cli.tensors.masks import first_columns, pad_left


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


@dataclass(frozen=True)
class _Ready:
    """A batch on the device, for one layer."""

    theta: Theta
    index: int
    """Where that layer leads, 1..L."""
    keys_BHNC: Tensor
    values_BHNC: Tensor
    """Of the query, at that layer under θ."""
    state_BKD: Tensor
    """φ's states at index - 1."""
    mask_BS: Tensor
    """Query and contemplation tokens that exist."""

    def run(self, part: slice = ALL) -> Tensor:
        """Take the contemplation tokens through the layer under the weights in use: B, K, D."""
        cache = empty_cache()
        cache.update(self.keys_BHNC[part], self.values_BHNC[part], layer_idx=self.index - 1)
        sequence = CachedSequence(cache, self.mask_BS[part])
        return self.theta.blocks.run(self.state_BKD[part], self.index - 1, self.index, sequence)


@dataclass(frozen=True)
class _Lesson(_Ready):
    """And what the layer should make of it."""

    gold_BKD: Tensor
    mask_BK: Tensor
    """Contemplation tokens that exist."""

    def loss(self, part: slice = ALL) -> Tensor:
        """The scaled error of some examples, all by default."""
        return scaled_mse(self.run(part), self.gold_BKD[part], self.mask_BK[part])


class _Batch:
    """A padded group of examples and its place in the stream.

    Args:
        folder: Where its tensors rest from one layer to the next, in files that are mapped into memory; on the device
            by default.
    """

    def __init__(
        self, theta: Theta, examples: Sequence[GoldExample], *, layer: int, number: int, folder: Path | None
    ) -> None:
        self.theta, self._number, self._folder = theta, number, folder
        ids_BN, self.query_mask_BN = pad_left(
            [example.query for example in examples], fill=theta.pad_id, device=theta.device
        )
        self.mask_BK = first_columns([len(example.gold_JID) - 1 for example in examples], device=theta.device)
        # Mapped files as they come from the workspace: an index is read when its layer is trained.
        self._gold = [example.gold_JID for example in examples]
        sequence, blocks = self._query(), theta.blocks
        self._query_BND = self._rest("query", blocks.enter(blocks.embedding(ids_BN), sequence))
        sequence.extend(self.mask_BK)
        fed_BKD = self._padded(slice(0, -1), layer).to(theta.device, theta.dtype)
        self._state_BKD = self._rest("state", blocks.enter(fed_BKD, sequence))
        self._keys_values: tuple[Tensor, Tensor] | None = None

    def _rest(self, name: str, tensor: Tensor) -> Tensor:
        if self._folder is None:
            return tensor
        path = str(self._folder / f"{self._number}-{name}")
        mapped = torch.from_file(path, shared=True, size=tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
        return mapped.copy_(tensor)

    def _padded(self, rows: slice, index: int) -> Tensor:
        """Gold states at an index: B, K, D."""
        return pad_sequence([gold_JID[rows, index] for gold_JID in self._gold], batch_first=True)

    def _query(self) -> CachedSequence:
        sequence = CachedSequence.empty(len(self.query_mask_BN), self.query_mask_BN.device)
        sequence.extend(self.query_mask_BN)
        return sequence

    def run_query(self, index: int) -> None:
        """Take the query to `index` under θ and keep that layer's keys and values."""
        sequence = self._query()
        query_BND = self.theta.blocks.run(self._query_BND.to(self.theta.device), index - 1, index, sequence)
        self._query_BND = self._rest("query", query_BND)
        keys, values = sequence.keys_values(index - 1)
        self._keys_values = self._rest("keys", keys), self._rest("values", values)

    def ready(self, index: int) -> _Ready:
        """Bring everything to the device that the layer needs; its keys and values were kept."""
        assert self._keys_values is not None
        device = self.theta.device
        keys_BHNC, values_BHNC = (tensor.to(device) for tensor in self._keys_values)
        return _Ready(
            theta=self.theta,
            index=index,
            keys_BHNC=keys_BHNC,
            values_BHNC=values_BHNC,
            state_BKD=self._state_BKD.to(device),
            mask_BS=torch.cat([self.query_mask_BN, self.mask_BK], dim=1),
        )

    def lesson(self, index: int) -> _Lesson:
        """The same with the gold states."""
        gold_BKD = self._padded(slice(1, None), index).to(self.theta.device)
        return _Lesson(**vars(self.ready(index)), gold_BKD=gold_BKD, mask_BK=self.mask_BK)

    def advance(self, index: int) -> None:
        """Take the contemplation tokens to `index` under the weights in use."""
        self._state_BKD = self._rest("state", self.ready(index).run())


def rest_bytes(theta: Theta, examples: Sequence[GoldExample]) -> int:
    """What the batches of these examples hold from one layer to the next, padding apart."""
    heads, channels = theta.blocks.heads
    width: int = theta.model.config.hidden_size
    num_query = sum(len(example.query) for example in examples)
    num_tokens = sum(len(example.gold_JID) - 1 for example in examples)
    return (num_query * (width + 2 * heads * channels) + num_tokens * width) * theta.dtype.itemsize


def _ahead(batches: Iterable[_Batch], index: int) -> Iterator[_Lesson]:
    """Fetch each batch's lesson while the one before it is in use."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        coming: Future[_Lesson] | None = None
        for batch in batches:
            coming, now = thread.submit(batch.lesson, index), coming
            if now is not None:
                yield now.result()
        if coming is not None:
            yield coming.result()


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
    """Train φ's layers 1..L in turn and report each as it is done.

    Args:
        config: `autoregressive_layer` says whose gold states are the inputs, `epochs` counts passes for each layer.
        num_trained: Layers that an earlier run has trained already; they are passed through.
        folder: Where states, keys and values rest between two layers; on the device by default.
        on_step: Called with the layer and the loss after every step.
    """
    theta = adapters.theta
    shuffler = random.Random(config.seed)
    numbers = count()
    train_batches, validation_batches = (
        [
            _Batch(
                theta,
                [examples[each] for each in group],
                layer=config.autoregressive_layer,
                number=next(numbers),
                folder=folder,
            )
            for group in bucketed(
                [len(each.query) for each in examples], batch_size=config.batch_size, shuffler=shuffler
            )
        ]
        for examples in (train, validation)
    )
    every = [*train_batches, *validation_batches]
    for index in range(1, theta.num_layers + 1):
        with theta.blocks.holding(index - 1):
            adapters.use(None)
            with torch.no_grad():
                for batch in every:
                    batch.run_query(index)
            if index > num_trained:
                yield _train_layer(adapters, train_batches, validation_batches, index, config, on_step)
            adapters.train_only(())
            if index < theta.num_layers:
                adapters.use(PHI)
                with torch.no_grad():
                    for batch in every:
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
    untrained = _mean_loss(adapters, validation, index)
    adapters.train_only(parameters)
    shuffler = random.Random(f"{config.seed}/{index}")
    losses: list[float] = []
    for _ in range(config.epochs):
        losses = []
        for lesson in _ahead(shuffler.sample(train, len(train)), index):
            losses.append(optimiser.step_on(range(len(lesson.mask_BK)), partial(_part_loss, adapters, lesson)))
            on_step(index, losses[-1])
    return LayerReport(
        layer=index,
        train_loss=sum(losses) / len(losses),
        validation_loss=_mean_loss(adapters, validation, index),
        untrained_loss=untrained,
    )


def _part_loss(adapters: Adapters, lesson: _Lesson, part: Sequence[int], whole: Sequence[int]) -> Tensor:
    """Compute what consecutive rows of a batch add to its loss."""
    adapters.use(PHI)
    return lesson.loss(slice(part[0], part[-1] + 1)) * (len(part) / len(whole))


@torch.no_grad()
def _mean_loss(adapters: Adapters, batches: list[_Batch], index: int) -> float:
    adapters.use(PHI)
    total = sum(lesson.loss().item() * len(lesson.mask_BK) for lesson in _ahead(batches, index))
    return total / sum(len(batch.mask_BK) for batch in batches)
