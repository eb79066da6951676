"""DECODE_ψ: answer from the query and the contemplation tokens (paper, Algorithm 2, lines 9 to 14).

Dimensions: B batch, T tokens, O answer tokens, D width, V vocabulary.
"""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ccot_cli.models.adapters import PSI, Adapters
from ccot_cli.models.blocks import Sequence
from ccot_cli.models.theta import Theta
from ccot_cli.tensors.masks import pad_right


@dataclass(frozen=True)
class Text:
    """Greedily decoded tokens of a batch, without the end of sequence."""

    ids: list[list[int]]
    is_capped: list[bool]
    """True where the cap ended the row."""


def answer_loss(
    theta: Theta,
    adapters: Adapters,
    sequence: Sequence,
    start: Rows[Rows[int]],
    answers: Rows[Rows[int]],
) -> Tensor:
    """Mean cross-entropy of the answers' tokens after `start` (<ANS>), under ψ (paper, LOSS_ψ).

    Args:
        sequence: Query and contemplation tokens so far.
        start: Ids that every row is given, the same number in each, at least one; not counted.
        answers: Ids that every row must say, end of sequence included.
    """
    adapters.use(PSI)
    given = len(start[0])
    fed = [[*opening, *answer[:-1]] for opening, answer in zip(start, answers, strict=True)]
    fed_BT, mask_BT = pad_right(fed, fill=theta.pad_id, device=theta.device)
    hidden_BOD = theta.blocks.run_ids(fed_BT, mask_BT, sequence)[:, given - 1 :]
    target_BO, mask_BO = pad_right(answers, fill=theta.pad_id, device=theta.device)
    # Padding gets no logits: they are the largest tensor of a step that writes whole chains.
    return F.cross_entropy(theta.blocks.logits(hidden_BOD[mask_BO]).float(), target_BO[mask_BO])


@torch.no_grad()
def decode(
    theta: Theta,
    adapters: Adapters,
    sequence: Sequence,
    start: Rows[Rows[int]],
    *,
    max_tokens: int,
    adapter: str | None = PSI,
    may_end: bool = True,
    is_done: Callable[[list[int]], bool] | None = None,
) -> Text:
    """Feed `start` and decode greedily to each row's end of sequence, the cap, or the model's last position.

    Args:
        sequence: What comes before; extended.
        start: Ids to feed first, the same number in every row.
        adapter: Whose weights decode; None is θ.
        may_end: False goes on to the cap whatever is decoded, to measure time.
        is_done: Whether a row that has decoded these tokens ends there too.
    """
    adapters.use(adapter)
    # How many tokens each row can say: the last one is not fed.
    limit_B = torch.full((len(start),), max_tokens, device=theta.device)
    if theta.blocks.num_positions is not None:
        free_B = theta.blocks.num_positions - sequence.mask_BS.sum(dim=1) - len(start[0])
        limit_B = limit_B.minimum(free_B + 1)
    fed_BT = torch.tensor(start, device=theta.device)
    is_alive_B = limit_B > 0
    is_capped_B = ~is_alive_B
    columns: list[Tensor] = []
    said: list[list[int]] = [[] for _ in start]
    while bool(is_alive_B.any()):
        mask_BT = is_alive_B[:, None].expand_as(fed_BT)
        hidden_BTD = theta.blocks.run_ids(fed_BT, mask_BT, sequence)
        next_B = theta.blocks.logits(hidden_BTD[:, -1:])[:, 0].argmax(dim=-1)
        next_B = torch.where(is_alive_B, next_B, theta.eos_id)
        columns.append(next_B)
        if may_end:
            is_alive_B = is_alive_B & (next_B != theta.eos_id)
        if is_done is not None:
            for row, token in zip(said, next_B.tolist(), strict=True):
                row.append(token)
            is_alive_B = is_alive_B & torch.tensor([not is_done(row) for row in said], device=theta.device)
        is_full_B = is_alive_B & (limit_B <= len(columns))
        is_capped_B, is_alive_B = is_capped_B | is_full_B, is_alive_B & ~is_full_B
        fed_BT = next_B[:, None]
    rows = torch.stack(columns, dim=1).tolist() if columns else [[] for _ in start]
    ids = [row[: row.index(theta.eos_id)] if theta.eos_id in row else row for row in rows]
    return Text(ids=ids, is_capped=is_capped_B.tolist())
