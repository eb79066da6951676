"""Report what contemplation tokens carry, because the loss alone does not tell whether they carry anything.

A linear probe is fitted on gold states to predict the number that the chain writes next. It is then applied to the
states that φ generates in their place. If it is right on the gold states and wrong on the generated ones, φ's tokens
look right and are empty.

Dimensions: B batch, I indices l..L (or l and L alone), K contemplation tokens, M tokens of all examples, D width,
V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccot_cli import ranks
from ccot_cli.config import TrainPhiConfig
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.memory import in_parts
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training.phi_joint import Generated, generate
from ccot_cli.models.training.queries import Queries
from ccot_cli.tensors.probes import Probe, fit_probe

MOST_EXAMPLES = 4000
"""Training problems on which the probes are fitted, at most."""


@dataclass(frozen=True)
class PhiReport:
    """How φ's rollouts compare with gold states, on validation problems."""

    losses: list[float]
    """Mean scaled error at each index l..L."""
    position_errors: list[float]
    """Mean scaled error of the first, second, ... token, over indices l..L."""
    gold_read: list[float]
    """Accuracy of the probe on gold states, at l and at L; 0 if there is no number to read."""
    generated_read: list[float]
    """Its accuracy on generated states, at l and at L."""
    norms: list[float]
    """Mean norms: of embeddings, of gold states at l and at L, of generated states at l and at L."""

    @property
    def loss(self) -> float:
        """Mean scaled error over indices l..L."""
        return sum(self.losses) / len(self.losses)


def _find_numbers(theta: Theta, examples: Sequence[GoldExample]) -> Tensor:
    """Find the tokens whose text has digits, among those that follow a kept one: V.

    The decoded text counts, because the name of a byte token, such as `<0x0A>`, may have digits too.
    """
    is_number_V = torch.zeros(theta.model.config.vocab_size, dtype=torch.bool)
    for token in {token for example in examples for token in example.next_K.tolist()}:
        is_number_V[token] = any(map(str.isdigit, theta.encoder.tokenizer.decode([token])))
    return is_number_V


class PhiJudge:
    """Reports on φ's rollouts; the probes are fitted once, on gold states of training problems.

    Args:
        train: Examples to fit the probes on.
        validation: Examples to roll out.
        queries: The queries of the validation examples.
    """

    def __init__(
        self,
        adapters: Adapters,
        train: Sequence[GoldExample],
        validation: Sequence[GoldExample],
        queries: Queries,
        config: TrainPhiConfig,
    ) -> None:
        theta, layer = adapters.theta, config.layer
        self.adapters, self.validation, self.queries = adapters, validation, queries
        self.layer, self.batch_size = layer, config.batch_size
        self._is_number_V = _find_numbers(theta, [*train, *validation])
        self._probes = [self._fit(train[:MOST_EXAMPLES], index) for index in (layer, theta.num_layers)]

    def _fit(self, examples: Sequence[GoldExample], index: int) -> Probe | None:
        labels_M = torch.cat([example.next_K for example in examples])
        is_number_M = self._is_number_V[labels_M]
        if not bool(is_number_M.any()):
            return None
        states_MD = torch.cat([example.gold_JID[1:, index] for example in examples])
        return fit_probe(states_MD[is_number_M], labels_M[is_number_M])

    @torch.no_grad()
    def report(self) -> PhiReport:
        """Roll out every validation problem and compare the states with the gold ones.

        Raises:
            ResourceError: if a single problem does not fit into memory.
        """
        errors_IM, positions_M, labels_M, gold_IMD, generated_IMD = [], [], [], [], []
        for numbers, rollout in self._rollouts():
            mask_BK = rollout.mask_BK
            errors_IM.append(rollout.errors().transpose(0, 1)[:, mask_BK].cpu())
            positions_M.append(torch.arange(mask_BK.shape[1]).expand(mask_BK.shape)[mask_BK.cpu()])
            labels_M += [self.validation[number].next_K for number in numbers]
            gold_IMD.append(rollout.gold_BIKD[:, [0, -1]].transpose(0, 1)[:, mask_BK].cpu())
            generated_IMD.append(rollout.states_BIKD[:, [0, -1]].transpose(0, 1)[:, mask_BK].float().cpu())
        error_IM, position_M, label_M = torch.cat(errors_IM, dim=1), torch.cat(positions_M), torch.cat(labels_M)
        gold, generated = torch.cat(gold_IMD, dim=1), torch.cat(generated_IMD, dim=1)
        embedding = self.adapters.theta.blocks.embedding.weight
        assert isinstance(embedding, Tensor)
        return PhiReport(
            losses=error_IM.mean(dim=1).tolist(),
            position_errors=[
                float(error_IM[:, position_M == position].mean()) for position in range(int(position_M.max()) + 1)
            ],
            gold_read=self._accuracies(gold, label_M),
            generated_read=self._accuracies(generated, label_M),
            norms=[float(each.float().norm(dim=-1).mean()) for each in (embedding.detach(), *gold, *generated)],
        )

    def _rollouts(self) -> Iterator[tuple[Sequence[int], Generated]]:
        """Yield φ's rollouts of all validation problems in batches, with the problems' numbers."""

        def run(numbers: Sequence[int]) -> tuple[Sequence[int], Generated]:
            return numbers, generate(self.adapters, self.validation, self.queries, numbers, layer=self.layer)

        numbers = range(len(self.validation))
        batches = [numbers[start : start + self.batch_size] for start in range(0, len(numbers), self.batch_size)]
        for parts in ranks.share(batches, lambda batch: [*in_parts(batch, run)]):
            yield from parts

    def _accuracies(self, states_IMD: Tensor, labels_M: Tensor) -> list[float]:
        """Compute the probes' accuracies on tokens that precede numbers, at l and at L."""
        is_number_M = self._is_number_V[labels_M]
        if not bool(is_number_M.any()):
            return [0.0 for _ in self._probes]
        return [
            float(probe.is_right(states_MD[is_number_M], labels_M[is_number_M]).float().mean()) if probe else 0.0
            for probe, states_MD in zip(self._probes, states_IMD, strict=True)
        ]
