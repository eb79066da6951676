"""DECODE_ψ: answer from the query and the contemplation tokens (paper, Algorithm 2, lines 9 to 14).

Dimensions: B batch, T tokens, O answer tokens, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta


@dataclass(frozen=True)
class Text:
    """Greedily decoded tokens of a batch, without the end of sequence."""

    ids: list[list[int]]
    is_capped: list[bool]
    """True where the cap ended the row."""


_SILENT = -1
"""In place of a token: a row that says nothing."""


@dataclass
class _Speakers:
    """The rows of a batch while they are decoded."""

    limit_B: Tensor
    """How many tokens each may say."""
    eos_id: int
    may_end: bool
    is_done: Callable[[list[int]], bool] | None

    def __post_init__(self) -> None:
        self.is_alive_B = self.limit_B > 0
        self.is_capped_B = ~self.is_alive_B
        self._num_said_B = torch.zeros_like(self.limit_B)
        self.said: list[list[int]] = [[] for _ in self.limit_B]

    def say(self, next_B: Tensor, who_B: Tensor) -> None:
        """Let some of those that are alive say a token, which may be their last."""
        for row, token in zip(self.said, torch.where(who_B, next_B, _SILENT).tolist(), strict=True):
            if token != _SILENT:
                row.append(token)
        self._num_said_B = self._num_said_B + who_B
        if self.may_end:
            self.is_alive_B = self.is_alive_B & ~(who_B & (next_B == self.eos_id))
        if self.is_done is not None:
            self.is_alive_B = self.is_alive_B & ~torch.tensor([*map(self.is_done, self.said)], device=next_B.device)
        is_full_B = self.is_alive_B & (self.limit_B <= self._num_said_B)
        self.is_capped_B, self.is_alive_B = self.is_capped_B | is_full_B, self.is_alive_B & ~is_full_B


@torch.no_grad()
def decode(
    adapters: Adapters,
    sequence: CachedSequence,
    start: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    adapter: str | None = PSI,
    may_end: bool = True,
    is_done: Callable[[list[int]], bool] | None = None,
    draft_B: Tensor | None = None,
) -> Text:
    """Feed `start` and decode greedily to each row's end of sequence, the cap, or the model's last position.

    Args:
        sequence: What comes before; extended.
        start: Ids to feed first, the same number in every row.
        adapter: Whose weights decode; None is θ.
        may_end: False goes on to the cap whatever is decoded, to measure time.
        is_done: Whether a row that has decoded these tokens ends there too.
        draft_B: A guess at each row's first token; a right one saves a pass, none changes a token.
    """
    theta = adapters.theta
    adapters.use(adapter)
    # How many tokens each row can say: the last one is not fed.
    limit_B = torch.full((len(start),), max_tokens, device=theta.device)
    if theta.blocks.num_positions is not None:
        free_B = theta.blocks.num_positions - sequence.mask_BS.sum(dim=1) - len(start[0])
        limit_B = limit_B.minimum(free_B + 1)
    speakers = _Speakers(limit_B, theta.eos_id, may_end, is_done)
    fed_BT = torch.tensor(start, device=theta.device)
    if draft_B is not None:
        fed_BT = _feed_draft(theta, sequence, fed_BT, draft_B, speakers)
    while bool(speakers.is_alive_B.any()):
        next_B = _next(theta, sequence, fed_BT, speakers.is_alive_B[:, None].expand_as(fed_BT))[:, -1]
        speakers.say(next_B, speakers.is_alive_B)
        fed_BT = next_B[:, None]
    ids = [row[: row.index(theta.eos_id)] if theta.eos_id in row else row for row in speakers.said]
    return Text(ids=ids, is_capped=speakers.is_capped_B.tolist())


def _next(theta: Theta, sequence: CachedSequence, fed_BT: Tensor, mask_BT: Tensor, *, num_last: int = 1) -> Tensor:
    """Feed tokens; the likeliest after each of the last ones."""
    hidden_BTD = theta.blocks.run_ids(fed_BT, mask_BT, sequence)
    return theta.blocks.logits(hidden_BTD[:, -num_last:]).argmax(dim=-1)


def _feed_draft(
    theta: Theta, sequence: CachedSequence, start_BT: Tensor, draft_B: Tensor, speakers: _Speakers
) -> Tensor:
    """Feed the start and the draft at once, and have every row say its first token, and its second behind a right
    draft. Returns what each row is fed next.
    """
    fed_BT = torch.cat([start_BT, draft_B[:, None]], dim=1)
    mask_BT = speakers.is_alive_B[:, None].expand_as(fed_BT).clone()
    # A row that may say one token has no position for another.
    mask_BT[:, -1] &= speakers.limit_B > 1
    first_B, second_B = _next(theta, sequence, fed_BT, mask_BT, num_last=2).unbind(dim=1)
    speakers.say(first_B, speakers.is_alive_B)
    is_right_B = speakers.is_alive_B & (first_B == draft_B)
    sequence.mask_BS = torch.cat([sequence.mask_BS[:, :-1], is_right_B[:, None]], dim=1)
    speakers.say(second_B, is_right_B)
    return torch.where(is_right_B, second_B, first_B)[:, None]
