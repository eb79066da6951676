"""Do contemplation tokens carry anything? Replace them and see whether answers get worse.

ψ reads a token through the keys and values of its states at every index. A control changes these states and leaves the
number of tokens, the query and ψ as they are.

Dimensions: B batch, I indices 0..L, K contemplation tokens, D width.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.decoding.phi import Contemplation
from ccot_cli.models.decoding.query import encode_query, read_query

Control = Literal["zeroed", "shuffled", "noise", "untrained"]
CONTROLS: tuple[Control, ...] = get_args(Control)


def token_states(
    adapters: Adapters, queries: list[list[int]], tokens: Contemplation, *, reader: str | None = None
) -> Tensor:
    """Run the inputs of generated tokens again, for their states at every index: B, I, K, D.

    Args:
        reader: Adapter that reads the queries; None is θ.
    """
    blocks = adapters.theta.blocks
    sequence = read_query(adapters, queries, adapter=reader)
    adapters.use(PHI)
    sequence.extend(tokens.mask_BK)
    entered_BKD = blocks.enter(tokens.inputs_BKD, sequence)
    return torch.stack(blocks.run_each(entered_BKD, 0, blocks.num_layers, sequence), dim=1)


def replace_tokens(
    adapters: Adapters,
    queries: list[list[int]],
    tokens: Contemplation,
    kind: Control,
    *,
    layer: int,
    reader: str | None = None,
) -> tuple[CachedSequence, Tensor]:
    """Run the queries of a batch again and append replacements of their contemplation tokens.

    - `zeroed`: all states are zero.
    - `shuffled`: the states are those of another question of the batch; if it has fewer tokens, its last is repeated.
    - `noise`: each state keeps its norm and gets a random direction.
    - `untrained`: θ generates the tokens in φ's place.

    Args:
        tokens: The contemplation tokens that φ generated for these queries.
        layer: Autoregressive layer l.
        reader: Adapter that reads the queries; None is θ.

    Returns:
        A new sequence to answer from, and the states of the replacements at index l: B, K, D.

    Raises:
        UsageError: if `shuffled` has a batch of one question.
    """
    blocks = adapters.theta.blocks
    sequence, first_BD = encode_query(adapters, queries, layer=layer, adapter=reader)
    if kind == "untrained":
        adapters.use(None)
        _, lower_BKD = blocks.feed_back(sequence, first_BD, tokens.mask_BK, layer=layer)
        blocks.run(lower_BKD, layer, blocks.num_layers, sequence)
        return sequence, lower_BKD
    states_BIKD = _replaced(kind, token_states(adapters, queries, tokens, reader=reader), tokens.mask_BK)
    sequence.extend(tokens.mask_BK)
    adapters.use(PHI)
    blocks.place(states_BIKD, sequence)
    return sequence, states_BIKD[:, layer]


def _replaced(kind: Control, states_BIKD: Tensor, mask_BK: Tensor) -> Tensor:
    if kind == "zeroed":
        return torch.zeros_like(states_BIKD)
    if kind == "noise":
        generator = torch.Generator().manual_seed(0)
        noise_BIKD = torch.randn(states_BIKD.shape, generator=generator).to(states_BIKD)
        noise_BIKD *= states_BIKD.norm(dim=-1, keepdim=True) / noise_BIKD.norm(dim=-1, keepdim=True)
        return noise_BIKD
    if len(states_BIKD) == 1:
        raise UsageError(
            "a batch of one question has no other question's tokens to use", fix="choose another --batch-size"
        )
    others_BIKD, last_B = states_BIKD.roll(1, dims=0), mask_BK.sum(dim=1).roll(1) - 1
    column_BK = torch.arange(mask_BK.shape[1], device=mask_BK.device)[None].minimum(last_B[:, None])
    column_BIKD = column_BK[:, None, :, None].expand_as(others_BIKD)
    return others_BIKD.gather(2, column_BIKD)
