"""CCOT_φ: generate contemplation tokens (paper, Algorithm 2, lines 3 to 8).

The next token needs layers 1..l of the last one only, so those run token by token; layers l+1..L read nothing but
their outputs and follow for a whole chunk of tokens at once, before a look at END. A look after every token is the
paper's algorithm to the letter; when one looks changes no token.

Dimensions: B batch, K contemplation tokens, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.end import EndChance, EndSchedule

IsEnd = Callable[[Tensor], Tensor]
"""Raw states at index L (B, K, D) -> True at tokens after which no other comes (B, K)."""


@dataclass(frozen=True)
class Contemplation:
    """The tokens of a batch of questions; the sequence they were appended to holds their keys and values."""

    inputs_BKD: Tensor
    """What was fed at the embedding position: z_0, then each token's state at index l."""
    last_BKD: Tensor
    """Raw states at index L."""
    mask_BK: Tensor
    """True at tokens that exist; a row's tokens come first."""
    is_capped_B: Tensor
    """True where the cap ended the row, not END."""

    @property
    def num_tokens_B(self) -> Tensor:
        return self.mask_BK.sum(dim=1)

    @property
    def final_BD(self) -> Tensor:
        """Raw states at index L of each row's last token."""
        return self.last_BKD[torch.arange(len(self.mask_BK), device=self.mask_BK.device), self.num_tokens_B - 1]


def contemplate(
    adapters: Adapters,
    sequence: CachedSequence,
    first_BD: Tensor,
    *,
    layer: int,
    max_tokens: int,
    num_tokens_B: Tensor | None = None,
    is_end: IsEnd | None = None,
    chance: EndChance | None = None,
    reserved: int = 0,
) -> Contemplation:
    """Generate contemplation tokens after the query, until END, a given number or the cap.

    Args:
        sequence: The query under θ; extended by K columns.
        first_BD: z_0.
        layer: Autoregressive layer l, 1 <= l <= L.
        max_tokens: The cap h; the model's last position ends a row too.
        num_tokens_B: Exact number of tokens per row, at least 1; then END is not asked.
        is_end: The stop classifier; without it and without a number, every row runs to the cap.
        chance: How likely each row's token is END, from which follows when END is asked; without, after every token.
        reserved: Positions to leave for the answer, where the model has a last one; one token there is always.
    """
    theta = adapters.theta
    adapters.use(PHI)
    batch, device = first_BD.shape[0], first_BD.device
    limit_B = torch.full((batch,), max_tokens) if num_tokens_B is None else num_tokens_B
    limit_B = torch.minimum(limit_B.to(device), theta.blocks.free_positions(sequence, reserved))
    limit = int(limit_B.max())
    is_alive_B = torch.ones(batch, dtype=torch.bool, device=device)
    chunks: list[_Chunk] = []
    state_BD, done = first_BD, 0
    is_end = is_end if num_tokens_B is None else None
    # Between two tokens only their states at index l pass, so layers l+1..L of a whole chunk can wait and run in one
    # parallel pass. A chunk ends when END has to be asked, because END reads index L: after every token without
    # `chance`, when the schedule says so with it, and only at the limit if the number of tokens is given.
    is_one_by_one = is_end is not None and chance is None
    while done < limit:
        column_T = torch.arange(done, done + 1 if is_one_by_one else limit, device=device)
        # Rows that have ended keep their columns, masked: a batch runs to its longest row.
        wanted_BT = is_alive_B[:, None] & (column_T[None] < limit_B[:, None])
        schedule = None
        if is_end and chance:
            schedule = EndSchedule(chance, wanted_BT, layer=layer, num_layers=theta.num_layers)
        chunks.append(_generate(theta, sequence, state_BD, wanted_BT, layer=layer, schedule=schedule))
        state_BD, done = chunks[-1].next_BD, done + chunks[-1].exists_BT.shape[1]
        if is_end:
            # The chunk may have run past a row's END, which is seen only now; those columns are masked out again.
            chunks[-1] = chunks[-1].cut(is_end, sequence)
            is_alive_B = is_alive_B & ~chunks[-1].has_end_B
            if not bool((is_alive_B & (limit_B > done)).any()):
                break
    return Contemplation(
        inputs_BKD=torch.cat([each.inputs_BTD for each in chunks], dim=1),
        last_BKD=torch.cat([each.last_BTD for each in chunks], dim=1),
        mask_BK=torch.cat([each.exists_BT for each in chunks], dim=1),
        is_capped_B=is_alive_B if num_tokens_B is None else torch.zeros_like(is_alive_B),
    )


@dataclass(frozen=True)
class _Chunk:
    """Tokens up to the next time END is asked."""

    inputs_BTD: Tensor
    last_BTD: Tensor
    exists_BT: Tensor
    has_end_B: Tensor
    next_BD: Tensor
    """What the next token is fed."""

    def cut(self, is_end: IsEnd, sequence: CachedSequence) -> "_Chunk":
        """Drop what lies behind each row's first END, from the sequence too."""
        is_end_BT = is_end(self.last_BTD) & self.exists_BT
        is_behind_BT = (is_end_BT.long().cumsum(dim=1) - is_end_BT.long()) > 0
        exists_BT = self.exists_BT & ~is_behind_BT
        sequence.mask_BS = torch.cat([sequence.mask_BS[:, : -exists_BT.shape[1]], exists_BT], dim=1)
        return replace(self, exists_BT=exists_BT, has_end_B=is_end_BT.any(dim=1))


def _generate(
    theta: Theta,
    sequence: CachedSequence,
    state_BD: Tensor,
    wanted_BT: Tensor,
    *,
    layer: int,
    schedule: EndSchedule | None,
) -> _Chunk:
    """Run layers 1..l token by token, until END is due, then the layers above for the whole chunk at once."""
    is_last = schedule.is_due if schedule else None
    inputs_BTD, lower_BTD = theta.blocks.feed_back(sequence, state_BD, wanted_BT, layer=layer, is_last=is_last)
    last_BTD = theta.blocks.run(lower_BTD, layer, theta.num_layers, sequence)
    exists_BT = wanted_BT[:, : last_BTD.shape[1]]
    return _Chunk(inputs_BTD, last_BTD, exists_BT, torch.zeros_like(exists_BT[:, 0]), lower_BTD[:, -1])


def replay(
    adapters: Adapters,
    sequence: CachedSequence,
    inputs_BKD: Tensor,
    mask_BK: Tensor,
    *,
    layer: int,
    trains_above: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run kept contemplation inputs in one parallel pass.

    Layers 1..l never see a gradient; those above do where `trains_above` (paper, section 4.2).

    Returns:
        lower_BKD and last_BKD, raw states at index l and at index L.
    """
    theta = adapters.theta
    adapters.use(PHI)
    sequence.extend(mask_BK)
    with torch.no_grad():
        lower_BKD = theta.blocks.run(theta.blocks.enter(inputs_BKD, sequence), 0, layer, sequence)
    with torch.set_grad_enabled(trains_above and torch.is_grad_enabled()):
        return lower_BKD, theta.blocks.run(lower_BKD, layer, theta.num_layers, sequence)
