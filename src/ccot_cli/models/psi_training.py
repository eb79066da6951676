"""Train ψ on answers and END on rollouts (paper, section 4.2).

θ and φ's layers 1..l do not change while ψ learns, and only layer l feeds the recurrence. So the contemplation inputs
of every problem are constants: they are rolled out once, and each step is one parallel pass over
[query; contemplation inputs; answer].

Dimensions: B batch, K contemplation tokens, D width.
"""

import random
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.data.batches import bucketed
from ccot_cli.models.adapters import PHI, PSI, Adapters
from ccot_cli.models.blocks import Sequence
from ccot_cli.models.end import End
from ccot_cli.models.optimise import Optimiser
from ccot_cli.models.phi import contemplate, encode_query, replay
from ccot_cli.models.psi import answer_loss
from ccot_cli.models.theta import Theta


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
    """k; 0 for none."""


Rollouts = list[Tensor]
"""Each problem's contemplation inputs: k, D."""


@torch.no_grad()
def roll_out(
    theta: Theta, adapters: Adapters, examples: Rows[PsiExample], *, layer: int, batch_size: int
) -> Iterator[tuple[int, Tensor]]:
    """Generate every problem's k contemplation tokens with φ and yield what was fed, by the problem's number."""
    lengths = [len(example.query) for example in examples]
    for batch in bucketed(lengths, batch_size=batch_size, shuffler=random.Random(0)):
        counts = torch.tensor([examples[number].num_tokens for number in batch])
        sequence, first_BD = encode_query(theta, adapters, [examples[number].query for number in batch], layer=layer)
        tokens = contemplate(
            theta,
            adapters,
            sequence,
            first_BD,
            layer=layer,
            max_tokens=int(counts.max()),
            num_tokens_B=counts,
            chunk=int(counts.max()),
        )
        for row, number in enumerate(batch):
            yield number, tokens.inputs_BKD[row, : examples[number].num_tokens].clone()


def _replay(
    theta: Theta, adapters: Adapters, batch: Rows[PsiExample], rollouts: Rows[Tensor], *, layer: int, trains_above: bool
) -> tuple[Sequence, Tensor, Tensor]:
    """The query under θ and the kept contemplation inputs under φ: the sequence, states at index L, and their mask."""
    with torch.no_grad():
        sequence, _ = encode_query(theta, adapters, [example.query for example in batch], layer=layer)
    inputs_BKD = pad_sequence(list(rollouts), batch_first=True).to(theta.device)
    counts_B = torch.tensor([len(rollout) for rollout in rollouts], device=theta.device)
    mask_BK = torch.arange(inputs_BKD.shape[1], device=theta.device)[None] < counts_B[:, None]
    last_BKD = replay(theta, adapters, sequence, inputs_BKD, mask_BK, layer=layer, trains_above=trains_above)
    return sequence, last_BKD, mask_BK


class PsiTraining:
    """Steps over the data set; which parameters learn is fixed on construction.

    Args:
        rollouts: Kept contemplation inputs by problem; empty where there are none.
        layer: Autoregressive layer l.
        trains_above: Whether φ's layers above l learn from the answer too.
    """

    def __init__(
        self,
        theta: Theta,
        adapters: Adapters,
        examples: Rows[PsiExample],
        rollouts: Rollouts,
        *,
        layer: int,
        trains_above: bool,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        seed: int,
    ) -> None:
        self.theta, self.adapters = theta, adapters
        self.examples, self.rollouts = examples, rollouts
        self.layer, self.trains_above = layer, trains_above and bool(rollouts)
        self.batch_size, self.seed = batch_size, seed
        names = adapters.names(PSI)
        if self.trains_above:
            names += adapters.names(PHI, layers=range(layer, theta.num_layers))
        adapters.train_only(names)
        parameters = {name: parameter for name, parameter in adapters.named_parameters() if name in set(names)}
        self.steps_per_epoch = -(-len(examples) // batch_size)
        self.optimiser = Optimiser(parameters, learning_rate=learning_rate, num_steps=epochs * self.steps_per_epoch)

    def steps(self) -> Iterator[float]:
        """Train from wherever the optimiser stands to the end, yielding each step's loss."""
        lengths = [len(example.query) + len(example.answer) for example in self.examples]
        while self.optimiser.step_count < self.optimiser.num_steps:
            epoch, done = divmod(self.optimiser.step_count, self.steps_per_epoch)
            shuffler = random.Random(f"{self.seed}/{epoch}")
            batches = bucketed(lengths, batch_size=self.batch_size, shuffler=shuffler)
            for batch in batches[done:]:
                yield self.optimiser.step(self.loss(batch))

    def loss(self, numbers: Rows[int]) -> Tensor:
        """Answer cross-entropy of a batch, in one parallel pass."""
        batch = [self.examples[number] for number in numbers]
        return answer_loss(
            self.theta,
            self.adapters,
            self._context(batch, numbers),
            [example.start for example in batch],
            [example.answer for example in batch],
        )

    def _context(self, batch: Rows[PsiExample], numbers: Rows[int]) -> Sequence:
        """What the answer is decoded from. Without contemplation tokens ψ reads the query itself: plain fine-tuning."""
        if not self.rollouts:
            queries = [example.query for example in batch]
            return encode_query(self.theta, self.adapters, queries, layer=self.layer, adapter=PSI)[0]
        rollouts = [self.rollouts[number] for number in numbers]
        return _replay(self.theta, self.adapters, batch, rollouts, layer=self.layer, trains_above=self.trains_above)[0]


@torch.no_grad()
def last_states(
    theta: Theta, adapters: Adapters, examples: Rows[PsiExample], rollouts: Rollouts, *, layer: int, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Raw states at index L of every contemplation token, and whether it is its problem's last.

    Returns:
        last_MD and is_last_M, M tokens of all problems.
    """
    states, labels = [], []
    lengths = [len(example.query) for example in examples]
    for numbers in bucketed(lengths, batch_size=batch_size, shuffler=random.Random(0)):
        _, last_BKD, mask_BK = _replay(
            theta,
            adapters,
            [examples[number] for number in numbers],
            [rollouts[number] for number in numbers],
            layer=layer,
            trains_above=False,
        )
        is_last_BK = mask_BK & ~torch.nn.functional.pad(mask_BK[:, 1:], (0, 1))
        states.append(last_BKD[mask_BK])
        labels.append(is_last_BK[mask_BK])
    return torch.cat(states), torch.cat(labels)


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
