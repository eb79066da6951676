"""END_ψ: does another contemplation token follow? (paper, section 4.2), and when to ask.

END is a linear classifier on a contemplation token's raw state at index L. Asking it costs a pass through the layers
above l. So a second classifier, the hint (ours), predicts from the state at index l what END will say, and END is asked
when the hint finds it likely enough. END alone decides: the hint changes the cost of a rollout, not its tokens.

Dimensions: B batch, K contemplation tokens, T tokens of one rollout, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ccot_cli.errors import CorruptError, retrain_hint
from ccot_cli.tensors.probes import Logistic

FILE_NAME = "end.safetensors"

EndChance = Callable[[Tensor], Tensor]
"""States at index l (B, D) -> probability that each row's token is END (B)."""


@dataclass(frozen=True)
class End:
    """The classifier that decides after which token no other comes, and its hint."""

    rule: Logistic
    """On raw states at index L: END if its logit is above 0."""
    hint: Logistic
    """On raw states at index l: whether the rule will say END."""

    def __call__(self, last_BKD: Tensor) -> Tensor:
        """Apply the rule to raw states at index L: B, K, True at END."""
        return self.rule.logits(last_BKD) > 0

    def probability(self, last_BKD: Tensor) -> Tensor:
        """Compute the rule's probability of END: B, K, above 0.5 at END."""
        return self.rule.logits(last_BKD).sigmoid()

    def chance(self, lower_BD: Tensor) -> Tensor:
        """Estimate how likely each row's token is END, from its state at index l: B."""
        return self.hint.logits(lower_BD).sigmoid()

    def to(self, device: torch.device) -> "End":
        return End(self.rule.to(device), self.hint.to(device))

    def save(self, folder: Path) -> None:
        """Write both classifiers into a trained folder."""
        saved = {
            "weight": self.rule.weight_D,
            "bias": self.rule.bias,
            "hint_weight": self.hint.weight_D,
            "hint_bias": self.hint.bias,
        }
        save_file({name: each.cpu() for name, each in saved.items()}, folder / FILE_NAME)

    @classmethod
    def load(cls, folder: Path, width: int) -> "End":
        """Read saved classifiers.

        Raises:
            CorruptError: if the file is damaged or made for another width.
        """
        path = folder / FILE_NAME
        try:
            saved = load_file(path)
            weights = saved["weight"], saved["hint_weight"]
            biases = saved["bias"], saved["hint_bias"]
        except (OSError, KeyError, SafetensorError) as error:
            raise CorruptError(f"{path} cannot be read: {error}", fix=retrain_hint(folder)) from error
        fits = {each.shape for each in weights} == {(width,)} and {each.shape for each in biases} == {()}
        if not (fits and all(bool(tensor.isfinite().all()) for tensor in saved.values())):
            raise CorruptError(f"{path} does not fit a model of width {width}", fix=retrain_hint(folder))
        return cls(*map(Logistic, weights, biases))


class EndSchedule:
    """Decides after which token of a rollout END is asked.

    Asking too early costs L - l layer passes. Waiting after all rows have ended costs l passes for every further token.
    So END is asked once the expected cost of waiting reaches that of asking; rows count as independent. A wrong chance
    costs layer passes, up to the cap; it never changes a token.

    Args:
        chance: Estimates from states at index l how likely each token is END.
        wanted_BT: True at tokens that may come. A row that has no further token is not waited for.
        layer: l.
        num_layers: L.
    """

    def __init__(self, chance: EndChance, wanted_BT: Tensor, *, layer: int, num_layers: int) -> None:
        self._chance = chance
        self._may_go_on_BT = F.pad(wanted_BT[:, 1:].float(), (0, 1))
        self._num_tokens = 0
        self._is_open_B = torch.ones_like(self._may_go_on_BT[:, 0])
        """Probability that a row has not ended yet."""
        # If p is the probability that all rows have ended, waiting costs p·l passes for nothing and asking
        # (1 - p)·(L - l). They are equal at p = (L - l) / L.
        self._threshold = (num_layers - layer) / num_layers

    def is_due(self, lower_BD: Tensor) -> bool:
        """Add the next token, whose states at index l these are, and decide whether to ask END after it."""
        self._is_open_B = self._is_open_B * (1 - self._chance(lower_BD))
        have_ended: Tensor = (1 - self._is_open_B * self._may_go_on_BT[:, self._num_tokens]).prod()
        self._num_tokens += 1
        return bool(have_ended >= self._threshold)
