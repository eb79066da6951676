"""What can be read from contemplation tokens: the loss alone does not tell whether they carry anything.

A linear probe is fitted on gold states to name the number that the chain writes next, and then read on the states that
φ generates in their place. Where it reads the gold ones and not the generated ones, φ's tokens look right and are
empty.

Dimensions: B batch, I indices l..L, K contemplation tokens, M tokens of all examples, D width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccot_cli.config import TrainPhiConfig
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.memory import in_parts
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training.phi_joint import Generated, generate
from ccot_cli.models.training.queries import Queries
from ccot_cli.tensors.probes import Probe, fit_probe

MOST_EXAMPLES = 4000


@dataclass(frozen=True)
class PhiReport:
    """φ's rollouts on validation problems."""

    losses: list[float]
    """Scaled error at each index l..L."""
    position_errors: list[float]
    """Scaled error of the first, second, ... token, over indices l..L."""
    gold_read: list[float]
    """Share of gold states at l and at L from which the probe reads the next number."""
    generated_read: list[float]
    """The same of generated states."""
    norms: list[float]
    """Mean norm of an embedding, of gold states at l and at L, of generated ones at l and at L."""

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)


def _are_numbers(theta: Theta, examples: Sequence[GoldExample]) -> Tensor:
    """Which tokens of the vocabulary, among those that follow a kept one, are written with digits: V.

    By their text: a byte's name, such as `<0x0A>`, has digits too.
    """
    found_V = torch.zeros(theta.model.config.vocab_size, dtype=torch.bool)
    for token in {token for example in examples for token in example.next_K.tolist()}:
        found_V[token] = any(map(str.isdigit, theta.encoder.tokenizer.decode([token])))
    return found_V


class PhiJudge:
    """Looks at φ's rollouts on validation; the probes are fitted once, on training problems' gold states."""

    def __init__(
        self,
        adapters: Adapters,
        train: Sequence[GoldExample],
        validation: Sequence[GoldExample],
        queries: Queries,
        config: TrainPhiConfig,
    ) -> None:
        theta, layer = adapters.theta, config.autoregressive_layer
        self.adapters, self.validation, self.queries = adapters, validation, queries
        self.layer, self.batch_size = layer, config.batch_size
        self._is_number = _are_numbers(theta, [*train, *validation])
        self._probes = [self._fit(train[:MOST_EXAMPLES], index) for index in (layer, theta.num_layers)]

    def _fit(self, examples: Sequence[GoldExample], index: int) -> Probe | None:
        labels_M = torch.cat([example.next_K for example in examples])
        chosen_M = self._is_number[labels_M]
        if not bool(chosen_M.any()):
            return None
        states_MD = torch.cat([example.gold_JID[1:, index] for example in examples])
        return fit_probe(states_MD[chosen_M], labels_M[chosen_M])

    @torch.no_grad()
    def look(self) -> PhiReport:
        """Roll out every validation problem and compare."""
        errors_IM, place_M, labels_M, gold_IMD, made_IMD = [], [], [], [], []
        for numbers, made in self._generated():
            mask_BK = made.mask_BK
            errors_IM.append(made.errors().transpose(0, 1)[:, mask_BK].cpu())
            place_M.append(torch.arange(mask_BK.shape[1]).expand(mask_BK.shape)[mask_BK.cpu()])
            labels_M += [self.validation[number].next_K for number in numbers]
            gold_IMD.append(made.gold_BIKD[:, [0, -1]].transpose(0, 1)[:, mask_BK].cpu())
            made_IMD.append(made.states_BIKD[:, [0, -1]].transpose(0, 1)[:, mask_BK].float().cpu())
        error_IM, where_M, label_M = torch.cat(errors_IM, dim=1), torch.cat(place_M), torch.cat(labels_M)
        gold, generated = torch.cat(gold_IMD, dim=1), torch.cat(made_IMD, dim=1)
        embedding = self.adapters.theta.blocks.embedding.weight
        assert isinstance(embedding, Tensor)
        both = (gold[0], gold[1], generated[0], generated[1])
        return PhiReport(
            losses=error_IM.mean(dim=1).tolist(),
            position_errors=[
                float(error_IM[:, where_M == position].mean()) for position in range(int(where_M.max()) + 1)
            ],
            gold_read=self._read(gold, label_M),
            generated_read=self._read(generated, label_M),
            norms=[float(each.float().norm(dim=-1).mean()) for each in (embedding.detach(), *both)],
        )

    def _generated(self) -> Iterator[tuple[Sequence[int], Generated]]:
        """What φ makes of every validation problem, with their numbers."""

        def run(numbers: Sequence[int]) -> tuple[Sequence[int], Generated]:
            return numbers, generate(self.adapters, self.validation, self.queries, numbers, layer=self.layer)

        everything = range(len(self.validation))
        for start in range(0, len(everything), self.batch_size):
            yield from in_parts(everything[start : start + self.batch_size], run)

    def _read(self, states_IMD: Tensor, labels_M: Tensor) -> list[float]:
        chosen_M = self._is_number[labels_M]
        return [
            float(probe.is_right(states_MD[chosen_M], labels_M[chosen_M]).float().mean()) if probe else 0.0
            for probe, states_MD in zip(self._probes, states_IMD, strict=True)
        ]
