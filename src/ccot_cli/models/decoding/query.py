"""Read queries: their keys and values, and the state from which the first contemplation token starts.

Dimensions: B batch, N query, D width.
"""

import torch
from torch import Tensor

from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.tensors.masks import pad_left


def encode_query(
    adapters: Adapters, queries: list[list[int]], *, layer: int, adapter: str | None = None
) -> tuple[CachedSequence, Tensor]:
    """Run the queries, under θ unless an adapter is named.

    Args:
        adapters: θ with its adapters.
        queries: Token ids of each row.
        layer: l, the hidden-state index of z_0.
        adapter: Whose weights read the queries; None is θ.

    Returns:
        The sequence to continue, and z_0, the last query token's state at index l: B, D.

    Raises:
        UsageError: if a query has more tokens than the model has positions.
    """
    theta = adapters.theta
    ids_BN, mask_BN = pad_left(queries, fill=theta.pad_id, device=theta.device)
    if not ids_BN.numel():  # A column of padding, which an empty query has beside others.
        ids_BN, mask_BN = ids_BN.new_full((len(queries), 1), theta.pad_id), mask_BN.new_zeros(len(queries), 1)
    num_columns, most = ids_BN.shape[1], theta.blocks.num_positions
    if most is not None and num_columns > most:
        raise UsageError(
            f"a question of {num_columns:,} tokens is longer than the model's {most:,} positions",
            fix="ask a shorter one",
        )
    adapters.use(adapter)
    rows = max(1, theta.pass_tokens // num_columns) if theta.device.type == "cpu" else len(queries)
    parts = [
        _encode(theta, ids, mask, layer=layer)
        for ids, mask in zip(torch.split(ids_BN, rows), torch.split(mask_BN, rows), strict=True)
    ]
    return CachedSequence.joined([sequence for sequence, _ in parts]), torch.cat([first_BD for _, first_BD in parts])


def read_query(adapters: Adapters, queries: list[list[int]], *, adapter: str | None = None) -> CachedSequence:
    """Run the queries for their keys and values alone; the top layer stops once it has made them.

    Raises:
        UsageError: if a query has more tokens than the model has positions.
    """
    theta = adapters.theta
    return encode_query(adapters, queries, layer=theta.num_layers - 1, adapter=adapter)[0]


def _encode(theta: Theta, ids_BN: Tensor, mask_BN: Tensor, *, layer: int) -> tuple[CachedSequence, Tensor]:
    """Run one batch of queries. Return its sequence and the last tokens' states at index `layer`: B, D."""
    sequence, top = CachedSequence.empty(len(ids_BN), theta.device), theta.num_layers - 1
    lower_BND = theta.blocks.run_ids(ids_BN, mask_BN, sequence, last=layer)
    # Of the top layer only keys and values are read again, unless z_0 is taken from it (layer = L).
    if layer <= top:
        theta.blocks.fill(theta.blocks.run(lower_BND, layer, top, sequence), top, sequence)
    return sequence, lower_BND[:, -1]
