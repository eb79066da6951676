"""Replace one contemplation token by another question's: does the answer follow?

ψ and the tokens after it read a token through the keys and values of its states at every index, and the next token
reads its state at index l as its input. A patch replaces all of these; φ goes on from there.

Dimensions: B batch, I indices 0..L, K contemplation tokens, D width.
"""

import torch
from torch import Tensor

from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.decoding.phi import Contemplation
from ccot_cli.models.decoding.query import read_query


@torch.no_grad()
def patch(
    adapters: Adapters,
    queries: list[list[int]],
    tokens: Contemplation,
    donor_BIKD: Tensor,
    place: int,
    *,
    layer: int,
    reader: str | None = None,
) -> CachedSequence:
    """Run the queries and their tokens again, with the donors' token at one place; those after it are generated anew.

    Args:
        adapters: θ with φ.
        queries: Token ids of each row.
        tokens: What φ generated for them, equally many in every row; as many come out.
        donor_BIKD: The donors' states, from `token_states` of controls.py, with at least `place` + 1 tokens.
        place: Which token is replaced, from 0.
        layer: l.
        reader: Adapter that reads the queries; None is θ.

    Returns:
        The sequence to answer from.
    """
    blocks = adapters.theta.blocks
    sequence = read_query(adapters, queries, adapter=reader)
    adapters.use(PHI)
    if place:
        sequence.extend(tokens.mask_BK[:, :place])
        blocks.run(blocks.enter(tokens.inputs_BKD[:, :place], sequence), 0, blocks.num_layers, sequence)
    sequence.extend(tokens.mask_BK[:, place : place + 1])
    blocks.place(donor_BIKD[:, :, place : place + 1], sequence)
    rest_BK = tokens.mask_BK[:, place + 1 :]
    if rest_BK.shape[1]:
        _, lower_BKD = blocks.feed_back(sequence, donor_BIKD[:, layer, place], rest_BK, layer=layer)
        blocks.run(lower_BKD, layer, blocks.num_layers, sequence)
    return sequence
