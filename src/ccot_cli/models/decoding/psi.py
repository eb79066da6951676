"""DECODE_ψ: answer from the query and the contemplation tokens (paper, Algorithm 2, lines 9 to 14).

Dimensions: B batch, T tokens, O answer tokens, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    """True if the cap ended the row."""
    chances: list[list[float]] = field(compare=False)
    """The model's probability of each of these tokens; its last digits depend on the batch."""


_NO_TOKEN = -1
"""Stands for a row that gets no token."""


@dataclass
class _DecodedRows:
    """The rows of a batch during decoding, and which of them go on."""

    limit_B: Tensor
    """How many tokens each row may get."""
    ends: frozenset[int]
    """Ids that end a row."""
    may_end: bool
    is_done: Callable[[list[int]], bool] | None

    def __post_init__(self) -> None:
        self._ends_E = torch.tensor(sorted(self.ends), device=self.limit_B.device)
        self.is_open_B = self.limit_B > 0
        self.is_capped_B = ~self.is_open_B
        self._num_tokens_B = torch.zeros_like(self.limit_B)
        self.tokens: list[list[int]] = [[] for _ in self.limit_B]
        self._chances: list[Tensor] = []

    def append(self, next_B: Tensor, chance_B: Tensor, chosen_B: Tensor) -> None:
        """Append a token to the chosen rows, which must be open, and close those whose last token it is."""
        self._chances.append(torch.where(chosen_B, chance_B, _NO_TOKEN))
        for row, token in zip(self.tokens, torch.where(chosen_B, next_B, _NO_TOKEN).tolist(), strict=True):
            if token != _NO_TOKEN:
                row.append(token)
        self._num_tokens_B = self._num_tokens_B + chosen_B
        if self.may_end:
            self.is_open_B = self.is_open_B & ~(chosen_B & torch.isin(next_B, self._ends_E))
        if self.is_done is not None:
            self.is_open_B = self.is_open_B & ~torch.tensor([*map(self.is_done, self.tokens)], device=next_B.device)
        is_full_B = self.is_open_B & (self.limit_B <= self._num_tokens_B)
        self.is_capped_B, self.is_open_B = self.is_capped_B | is_full_B, self.is_open_B & ~is_full_B

    def text(self) -> Text:
        """Return what was decoded, each row up to its end of sequence."""
        lengths = [
            next((place for place, token in enumerate(row) if token in self.ends), len(row)) for row in self.tokens
        ]
        all_chances = torch.stack(self._chances, dim=1).tolist() if self._chances else [[] for _ in self.tokens]
        chances = [[chance for chance in row if chance != _NO_TOKEN] for row in all_chances]
        return Text(
            ids=[row[:length] for row, length in zip(self.tokens, lengths, strict=True)],
            is_capped=self.is_capped_B.tolist(),
            chances=[row[:length] for row, length in zip(chances, lengths, strict=True)],
        )


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
    """Feed `start` and decode greedily, each row to its end of sequence, the cap, or the model's last position.

    Args:
        adapters: θ with the adapter.
        sequence: What comes before; extended.
        start: Ids to feed first, equally many in every row.
        max_tokens: The cap, the most tokens to decode per row.
        adapter: The adapter that decodes; None is θ.
        may_end: False to decode up to the cap past any end of sequence, for measuring time.
        is_done: Decides whether a row with these decoded tokens ends as well.
        draft_B: A guess at each row's first token. A right one saves a pass; no guess changes a token.
    """
    theta = adapters.theta
    adapters.use(adapter)
    # One more than there are free positions, because the last token is not fed.
    limit_B = torch.full((len(start),), max_tokens, device=theta.device)
    if theta.blocks.num_positions is not None:
        free_B = theta.blocks.num_positions - sequence.mask_BS.sum(dim=1) - len(start[0])
        limit_B = limit_B.minimum(free_B + 1)
    rows = _DecodedRows(limit_B, theta.encoder.ends, may_end, is_done)
    fed_BT = torch.tensor(start, device=theta.device)
    if draft_B is not None:
        fed_BT = _feed_draft(theta, sequence, fed_BT, draft_B, rows)
    while bool(rows.is_open_B.any()):
        [(next_B, chance_B)] = _next(theta, sequence, fed_BT, rows.is_open_B[:, None].expand_as(fed_BT))
        rows.append(next_B, chance_B, rows.is_open_B)
        fed_BT = next_B[:, None]
    return rows.text()


def _next(
    theta: Theta, sequence: CachedSequence, fed_BT: Tensor, mask_BT: Tensor, *, num_last: int = 1
) -> list[tuple[Tensor, Tensor]]:
    """Feed tokens; return the likeliest successor of each of the last `num_last`, and its probability: B each."""
    hidden_BTD = theta.blocks.run_ids(fed_BT, mask_BT, sequence)
    logits_BTV = theta.blocks.logits(hidden_BTD[:, -num_last:]).float()
    best_BT, next_BT = logits_BTV.max(dim=-1)
    chance_BT = (best_BT - logits_BTV.logsumexp(dim=-1)).exp()
    return list(zip(next_BT.unbind(dim=1), chance_BT.unbind(dim=1), strict=True))


def _feed_draft(
    theta: Theta, sequence: CachedSequence, start_BT: Tensor, draft_B: Tensor, rows: _DecodedRows
) -> Tensor:
    """Feed the start and the draft in one pass. Append each row's first token and, if the draft is right, its second.

    Returns:
        The tokens to feed next: B, 1.
    """
    fed_BT = torch.cat([start_BT, draft_B[:, None]], dim=1)
    mask_BT = rows.is_open_B[:, None].expand_as(fed_BT).clone()
    # A row that may get only one token has no position for the draft.
    mask_BT[:, -1] &= rows.limit_B > 1
    (first_B, first_chance_B), (second_B, second_chance_B) = _next(theta, sequence, fed_BT, mask_BT, num_last=2)
    rows.append(first_B, first_chance_B, rows.is_open_B)
    is_right_B = rows.is_open_B & (first_B == draft_B)
    # Wrong drafts stay in the cache, masked.
    sequence.mask_BS = torch.cat([sequence.mask_BS[:, :-1], is_right_B[:, None]], dim=1)
    rows.append(second_B, second_chance_B, is_right_B)
    return torch.where(is_right_B, second_B, first_B)[:, None]
