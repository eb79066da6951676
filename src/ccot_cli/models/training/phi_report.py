"""Report what contemplation tokens carry, because the loss alone does not tell whether they carry anything.

A linear probe is fitted on gold states to predict the number that the chain writes next. It is then applied to the
states that φ generates in their place. If it is right on the gold states and wrong on the generated ones, φ's tokens
look right and are empty.

Dimensions: B batch, I indices l..L (or l and L alone), K contemplation tokens, M tokens of all examples, D width,
V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ccot_cli.config import TrainPhiConfig
from ccot_cli.data.batches import cut
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.memory import shared_parts
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training.phi_joint import generate
from ccot_cli.models.training.queries import Queries
from ccot_cli.tensors.probes import Probe, fit_probe

MOST_EXAMPLES = 4000
"""Training problems on which the probes are fitted, at most."""
MOST_IDS = 4096
"""Embeddings that are in memory at a time."""


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


class _RolledOut(NamedTuple):
    """What the report reads of a batch's rollouts; the tokens of all problems come one after the other."""

    errors_IM: Tensor
    """Scaled errors at the indices l..L."""
    place_M: Tensor
    """Each token's place among its problem's, from 0."""
    gold_IMD: Tensor
    """Gold states at l and at L."""
    states_IMD: Tensor
    """φ's states there."""


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
        self._encoder, self._embedding_norm = theta.encoder, _embedding_norm(theta)
        self._probes = [self._fit(train[:MOST_EXAMPLES], index) for index in (layer, theta.num_layers)]

    def _fit(self, examples: Sequence[GoldExample], index: int) -> Probe | None:
        labels_M = torch.cat([example.next_K for example in examples])
        is_number_M = self._are_numbers(labels_M)
        if not bool(is_number_M.any()):
            return None
        states_MD = torch.cat([example.gold_JID[1:, index] for example in examples])
        return fit_probe(states_MD[is_number_M], labels_M[is_number_M])

    def _are_numbers(self, ids_M: Tensor) -> Tensor:
        """Tell which tokens' texts have digits."""
        return torch.tensor([self._encoder.has_digit(token) for token in ids_M.tolist()], dtype=torch.bool)

    @torch.no_grad()
    def report(self) -> PhiReport:
        """Roll out every validation problem and compare the states with the gold ones.

        Raises:
            ResourceError: if a single problem does not fit into memory.
        """
        batches = [*self._rollouts()]
        error_IM = torch.cat([each.errors_IM for each in batches], dim=1)
        position_M = torch.cat([each.place_M for each in batches])
        gold_IMD = torch.cat([each.gold_IMD for each in batches], dim=1)
        generated_IMD = torch.cat([each.states_IMD for each in batches], dim=1)
        label_M = torch.cat([example.next_K for example in self.validation])
        return PhiReport(
            losses=error_IM.mean(dim=1).tolist(),
            position_errors=[
                float(error_IM[:, position_M == position].mean()) for position in range(int(position_M.max()) + 1)
            ],
            gold_read=self._accuracies(gold_IMD, label_M),
            generated_read=self._accuracies(generated_IMD, label_M),
            norms=[self._embedding_norm, *(_mean_norm(each) for each in (*gold_IMD, *generated_IMD))],
        )

    def _rollouts(self) -> Iterator[_RolledOut]:
        """Roll out all validation problems in batches, in their order."""

        def run(numbers: Sequence[int]) -> _RolledOut:
            rollout = generate(self.adapters, self.validation, self.queries, numbers, layer=self.layer)
            mask_BK = rollout.mask_BK
            place_BK = torch.arange(mask_BK.shape[1], device=mask_BK.device).expand(mask_BK.shape)
            gold_IMD, states_IMD = (
                each[:, [0, -1]].transpose(0, 1)[:, mask_BK].float().cpu()
                for each in (rollout.gold_BIKD, rollout.states_BIKD)
            )
            errors_IM = rollout.errors().transpose(0, 1)[:, mask_BK].cpu()
            return _RolledOut(errors_IM, place_BK[mask_BK].cpu(), gold_IMD, states_IMD)

        yield from shared_parts(cut(range(len(self.validation)), self.batch_size), run)

    def _accuracies(self, states_IMD: Tensor, labels_M: Tensor) -> list[float]:
        """Compute the probes' accuracies on tokens that precede numbers, at l and at L."""
        is_number_M = self._are_numbers(labels_M)
        if not bool(is_number_M.any()):
            return [0.0 for _ in self._probes]
        return [
            float(probe.is_right(states_MD[is_number_M], labels_M[is_number_M]).float().mean()) if probe else 0.0
            for probe, states_MD in zip(self._probes, states_IMD, strict=True)
        ]


@torch.no_grad()
def _embedding_norm(theta: Theta) -> float:
    """Compute the mean norm of the vocabulary's embeddings as the model reads them: some models scale them first."""
    ids = torch.arange(theta.model.config.vocab_size, device=theta.device)
    norms = [theta.blocks.embed(part[None])[0].float().norm(dim=-1) for part in torch.split(ids, MOST_IDS)]
    return float(torch.cat(norms).mean())


def _mean_norm(states_MD: Tensor) -> float:
    return float(states_MD.float().norm(dim=-1).mean())
