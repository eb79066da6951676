"""Train the learned scorer beside a decoder that answers from the tokens it selects (paper, section 3.2).

The decoder answers from the query and the k best tokens alone, and writes the chain from them. Top-k has no gradient,
so attention carries it: s - stopgrad(s) is added to the attention logits of the selected tokens, which changes no value
and gives every score the gradient of what was attended to. Scores are jittered while training, so that every token has
a chance to be selected.

Dimensions: B batch, S columns of query and chain, D width.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import torch
from torch import Tensor

from ccot_cli.config import ScoreConfig, TrainPsiConfig
from ccot_cli.data.batches import bucketed
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.selection.scorer import Scorer
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.models.training.psi import answer_loss
from ccot_cli.tensors.masks import pad_right
from ccot_cli.tensors.select import num_kept

RATIOS = tuple(Decimal(each) for each in ("0.05", "0.1", "0.2", "0.3"))
"""Drawn from for every batch, so that one scorer serves all ratios."""
CHAIN_WEIGHT = 0.2
"""Weight of writing the chain beside giving the answer."""


@dataclass
class ScorerTraining:
    """Steps over training problems."""

    adapters: Adapters
    """With a fresh ψ, the gold decoder."""
    scorer: Scorer
    problems: Sequence[EncodedProblem]
    layer: int
    """T."""
    config: ScoreConfig
    decoder: TrainPsiConfig
    """Of the gold decoder: its rate, optimiser and batches."""

    def steps(self) -> Iterator[float]:
        """Train to the end, yielding each step's loss."""
        parameters = self.adapters.parameters(PSI)
        self.adapters.train_only(parameters)
        # The head of the scorer is a vector, which AdamW suits.
        decoder = Optimiser.from_config(parameters, self.decoder, num_steps=self.config.scorer_steps)
        head = torch.optim.AdamW(self.scorer.layers.parameters(), lr=1e-2, weight_decay=0.0)
        lengths = [len(each.query) + 2 * len(each.chain) for each in self.problems]
        shuffler = random.Random(self.config.seed)
        generator = torch.Generator().manual_seed(self.config.seed)
        while decoder.step_count < decoder.num_steps:
            for batch in bucketed(lengths, batch_size=self.decoder.batch_size, shuffler=shuffler):
                if decoder.step_count == decoder.num_steps:
                    return
                problems = [self.problems[number] for number in batch]
                ratio, jitter_BS = shuffler.choice(RATIOS), _jitter(problems, generator)
                loss = decoder.step_on(range(len(problems)), partial(self._part_loss, head, problems, ratio, jitter_BS))
                gradients = [each.grad for each in self.scorer.layers.parameters() if each.grad is not None]
                if all(bool(gradient.isfinite().all()) for gradient in gradients):
                    head.step()
                yield loss

    def _part_loss(
        self,
        head: torch.optim.Optimizer,
        problems: Sequence[EncodedProblem],
        ratio: Decimal,
        jitter_BS: Tensor,
        part: Sequence[int],
        whole: Sequence[int],
    ) -> Tensor:
        """Compute what some rows of a batch add to its loss."""
        if part[0] == whole[0]:
            head.zero_grad()  # at the step's beginning, and when it is begun again in smaller parts
        return self.loss([problems[row] for row in part], ratio, jitter_BS[list(part)], whole=problems)

    def loss(
        self,
        batch: Sequence[EncodedProblem],
        ratio: Decimal,
        jitter_BS: Tensor | None = None,
        *,
        whole: Sequence[EncodedProblem] | None = None,
    ) -> Tensor:
        """Cross-entropy of the answer, and some of the chain's, from the k best tokens.

        Args:
            jitter_BS: Added to the scores before the best are chosen; it may be wider than these problems.
            whole: The batch that these problems are a part of, whose mean the losses are a share of.
        """
        gold, states_BSD = self._gold(batch)
        bias_BS = self._choice(batch, self.scorer(states_BSD), ratio, jitter_BS)
        losses = []
        for (start, text, weight), (_, every, _) in zip(self._tasks(batch), self._tasks(whole or batch), strict=True):
            sequence = gold.copy()
            sequence.bias_BS = bias_BS
            part = sum(map(len, text)) / sum(map(len, every))
            losses.append(weight * part * answer_loss(self.adapters, sequence, start, text))
        return torch.stack(losses).sum()

    def _tasks(self, batch: Sequence[EncodedProblem]) -> list[tuple[list[list[int]], list[list[int]], float]]:
        answer = ([self.adapters.theta.encoder.answer_marker] * len(batch), [each.answer for each in batch], 1.0)
        # The query's last token opens the chain.
        chain = ([each.query[-1:] for each in batch], [each.chain for each in batch], CHAIN_WEIGHT)
        return [answer, chain]

    @torch.no_grad()
    def _gold(self, batch: Sequence[EncodedProblem]) -> tuple[CachedSequence, Tensor]:
        """Query and chain under θ, and their states at index T: B, S, D."""
        theta = self.adapters.theta
        self.adapters.use(None)
        rows = [[*each.query, *each.chain] for each in batch]
        ids_BS, mask_BS = pad_right(rows, fill=theta.pad_id, device=theta.device)
        sequence = CachedSequence.empty(len(batch), theta.device)
        at_layer_BSD = theta.blocks.run_ids(ids_BS, mask_BS, sequence, last=self.layer)
        theta.blocks.run(at_layer_BSD, self.layer, theta.num_layers, sequence)
        return sequence, at_layer_BSD

    def _choice(
        self, batch: Sequence[EncodedProblem], scores_BS: Tensor, ratio: Decimal, jitter_BS: Tensor | None
    ) -> Tensor:
        """The bias with which the query and the chosen chain tokens alone can be attended to: B, S."""
        jittered_BS = scores_BS.detach().cpu()
        if jitter_BS is not None:
            jittered_BS = jittered_BS + jitter_BS[:, : jittered_BS.shape[1]]
        is_chosen_BS = torch.zeros_like(jittered_BS, dtype=torch.bool)
        is_query_BS = torch.zeros_like(is_chosen_BS)
        for row, each in enumerate(batch):
            start, length = len(each.query), len(each.chain)
            best = jittered_BS[row, start : start + length].topk(num_kept(ratio, length)).indices
            is_chosen_BS[row, start + best] = True
            is_query_BS[row, :start] = True
        is_chosen_BS, is_query_BS = is_chosen_BS.to(scores_BS.device), is_query_BS.to(scores_BS.device)
        felt_BS = torch.where(is_chosen_BS, scores_BS - scores_BS.detach(), 0.0)
        return felt_BS.masked_fill(~(is_chosen_BS | is_query_BS), float("-inf"))


def _jitter(problems: Sequence[EncodedProblem], generator: torch.Generator) -> Tensor:
    """Gumbel noise for every column of query and chain: B, S."""
    widest = max(len(each.query) + len(each.chain) for each in problems)
    uniform_BS = torch.rand(len(problems), widest, generator=generator).clamp(1e-6, 1 - 1e-6)
    return -(-uniform_BS.log()).log()
