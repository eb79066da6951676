"""Fit END and its hint on rollouts, end rollouts late while ψ learns, and evaluate END (paper, section 4.2).

Dimensions: M tokens of many examples, K contemplation tokens of one, D width.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.end import End
from ccot_cli.tensors.probes import Logistic, fit_logistic


def label_ends(states: Sequence[Tensor], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Collect what END's rule is fitted on: every problem's tokens up to its k-th, labelled as its last or not.

    Args:
        states: Raw states at index L of each problem's tokens: K, D. Those after the k-th are left out.
        counts: k of each problem.

    Returns:
        last_MD and is_last_M, of the M tokens of all problems.
    """
    parts = [each[:count] for each, count in zip(states, counts, strict=True)]
    is_last = [number == count for part, count in zip(parts, counts, strict=True) for number in range(1, 1 + len(part))]
    return torch.cat(parts), torch.tensor(is_last, device=parts[0].device)


def fit_end(rule: Logistic, lower: Sequence[Tensor], last: Sequence[Tensor]) -> End:
    """Add the hint to a fitted rule: it learns to predict what the rule says, up to each problem's first END.

    Args:
        rule: Fitted on the tokens of `label_ends`.
        lower: Raw states of each problem's tokens at index l: K, D.
        last: Their raw states at index L: K, D.
    """
    is_end: list[list[bool]] = [(rule.logits(each) > 0).tolist() for each in last]
    # A rollout stops at its first END, so the hint is never asked about later tokens.
    counts = [each.index(True) + 1 if True in each else len(each) for each in is_end]
    lower_MD = torch.cat([each[:count] for each, count in zip(lower, counts, strict=True)])
    labels = [label for each, count in zip(is_end, counts, strict=True) for label in each[:count]]
    return End(rule, fit_logistic(lower_MD, torch.tensor(labels, device=lower_MD.device)))


def fresh_end(theta: Theta) -> nn.Parameter:
    """Return the weights of a linear END that is to learn with φ, and its bias: 1, W with W = D + 1; all are zero."""
    return nn.Parameter(torch.zeros(1, theta.model.config.hidden_size + 1, device=theta.device))


def end_loss(weights_1W: Tensor, last_MD: Tensor, is_last_M: Tensor) -> Tensor:
    """Compute the binary cross-entropy of a linear END on normalised states; its last weight is the bias.

    This loss makes the layers of φ that learn show which token is the last. The END that answers is fitted afterwards.

    Args:
        weights_1W: W = D + 1 weights.
        last_MD: Raw states at index L, from `label_ends`.
        is_last_M: Their labels.

    Returns:
        A scalar.
    """
    last_MD = last_MD.float()
    unit_MD = F.normalize(last_MD, dim=-1) * last_MD.shape[-1] ** 0.5
    logits_M = (F.pad(unit_MD, (0, 1), value=1.0) @ weights_1W.T)[:, 0]
    return F.binary_cross_entropy_with_logits(logits_M, is_last_M.float())


MOST_EXTRA = 2
"""How many tokens a rollout may have after its k-th."""


class LateEnds:
    """Draws where each problem's rollout ends: at its k-th token, or later if END might miss that (ours).

    When a question is answered, END decides how many tokens there are, and it sometimes misses the k-th. A ψ that has
    only ever read exactly k tokens (paper, section 4.2) cannot use one more. So every epoch draws new ends, with the
    probabilities of an END that is fitted before ψ learns. It is fitted on one half of the problems for the other, so
    that it never judges problems that it has seen. An end before the k-th token is ignored.

    Args:
        states: Raw states at index L of each problem's tokens, up to `MOST_EXTRA` after its k-th: K, D.
        counts: k of each problem.
        threshold: The logit that END has to exceed to stop.
        seed: Seed of the draws.
    """

    def __init__(self, states: Sequence[Tensor], counts: Sequence[int], *, threshold: float, seed: int) -> None:
        self._counts, self._seed = counts, seed
        self._chances: list[list[float]] = [[] for _ in states]
        """By problem and token, the probability that END stops there."""
        for half in (0, 1):
            # A single problem has no other half.
            others = range(1 - half, len(states), 2) or range(len(states))
            tokens = label_ends([states[number] for number in others], [counts[number] for number in others])
            rule = fit_logistic(*tokens).stricter(threshold)
            for number in range(half, len(states), 2):
                self._chances[number] = rule.logits(states[number]).sigmoid().tolist()

    def __call__(self, epoch: int) -> list[int]:
        """Draw how many tokens each problem has in an epoch; epochs count from 0."""
        draw = random.Random(f"{self._seed} {epoch}")
        drawn = [_draw_end(chances, draw) for chances in self._chances]
        return [max(count, end) for count, end in zip(self._counts, drawn, strict=True)]


def _draw_end(chances: list[float], draw: random.Random) -> int:
    """Draw after how many tokens END stops; all of them if it never does."""
    return next((count for count, chance in enumerate(chances, start=1) if draw.random() < chance), len(chances))


@dataclass(frozen=True)
class EndReport:
    """END's confusion matrix: numbers of tokens."""

    true_ends: int
    missed_ends: int
    false_ends: int
    true_continues: int

    @property
    def accuracy(self) -> float:
        """Proportion of tokens that END is right about."""
        total = self.true_ends + self.missed_ends + self.false_ends + self.true_continues
        return (self.true_ends + self.true_continues) / total


def judge_end(end: End, last_MD: Tensor, is_last_M: Tensor) -> EndReport:
    """Compare END with the true ends.

    Args:
        last_MD: Raw states at index L, from `label_ends`.
        is_last_M: Their labels.
    """
    says_end_M = end(last_MD)
    return EndReport(
        true_ends=int((says_end_M & is_last_M).sum()),
        missed_ends=int((~says_end_M & is_last_M).sum()),
        false_ends=int((says_end_M & ~is_last_M).sum()),
        true_continues=int((~says_end_M & ~is_last_M).sum()),
    )
