"""CCOT_φ: generate contemplation tokens (paper, Algorithm 2, lines 3 to 8).

The next token needs only layers 1..l of the last one, so those run token by token. Layers l+1..L read only the outputs
of layer l, so they run for a whole chunk of tokens at once, before END is asked. The paper's algorithm asks END after
every token; when END is asked changes no token.

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
    """The contemplation tokens of a batch. Their keys and values are in the sequence they were appended to."""

    inputs_BKD: Tensor
    """What was fed at the embedding position: z_0, then each token's state at index l."""
    lower_BKD: Tensor
    """States at index l; the next token is fed its predecessor's."""
    last_BKD: Tensor
    """Raw states at index L."""
    mask_BK: Tensor
    """True at tokens that exist; a row's tokens come first."""
    is_capped_B: Tensor
    """True if the cap ended the row, not END."""

    @property
    def num_tokens_B(self) -> Tensor:
        """Number of tokens of each row."""
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
    max_tokens: int | Tensor,
    is_end: IsEnd | None = None,
    chance: EndChance | None = None,
    reserved: int = 0,
) -> Contemplation:
    """Generate contemplation tokens after the query, until END or the cap.

    Args:
        adapters: θ with φ.
        sequence: The query; extended by K columns.
        first_BD: z_0.
        layer: Autoregressive layer l, 1 <= l <= L.
        max_tokens: The cap h, of all rows or of each (B), at least 1. A row ends earlier if the model's positions run
            out.
        is_end: The stop classifier. Without it every row runs to the cap.
        chance: Estimates how likely each row's token is END, to decide when END is asked. Without it END is asked after
            every token.
        reserved: Positions to leave for the answer if the model has a last one. At least one token is generated.

    Raises:
        UsageError: if a row has no position left.
    """
    theta = adapters.theta
    adapters.use(PHI)
    batch, device = first_BD.shape[0], first_BD.device
    cap_B = torch.as_tensor(max_tokens).to(device).expand(batch)
    limit_B = torch.minimum(cap_B, theta.blocks.free_positions(sequence, reserved))
    limit = int(limit_B.max())
    is_alive_B = torch.ones(batch, dtype=torch.bool, device=device)
    chunks: list[_Chunk] = []
    state_BD, done = first_BD, 0
    # A token passes only its state at index l on to the next one, so layers l+1..L can wait and run for a whole chunk
    # of tokens in one parallel pass. END reads index L, so a chunk ends when END is to be asked: when the schedule says
    # so, after every token if there is no `chance`, and only at the limit if END is not asked at all.
    is_one_by_one = is_end is not None and chance is None
    while done < limit:
        column_T = torch.arange(done, done + 1 if is_one_by_one else limit, device=device)
        # A batch runs to its longest row. Rows that have ended still get columns, but masked ones.
        wanted_BT = is_alive_B[:, None] & (column_T[None] < limit_B[:, None])
        schedule = None
        if is_end and chance:
            schedule = EndSchedule(chance, wanted_BT, layer=layer, num_layers=theta.num_layers)
        chunks.append(_generate(theta, sequence, state_BD, wanted_BT, layer=layer, schedule=schedule))
        state_BD, done = chunks[-1].lower_BTD[:, -1], done + chunks[-1].exists_BT.shape[1]
        if is_end:
            # The chunk may have run past a row's END, which is known only now. Mask the columns after it.
            chunks[-1], has_end_B = chunks[-1].cut(is_end, sequence)
            is_alive_B = is_alive_B & ~has_end_B
            if not bool((is_alive_B & (limit_B > done)).any()):
                break
    return Contemplation(
        inputs_BKD=torch.cat([each.inputs_BTD for each in chunks], dim=1),
        lower_BKD=torch.cat([each.lower_BTD for each in chunks], dim=1),
        last_BKD=torch.cat([each.last_BTD for each in chunks], dim=1),
        mask_BK=torch.cat([each.exists_BT for each in chunks], dim=1),
        is_capped_B=is_alive_B,
    )


@dataclass(frozen=True)
class _Chunk:
    """Tokens that run between two times END is asked."""

    inputs_BTD: Tensor
    lower_BTD: Tensor
    last_BTD: Tensor
    exists_BT: Tensor

    def cut(self, is_end: IsEnd, sequence: CachedSequence) -> tuple["_Chunk", Tensor]:
        """Mask the tokens after each row's first END, in the sequence too; also return which rows have one."""
        is_end_BT = is_end(self.last_BTD) & self.exists_BT
        is_after_end_BT = (is_end_BT.long().cumsum(dim=1) - is_end_BT.long()) > 0
        exists_BT = self.exists_BT & ~is_after_end_BT
        sequence.mask_BS = torch.cat([sequence.mask_BS[:, : -exists_BT.shape[1]], exists_BT], dim=1)
        return replace(self, exists_BT=exists_BT), is_end_BT.any(dim=1)


def _generate(
    theta: Theta,
    sequence: CachedSequence,
    state_BD: Tensor,
    wanted_BT: Tensor,
    *,
    layer: int,
    schedule: EndSchedule | None,
) -> _Chunk:
    """Run layers 1..l token by token until END is due, then the layers above for the whole chunk at once."""
    is_last = schedule.is_due if schedule else None
    inputs_BTD, lower_BTD = theta.blocks.feed_back(sequence, state_BD, wanted_BT, layer=layer, is_last=is_last)
    last_BTD = theta.blocks.run(lower_BTD, layer, theta.num_layers, sequence)
    exists_BT = wanted_BT[:, : last_BTD.shape[1]]
    return _Chunk(inputs_BTD, lower_BTD, last_BTD, exists_BT)


def replay(
    adapters: Adapters,
    sequence: CachedSequence,
    inputs_BKD: Tensor,
    mask_BK: Tensor,
    *,
    layer: int,
    trains_above: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run the inputs of an earlier rollout in one parallel pass.

    Layers 1..l never get a gradient; the layers above do if `trains_above` is set (paper, section 4.2).

    Args:
        adapters: θ with φ.
        sequence: The query; extended by K columns.
        inputs_BKD: `Contemplation.inputs_BKD` of the rollout.
        mask_BK: True at tokens that exist.
        layer: l.
        trains_above: Whether gradients pass through the layers above l.

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
