"""Train the learned scorer together with a decoder that answers from the tokens it selects (paper, section 3.2).

The decoder answers from the query and the k best tokens alone, and writes the chain from them. Top-k has no gradient,
so attention carries it: s - stopgrad(s), which is 0, is added to the attention logits of the selected tokens. This
changes no value and gives a selected token's score the gradient of its attention logits. In training, noise is added to
the scores, so that every token has a chance to be selected.

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
from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.selection.scorer import Scorer
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.models.training.psi import answer_loss
from ccot_cli.tensors.masks import pad_right
from ccot_cli.tensors.select import num_kept

RATIOS = tuple(Decimal(each) for each in ("0.05", "0.1", "0.2", "0.3"))
"""Every batch draws one of these, so that one scorer serves all ratios."""
CHAIN_WEIGHT = 0.2
"""Weight of the chain's loss beside the answer's."""


@dataclass
class ScorerTraining:
    """Trains the scorer and the gold decoder, a ψ that answers from selected gold states."""

    adapters: Adapters
    """With a fresh ψ for the gold decoder."""
    scorer: Scorer
    problems: Sequence[EncodedProblem]
    layer: int
    """T, the index of the states that the scorer reads."""
    config: ScoreConfig
    decoder: TrainPsiConfig
    """Rate, optimiser and batch sizes of the gold decoder."""

    def steps(self) -> Iterator[float]:
        """Take all steps; yield each one's loss.

        A problem is left out if the model has too few positions for its query and twice its chain.

        Raises:
            UsageError: if no problem is left.
            DivergedError: if several steps in a row, or the last one, are not finite.
            ResourceError: if a single example does not fit into memory.
        """
        parameters = self.adapters.parameters(PSI)
        self.adapters.train_only(parameters)
        # The scorer ends in a vector, and Muon is for matrices.
        decoder = Optimiser.from_config(parameters, self.decoder, num_steps=self.config.scorer_steps)
        head = torch.optim.AdamW(self.scorer.layers.parameters(), lr=1e-2, weight_decay=0.0)
        problems = self._short_problems()
        lengths = list(map(_length, problems))
        shuffler = random.Random(self.config.seed)
        generator = torch.Generator().manual_seed(self.config.seed)
        while decoder.step_count < decoder.num_steps:
            for batch in bucketed(lengths, batch_size=self.decoder.batch_size, shuffler=shuffler):
                if decoder.step_count == decoder.num_steps:
                    return
                whole = [problems[number] for number in batch]
                ratio, jitter_BS = shuffler.choice(RATIOS), _jitter(whole, generator)
                loss = decoder.step_on(range(len(whole)), partial(self._part_loss, head, whole, ratio, jitter_BS))
                gradients = [each.grad for each in self.scorer.layers.parameters() if each.grad is not None]
                # If the decoder's step was left out, the scorer's gradients may be those of a part of the batch.
                if decoder.norm is not None and all(bool(gradient.isfinite().all()) for gradient in gradients):
                    head.step()
                yield loss

    def _short_problems(self) -> list[EncodedProblem]:
        most = self.adapters.theta.blocks.num_positions
        short = [each for each in self.problems if most is None or _length(each) <= most]
        if not short:
            raise UsageError(
                f"no training problem fits into {most:,} positions with its chain twice, as the learned scorer needs",
                fix="set score.selector to another one, such as predictive",
            )
        return short

    def _part_loss(
        self,
        head: torch.optim.Optimizer,
        problems: Sequence[EncodedProblem],
        ratio: Decimal,
        jitter_BS: Tensor,
        part: Sequence[int],
        whole: Sequence[int],
    ) -> Tensor:
        """Compute what a part of a batch adds to the batch's loss."""
        if part[0] == whole[0]:
            head.zero_grad()  # when a step begins, or begins again with smaller parts
        return self.loss([problems[row] for row in part], ratio, jitter_BS[list(part)], whole=problems)

    def loss(
        self,
        batch: Sequence[EncodedProblem],
        ratio: Decimal,
        jitter_BS: Tensor | None = None,
        *,
        whole: Sequence[EncodedProblem] | None = None,
    ) -> Tensor:
        """Compute the cross-entropy of the answer from the k best tokens, plus `CHAIN_WEIGHT` times that of the chain.

        Args:
            batch: Problems of a batch, or of a part of it.
            ratio: r, which determines k.
            jitter_BS: Added to the scores before the best are selected; it may be wider than these problems.
            whole: The whole batch, if `batch` is a part: the losses are what the part adds to the batch's mean.

        Returns:
            A scalar.
        """
        gold, states_BSD = self._encode(batch)
        bias_BS = self._attention_bias(batch, self.scorer(states_BSD), ratio, jitter_BS)
        losses = []
        for (start, text, weight), (_, whole_text, _) in zip(
            self._tasks(batch), self._tasks(whole or batch), strict=True
        ):
            sequence = gold.copy()
            sequence.bias_BS = bias_BS
            proportion = sum(map(len, text)) / sum(map(len, whole_text))
            losses.append(weight * proportion * answer_loss(self.adapters, sequence, start, text))
        return torch.stack(losses).sum()

    def _tasks(self, batch: Sequence[EncodedProblem]) -> list[tuple[list[list[int]], list[list[int]], float]]:
        """Return what the decoder writes: by task, the ids that start each row, the ids to write, and the weight."""
        answer = ([self.adapters.theta.encoder.answer_marker] * len(batch), [each.answer for each in batch], 1.0)
        # The query's last token opens the chain.
        chain = ([each.query[-1:] for each in batch], [each.chain for each in batch], CHAIN_WEIGHT)
        return [answer, chain]

    @torch.no_grad()
    def _encode(self, batch: Sequence[EncodedProblem]) -> tuple[CachedSequence, Tensor]:
        """Run query and chain under θ; return their sequence and their states at index T: B, S, D."""
        theta = self.adapters.theta
        self.adapters.use(None)
        rows = [[*each.query, *each.chain] for each in batch]
        ids_BS, mask_BS = pad_right(rows, fill=theta.pad_id, device=theta.device)
        sequence = CachedSequence.empty(len(batch), theta.device)
        at_layer_BSD = theta.blocks.run_ids(ids_BS, mask_BS, sequence, last=self.layer)
        theta.blocks.run(at_layer_BSD, self.layer, theta.num_layers, sequence)
        return sequence, at_layer_BSD

    def _attention_bias(
        self, batch: Sequence[EncodedProblem], scores_BS: Tensor, ratio: Decimal, jitter_BS: Tensor | None
    ) -> Tensor:
        """Compute the bias that leaves only the query and the selected chain tokens to be attended to: B, S."""
        jittered_BS = scores_BS.detach().cpu()
        if jitter_BS is not None:
            jittered_BS = jittered_BS + jitter_BS[:, : jittered_BS.shape[1]]
        is_selected_BS = torch.zeros_like(jittered_BS, dtype=torch.bool)
        is_query_BS = torch.zeros_like(is_selected_BS)
        for row, each in enumerate(batch):
            start, length = len(each.query), len(each.chain)
            best = jittered_BS[row, start : start + length].topk(num_kept(ratio, length)).indices
            is_selected_BS[row, start + best] = True
            is_query_BS[row, :start] = True
        is_selected_BS, is_query_BS = is_selected_BS.to(scores_BS.device), is_query_BS.to(scores_BS.device)
        # The value is 0; the gradient is that of the score.
        bias_BS = torch.where(is_selected_BS, scores_BS - scores_BS.detach(), 0.0)
        return bias_BS.masked_fill(~(is_selected_BS | is_query_BS), float("-inf"))


def _length(problem: EncodedProblem) -> int:
    """Count the positions that a problem takes: the chain is read, and then written."""
    return len(problem.query) + 2 * len(problem.chain)


def _jitter(problems: Sequence[EncodedProblem], generator: torch.Generator) -> Tensor:
    """Draw Gumbel noise for every column of query and chain: B, S."""
    widest = max(len(each.query) + len(each.chain) for each in problems)
    uniform_BS = torch.rand(len(problems), widest, generator=generator).clamp(1e-6, 1 - 1e-6)
    return -(-uniform_BS.log()).log()
