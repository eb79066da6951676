"""Train all layers of φ together, in the end on its own rollouts (ours; the loss is the paper's LOSS_φ).

Trained layer by layer, a lower layer that falls short is never repaired by those above it, and inputs that were always
gold leave φ helpless against its own errors. Here every layer learns at once: first from gold inputs, which is one
parallel pass, then from rollouts in which fewer and fewer inputs are gold (scheduled sampling; Bengio et al., 2015),
and last from φ's own rollouts alone. A rollout runs without gradients, and its inputs are then run in one parallel
pass: gradients through the recurrence undid what gold inputs had taught. The loss compares indices l..L only, so that
layers below l are free to compute what helps.

Dimensions: B batch, J = 1 + K gold rows, K contemplation tokens, I indices l..L, D width.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.config import TrainPhiConfig
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training.loop import Training
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.models.training.queries import Queries
from ccot_cli.tensors.losses import huber, scaled_errors
from ccot_cli.tensors.masks import first_columns


@dataclass(frozen=True)
class Generated:
    """φ's states of a batch beside the gold ones."""

    states_BIKD: Tensor
    """At indices l..L: L - l + 1 of them."""
    gold_BIKD: Tensor
    mask_BK: Tensor
    """True at tokens that exist."""

    def errors(self) -> Tensor:
        """Scaled squared error of every token at every index, 0 where no token is: B, I, K."""
        return scaled_errors(self.states_BIKD, self.gold_BIKD) * self.mask_BK[:, None]

    def loss(self) -> Tensor:
        """Their Huber loss, averaged over an example's tokens, then over indices and the batch.

        Fed back, a state that has gone astray can grow from token to token without bound. Squared, one such example
        outweighed the batch and led the next ones astray: training lost what it had learned, for a hundred steps.
        """
        return (huber(self.errors()).sum(dim=2) / self.mask_BK.sum(dim=1)[:, None]).mean()


def generate(
    adapters: Adapters,
    examples: Sequence[GoldExample],
    queries: Queries,
    numbers: Sequence[int],
    *,
    layer: int,
    gold_share: float = 0.0,
    seed: str = "",
) -> Generated:
    """Compute φ's states for some examples, from gold inputs or by its own rollout.

    A rollout is sequential through layers 1..l only. It runs without gradients and yields the inputs; one parallel pass
    over these inputs then carries the gradients, as teacher forcing does, but on φ's own mistakes.

    Args:
        queries: Those of the examples.
        numbers: Which examples.
        gold_share: How many inputs are gold states, drawn token by token; at 1 all tokens are run in one pass.
        seed: Of the draw, together with an example's number: parts of a batch draw what the whole would.
    """
    theta = adapters.theta
    gold = [examples[number].gold_JID[:, layer:] for number in numbers]
    gold_BJID = pad_sequence(gold, batch_first=True).to(theta.device).float()
    mask_BK = first_columns([len(rows) - 1 for rows in gold], device=theta.device)
    fed_BJD = gold_BJID[:, :, 0].to(theta.dtype)
    sequence = queries.sequence(numbers)
    num_query = sequence.mask_BS.shape[1]
    inputs_BKD, lower_BKD = fed_BJD[:, :-1], None
    if gold_share < 1:
        is_gold_BK = (_draws(seed, numbers, mask_BK.shape[1]) < gold_share).to(theta.device)

        def instead(column: int, state_BD: Tensor) -> Tensor:
            return torch.where(is_gold_BK[:, column, None], fed_BJD[:, column + 1], state_BD)

        with torch.no_grad():
            adapters.use(PHI)
            # Without `instead` the recurrence feeds φ's own states; with it, a gold state replaces some of them.
            inputs_BKD, lower_BKD = theta.blocks.feed_back(
                sequence, fed_BJD[:, 0], mask_BK, layer=layer, instead=instead if gold_share else None
            )
    # Taught, no rollout was needed. Otherwise the columns of the rollout are dropped from the cache and the same inputs
    # run again with gradients; if none are wanted, the rollout's states at index l serve as they are.
    if lower_BKD is None or torch.is_grad_enabled():
        adapters.use(PHI)
        sequence.crop(num_query)
        sequence.extend(mask_BK)
        lower_BKD = theta.blocks.run(theta.blocks.enter(inputs_BKD, sequence), 0, layer, sequence)
    # The loss reads every index from l on; layers above l are parallel in either case.
    states = theta.blocks.run_each(lower_BKD, layer, theta.num_layers, sequence)
    return Generated(torch.stack(states, dim=1), gold_BJID[:, 1:].transpose(1, 2), mask_BK)


def _draws(seed: str, numbers: Sequence[int], num_tokens: int) -> Tensor:
    """Evenly from 0 to 1, for each example in an order of its own: B, K."""
    every = (random.Random(f"{seed}/{number}") for number in numbers)
    return torch.tensor([[draw.random() for _ in range(num_tokens)] for draw in every])


WEANED_AT = 0.5
"""Share of the rollout epochs after which no input is gold any more."""


class JointTraining(Training):
    """Steps over the data set: `taught_epochs` from gold inputs, then `epochs` of rollouts."""

    def __init__(
        self, adapters: Adapters, examples: Sequence[GoldExample], queries: Queries, config: TrainPhiConfig
    ) -> None:
        self.adapters, self.examples, self.queries = adapters, examples, queries
        self.layer, self.batch_size, self.seed = config.autoregressive_layer, config.batch_size, config.seed
        self.lengths = [len(example.query) + len(example.gold_JID) for example in examples]
        parameters = adapters.parameters(PHI)
        adapters.train_only(parameters)
        self.taught_steps = config.taught_epochs * self.steps_per_epoch
        num_steps = self.taught_steps + config.epochs * self.steps_per_epoch
        self.optimiser = Optimiser.from_config(parameters, config, num_steps=num_steps)

    @property
    def gold_share(self) -> float:
        """How many inputs are gold: 1 while taught, then falling evenly to 0."""
        step, taught = self.optimiser.step_count, self.taught_steps
        weaned = WEANED_AT * (self.optimiser.num_steps - taught)
        return max(0.0, 1 - (step - taught + 1) / weaned) if step >= taught and weaned else 1.0

    def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
        """Compute what some examples add to their batch's loss, the scaled error over indices l..L."""
        made = generate(
            self.adapters,
            self.examples,
            self.queries,
            part,
            layer=self.layer,
            gold_share=self.gold_share,
            seed=f"{self.seed}/{self.optimiser.step_count}",
        )
        return made.loss() * (len(part) / len(whole))
