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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training.optimiser import Optimiser, steps_over
from ccot_cli.models.training.phi_layerwise import PhiExample
from ccot_cli.models.training.queries import Queries
from ccot_cli.names import OptimiserName
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
    theta: Theta,
    adapters: Adapters,
    examples: Sequence[PhiExample],
    queries: Queries,
    numbers: Sequence[int],
    *,
    layer: int,
    gold_share: float = 0.0,
    seed: str = "",
) -> Generated:
    """φ's states for some examples, from gold inputs or by its own rollout.

    Args:
        queries: Those of the examples.
        numbers: Which examples.
        gold_share: How many inputs are gold states, drawn token by token; at 1 all tokens are run in one pass.
        seed: Of the draw, together with an example's number: parts of a batch draw what the whole would.
    """
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
            inputs_BKD, lower_BKD = theta.blocks.feed_back(
                sequence, fed_BJD[:, 0], mask_BK, layer=layer, instead=instead if gold_share else None
            )
    # Without gradients the rollout's own states serve; with them, the same inputs run once more in one parallel pass.
    if lower_BKD is None or torch.is_grad_enabled():
        adapters.use(PHI)
        sequence.crop(num_query)
        sequence.extend(mask_BK)
        lower_BKD = theta.blocks.run(theta.blocks.enter(inputs_BKD, sequence), 0, layer, sequence)
    states = theta.blocks.run_each(lower_BKD, layer, theta.num_layers, sequence)
    return Generated(torch.stack(states, dim=1), gold_BJID[:, 1:].transpose(1, 2), mask_BK)


def _draws(seed: str, numbers: Sequence[int], num_tokens: int) -> Tensor:
    """Evenly from 0 to 1, for each example in an order of its own: B, K."""
    every = (random.Random(f"{seed}/{number}") for number in numbers)
    return torch.tensor([[draw.random() for _ in range(num_tokens)] for draw in every])


WEANED_AT = 0.5
"""Share of the rollout epochs after which no input is gold any more."""


class JointTraining:
    """Steps over the data set: `taught_epochs` from gold inputs, then `epochs` of rollouts."""

    def __init__(
        self,
        theta: Theta,
        adapters: Adapters,
        examples: Sequence[PhiExample],
        queries: Queries,
        *,
        layer: int,
        taught_epochs: int,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        optimiser: OptimiserName,
        micro_batch_size: int | None = None,
        seed: int,
    ) -> None:
        self.theta, self.adapters, self.examples, self.queries = theta, adapters, examples, queries
        self.layer, self.batch_size, self.seed = layer, batch_size, seed
        parameters = adapters.parameters(PHI)
        adapters.train_only(parameters)
        self.steps_per_epoch = -(-len(examples) // batch_size)
        self.taught_steps = taught_epochs * self.steps_per_epoch
        num_steps = self.taught_steps + epochs * self.steps_per_epoch
        self.optimiser = Optimiser(
            parameters,
            learning_rate=learning_rate,
            num_steps=num_steps,
            kind=optimiser,
            micro_batch_size=micro_batch_size,
        )

    def steps(self) -> Iterator[float]:
        """Train from wherever the optimiser stands to the end, yielding each step's loss."""
        lengths = [len(example.query) + len(example.gold_JID) for example in self.examples]
        return steps_over(self.optimiser, lengths, batch_size=self.batch_size, seed=self.seed, share=self.share)

    @property
    def gold_share(self) -> float:
        """1 while taught, then falling evenly to 0."""
        step, taught = self.optimiser.step_count, self.taught_steps
        weaned = WEANED_AT * (self.optimiser.num_steps - taught)
        return max(0.0, 1 - (step - taught + 1) / weaned) if step >= taught and weaned else 1.0

    def share(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
        """What some examples add to their batch's loss, the scaled error over indices l..L."""
        arguments = (self.theta, self.adapters, self.examples, self.queries, part)
        made = generate(
            *arguments,
            layer=self.layer,
            gold_share=self.gold_share,
            seed=f"{self.seed}/{self.optimiser.step_count}",
        )
        return made.loss() * (len(part) / len(whole))
