"""Train all layers of φ together, in the end on its own rollouts (ours; the states' loss is the paper's LOSS_φ).

Layer-by-layer training has two weaknesses: no layer repairs the errors of those below it, and inputs that were always
gold leave φ helpless against its own errors. Here all layers learn at once, in three phases:

1. from gold inputs (teacher forcing), which is one parallel pass;
2. from rollouts in which fewer and fewer inputs are gold (scheduled sampling; Bengio et al., 2015);
3. from φ's own rollouts alone. A φ that starts from another one can do without the others (`taught_epochs: 0`).

A rollout runs without gradients; its inputs then run in one parallel pass with gradients. Gradients through the
recurrence undid what gold inputs had taught. The loss compares indices l..L only, which leaves the layers below l free
to compute what helps. The loss of a linear END at L is added, so that all layers learn to show which token is the last.

Dimensions: B batch, K contemplation tokens, J = 1 + K gold rows, I indices l..L, D width.
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
from ccot_cli.models.training.end import end_loss, fresh_end, label_ends
from ccot_cli.models.training.loop import Training
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.models.training.queries import Queries
from ccot_cli.tensors.losses import huber, scaled_errors
from ccot_cli.tensors.masks import first_columns


@dataclass(frozen=True)
class Generated:
    """φ's states for a batch, and the gold ones."""

    states_BIKD: Tensor
    """Generated states at indices l..L."""
    gold_BIKD: Tensor
    """Gold states at the same indices."""
    mask_BK: Tensor
    """True at tokens that exist."""

    def errors(self) -> Tensor:
        """Compute the scaled squared error of every token at every index, 0 at padding: B, I, K."""
        return scaled_errors(self.states_BIKD, self.gold_BIKD) * self.mask_BK[:, None]

    def loss(self) -> Tensor:
        """Compute the Huber loss of the errors, averaged over an example's tokens, then over indices and the batch.

        A wrong state that is fed back can grow from token to token without bound. With the squared error, one such
        example outweighed the batch and spoiled the following steps: training lost what it had learned for a hundred
        steps.
        """
        return (huber(self.errors()).sum(dim=2) / self.mask_BK.sum(dim=1)[:, None]).mean()


def generate(
    adapters: Adapters,
    examples: Sequence[GoldExample],
    queries: Queries,
    numbers: Sequence[int],
    *,
    layer: int,
    gold_fraction: float = 0.0,
    seed: str = "",
) -> Generated:
    """Compute φ's states for some examples, from gold inputs, by its own rollout, or from a mixture.

    A rollout feeds each token the state at index l of the one before, so it is sequential through layers 1..l. It runs
    without gradients, to find out the inputs. One parallel pass over these inputs then carries the gradients: teacher
    forcing, but on φ's own mistakes.

    Args:
        queries: The queries of all examples.
        numbers: Which examples to compute.
        layer: Autoregressive layer l.
        gold_fraction: Probability that an input is gold, drawn for every token; 1 needs no rollout.
        seed: Seed of the draws, together with an example's number: a part of a batch draws as the whole would.
    """
    theta = adapters.theta
    gold = [examples[number].gold_JID[:, layer:] for number in numbers]
    gold_BJID = pad_sequence(gold, batch_first=True).to(theta.device).float()
    mask_BK = first_columns([len(rows) - 1 for rows in gold], device=theta.device)
    # z_0 .. z_K at index l. Token j, counted from 0, is fed z_j if its input is gold; token 0 always is.
    gold_inputs_BJD = gold_BJID[:, :, 0].to(theta.dtype)
    sequence, read_BD = queries.encoded(numbers)
    # The stored z_0 is θ's. If φ reads the query, z_0 is its own, through which gradients pass.
    first_BD = gold_inputs_BJD[:, 0] if queries.reader is None else read_BD
    inputs_BKD, lower_BKD = gold_inputs_BJD[:, :-1], None
    if gold_fraction < 1:
        is_gold_BK = (_draws(seed, numbers, mask_BK.shape[1]) < gold_fraction).to(theta.device)

        def gold_or_own(column: int, own_BD: Tensor) -> Tensor:
            """Choose what the token after `column` is fed: the gold state or φ's own, both of `column`."""
            return torch.where(is_gold_BK[:, column, None], gold_inputs_BJD[:, column + 1], own_BD)

        rollout = sequence.copy()
        with torch.no_grad():
            adapters.use(PHI)
            inputs_BKD, lower_BKD = theta.blocks.feed_back(
                rollout, first_BD, mask_BK, layer=layer, instead=gold_or_own if gold_fraction else None
            )
        if not torch.is_grad_enabled():
            sequence = rollout
    # The parallel pass through layers 1..l is needed if there was no rollout, or if there was one but gradients are
    # wanted. Otherwise the rollout's states at index l are used, whose keys and values are in the cache already.
    if lower_BKD is None or torch.is_grad_enabled():
        # Call `use` again: under `no_grad` it may have installed merged weights, through which no gradient passes.
        adapters.use(PHI)
        sequence.extend(mask_BK)
        # A rollout has no gradients, but z_0 may have one.
        inputs_BKD = torch.cat([first_BD[:, None], inputs_BKD[:, 1:]], dim=1)
        lower_BKD = theta.blocks.run(theta.blocks.enter(inputs_BKD, sequence), 0, layer, sequence)
    # Layers above l are no part of the recurrence, so they run in parallel in every case. The loss reads every index.
    states = theta.blocks.run_each(lower_BKD, layer, theta.num_layers, sequence)
    return Generated(torch.stack(states, dim=1), gold_BJID[:, 1:].transpose(1, 2), mask_BK)


def _draws(seed: str, numbers: Sequence[int], num_tokens: int) -> Tensor:
    """Draw uniformly from 0 to 1, by the seed and each example's number: B, K."""
    generators = [random.Random(f"{seed}/{number}") for number in numbers]
    return torch.tensor([[generator.random() for _ in range(num_tokens)] for generator in generators])


GOLD_UNTIL = 0.5
"""Proportion of the rollout epochs after which no input is gold any more."""
END_WEIGHT = 0.2
"""Weight of END's loss beside that of the states."""


class JointTraining(Training):
    """Trains all of φ: `taught_epochs` from gold inputs, then `epochs` of rollouts.

    Args:
        adapters: With a φ, whose parameters are declared trainable.
        queries: The queries of the examples.
    """

    def __init__(
        self, adapters: Adapters, examples: Sequence[GoldExample], queries: Queries, config: TrainPhiConfig
    ) -> None:
        self.adapters, self.examples, self.queries = adapters, examples, queries
        self.layer, self.batch_size, self.seed = config.layer, config.batch_size, config.seed
        self.lengths = [len(example.query) + len(example.next_K) for example in examples]
        parameters = adapters.parameters(PHI)
        adapters.train_only(parameters)
        self.end_1W = fresh_end(adapters.theta)
        parameters["end"] = self.end_1W
        self.taught_steps = config.taught_epochs * self.steps_per_epoch
        num_steps = self.taught_steps + config.epochs * self.steps_per_epoch
        self.optimiser = Optimiser.from_config(parameters, config, num_steps=num_steps)

    @property
    def gold_fraction(self) -> float:
        """Probability that an input is gold: 1 in taught epochs, then falling linearly to 0; without these always 0."""
        if not self.taught_steps:
            return 0.0
        num_rollouts = self.optimiser.num_steps - self.taught_steps
        rollout = self.optimiser.step_count - self.taught_steps
        return max(0.0, 1 - (rollout + 1) / (GOLD_UNTIL * num_rollouts)) if rollout >= 0 and num_rollouts else 1.0

    def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
        """Compute what a part of a batch adds to its loss: of states at indices l..L, and of a linear END at L."""
        generated = generate(
            self.adapters,
            self.examples,
            self.queries,
            part,
            layer=self.layer,
            gold_fraction=self.gold_fraction,
            seed=f"{self.seed}/{self.optimiser.step_count}",
        )
        counts, num_tokens = self._counts(part), sum(self._counts(whole))
        loss_of_end = end_loss(self.end_1W, *label_ends(generated.states_BIKD[:, -1].unbind(), counts))
        return generated.loss() * (len(part) / len(whole)) + END_WEIGHT * loss_of_end * (sum(counts) / num_tokens)

    def _counts(self, numbers: Sequence[int]) -> list[int]:
        """Return k of these examples."""
        return [len(self.examples[number].next_K) for number in numbers]
