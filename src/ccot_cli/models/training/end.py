"""Fit END and its hint on rollouts, let ψ learn from rollouts that end late, and judge END (paper, section 4.2).

Dimensions: M tokens of many examples, K contemplation tokens of one, D width.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ccot_cli.models.decoding.end import End
from ccot_cli.tensors.probes import Logistic, fit_logistic


def label_ends(states: Sequence[Tensor], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Collect what END's rule is fitted on: every problem's tokens up to its k-th.

    Args:
        states: Each problem's: K, D. Those after its k-th are left out.
        counts: k of each.

    Returns:
        last_MD and is_last_M, M tokens of all problems.
    """
    kept = [each[:count] for each, count in zip(states, counts, strict=True)]
    is_last = [place == count for each, count in zip(kept, counts, strict=True) for place in range(1, 1 + len(each))]
    return torch.cat(kept), torch.tensor(is_last, device=kept[0].device)


def fit_end(rule: Logistic, lower: Sequence[Tensor], last: Sequence[Tensor]) -> End:
    """Fit the hint, which learns what the rule says of the tokens up to each problem's first END.

    Args:
        lower: Raw states of each problem's tokens at index l: K, D.
        last: Their raw states at index L: K, D.
    """
    said: list[list[bool]] = [(rule.logits(each) > 0).tolist() for each in last]
    reached = [each.index(True) + 1 if True in each else len(each) for each in said]
    lower_MD = torch.cat([each[:count] for each, count in zip(lower, reached, strict=True)])
    is_end = [is_end for each, count in zip(said, reached, strict=True) for is_end in each[:count]]
    return End(rule, fit_logistic(lower_MD, torch.tensor(is_end, device=lower_MD.device)))


def end_loss(weights_1W: Tensor, last_MD: Tensor, is_last_M: Tensor) -> Tensor:
    """Compute the binary cross-entropy of a linear END on states of unit size, with a bias as its last weight.

    It teaches φ's layers above l to show which token is the last; the END that is used is fitted afterwards.
    """
    last_MD = last_MD.float()
    unit_MD = F.normalize(last_MD, dim=-1) * last_MD.shape[-1] ** 0.5
    logits_M = (F.pad(unit_MD, (0, 1), value=1.0) @ weights_1W.T)[:, 0]
    return F.binary_cross_entropy_with_logits(logits_M, is_last_M.float())


MOST_EXTRA = 2
"""Tokens after the k-th up to which a rollout may go on."""


class LateEnds:
    """Draws where each problem's rollout ends: at its k-th token, or later if END might miss that (ours).

    When a question is answered, END decides, and now and then misses the k-th token. A ψ that has only read exactly k
    tokens (paper, section 4.2) cannot use one more. So ends are drawn anew for every epoch, with the probabilities of
    an END that is fitted before ψ learns: on one half of the problems for the other half, so that it has not seen those
    that it is asked about. If it would end a rollout too early, k stands.

    Args:
        states: Raw states at index L of each problem's tokens, up to `MOST_EXTRA` after its k-th: K, D.
        counts: k of each.
        seed: Of the draws.
    """

    def __init__(self, states: Sequence[Tensor], counts: Sequence[int], *, seed: int) -> None:
        self._counts, self._seed = counts, seed
        self._chances: list[list[float]] = [[] for _ in states]
        """Probability that END ends it after each of its tokens."""
        for half in (0, 1):
            others = range(1 - half, len(states), 2) or range(len(states))
            tokens = label_ends([states[number] for number in others], [counts[number] for number in others])
            rule = fit_logistic(*tokens)
            for number in range(half, len(states), 2):
                self._chances[number] = rule.logits(states[number]).sigmoid().tolist()

    def __call__(self, epoch: int) -> list[int]:
        """Draw how many tokens each problem has in an epoch, counted from 0."""
        draw = random.Random(f"{self._seed} {epoch}")
        return [max(count, _end(chances, draw)) for count, chances in zip(self._counts, self._chances, strict=True)]


def _end(chances: list[float], draw: random.Random) -> int:
    return next((count for count, chance in enumerate(chances, start=1) if draw.random() < chance), len(chances))


@dataclass(frozen=True)
class EndReport:
    """END's confusion matrix, in tokens."""

    true_ends: int
    missed_ends: int
    false_ends: int
    true_continues: int

    @property
    def accuracy(self) -> float:
        total = self.true_ends + self.missed_ends + self.false_ends + self.true_continues
        return (self.true_ends + self.true_continues) / total


def judge_end(end: End, last_MD: Tensor, is_last_M: Tensor) -> EndReport:
    """Compare END with label_ends tokens."""
    says_end_M = end(last_MD)
    return EndReport(
        true_ends=int((says_end_M & is_last_M).sum()),
        missed_ends=int((~says_end_M & is_last_M).sum()),
        false_ends=int((says_end_M & ~is_last_M).sum()),
        true_continues=int((~says_end_M & ~is_last_M).sum()),
    )
