"""END_ψ: does another contemplation token follow? (paper, section 4.2)

A linear classifier on a contemplation token's raw state at index L, fitted by logistic regression. Another one, ours,
foretells from index l what it is going to say, so that it is asked where it is likely to say END.

Dimensions: M tokens of many examples, B batch, K contemplation tokens, D width.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ccot_cli.errors import CorruptError, anew
from ccot_cli.tensors.probes import Logistic, fit_logistic

FILE_NAME = "end.safetensors"


@dataclass(frozen=True)
class End:
    """Decides after which token no other comes."""

    rule: Logistic
    """On raw states at index L: END where its logit is above 0."""
    hint: Logistic
    """On raw states at index l: whether the rule will say so."""

    def __call__(self, last_BKD: Tensor) -> Tensor:
        """Raw states at index L -> True at END: B, K."""
        return self.rule.logits(last_BKD) > 0

    def chance(self, lower_BD: Tensor) -> Tensor:
        """How likely each row's token is END, from its state at index l: B."""
        return self.hint.logits(lower_BD).sigmoid()

    def to(self, device: torch.device) -> "End":
        return End(self.rule.to(device), self.hint.to(device))

    def save(self, folder: Path) -> None:
        saved = {
            "weight": self.rule.weight_D,
            "bias": self.rule.bias,
            "hint_weight": self.hint.weight_D,
            "hint_bias": self.hint.bias,
        }
        save_file({name: each.cpu() for name, each in saved.items()}, folder / FILE_NAME)

    @classmethod
    def load(cls, folder: Path, width: int) -> "End":
        """Read a saved one.

        Raises:
            CorruptError: where it is damaged or made for another width.
        """
        path = folder / FILE_NAME
        try:
            saved = load_file(path)
            weights = saved["weight"], saved["hint_weight"]
            biases = saved["bias"], saved["hint_bias"]
        except (OSError, KeyError, SafetensorError) as error:
            raise CorruptError(f"{path} cannot be read: {error}", fix=anew(folder)) from error
        fits = {each.shape for each in weights} == {(width,)} and {each.shape for each in biases} == {()}
        if not (fits and all(bool(tensor.isfinite().all()) for tensor in saved.values())):
            raise CorruptError(f"{path} does not fit a model of width {width}", fix=anew(folder))
        return cls(*map(Logistic, weights, biases))


def fit_end(rule: Logistic, lower: Sequence[Tensor], last: Sequence[Tensor]) -> End:
    """Give a rule its hint, which learns what the rule says of the tokens up to each problem's first END.

    Args:
        lower: Raw states of each problem's tokens at index l: K, D.
        last: The same at index L.
    """
    said: list[list[bool]] = [(rule.logits(each) > 0).tolist() for each in last]
    reached = [each.index(True) + 1 if True in each else len(each) for each in said]
    lower_MD = torch.cat([each[:count] for each, count in zip(lower, reached, strict=True)])
    is_end = [is_end for each, count in zip(said, reached, strict=True) for is_end in each[:count]]
    return End(rule, fit_logistic(lower_MD, torch.tensor(is_end, device=lower_MD.device)))


def labelled(states: Sequence[Tensor], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What END's rule is fitted on: every problem's tokens up to its last one.

    Args:
        states: Each problem's: K, D. Those behind its k-th are left out.
        counts: k of each.

    Returns:
        last_MD and is_last_M, M tokens of all problems.
    """
    kept = [each[:count] for each, count in zip(states, counts, strict=True)]
    is_last = [place == count for each, count in zip(kept, counts, strict=True) for place in range(1, 1 + len(each))]
    return torch.cat(kept), torch.tensor(is_last, device=kept[0].device)


BEYOND = 2
"""Tokens behind the k-th up to which a rollout may go on."""


class LateEnds:
    """Where each problem's rollout ends, at its k-th token or where END might end it later (ours).

    When a question is answered END decides, and now and then misses the k-th token. A ψ that has only read exactly k
    (paper, section 4.2) does not know what to make of one more. Ends are drawn anew for every epoch, with the
    probabilities of an END that is fitted before ψ learns, on one half of the problems for the other, so that it has
    not seen those that it is asked about. Where it would end a rollout too early, k stands.

    Args:
        states: Raw states at index L of each problem's tokens, up to `BEYOND` behind its k-th: K, D.
        counts: k of each.
        seed: Of the draws.
    """

    def __init__(self, states: Sequence[Tensor], counts: Sequence[int], *, seed: int) -> None:
        self._counts, self._seed = counts, seed
        self._chances: list[list[float]] = [[] for _ in states]
        """How likely END ends it after each token that is reached."""
        for half in (0, 1):
            others = range(1 - half, len(states), 2) or range(len(states))
            tokens = labelled([states[number] for number in others], [counts[number] for number in others])
            rule = fit_logistic(*tokens)
            for number in range(half, len(states), 2):
                self._chances[number] = rule.logits(states[number]).sigmoid().tolist()

    def __call__(self, epoch: int) -> list[int]:
        """How many tokens each problem has in an epoch, counted from 0."""
        draw = random.Random(f"{self._seed} {epoch}")
        return [max(count, _end(chances, draw)) for count, chances in zip(self._counts, self._chances, strict=True)]


def _end(chances: list[float], draw: random.Random) -> int:
    return next((count for count, chance in enumerate(chances, start=1) if draw.random() < chance), len(chances))
