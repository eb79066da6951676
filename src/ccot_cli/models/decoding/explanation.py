"""Write out the reasoning chain that contemplation tokens hold.

The decoder, an adapter like ψ, attends to the contemplation tokens and to what it has written itself, not to the query.
So what it writes comes from the tokens: it cannot solve the problem anew.

Dimensions: B batch, N query.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ccot_cli.data.prompts import Encoder
from ccot_cli.models.base.adapters import DECODER, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.decoding.psi import decode


def opening(encoder: Encoder) -> list[int]:
    """Return the ids that open an explanation: the prompt's last token, as for a written chain, if it has a text after
    the question; else <ANS>, because a question's last token would tell something of it.
    """
    return encoder.query("")[-1:] or encoder.answer_marker


def hidden_columns(encoder: Encoder, queries: Sequence[list[int]]) -> Tensor:
    """Return which columns of queries that are padded on the left the decoder must not see: B, N.

    A first token that every query has, such as the beginning of the text, stays visible: it has seen nothing of the
    question, and models rest their attention there if it has nowhere else to go.
    """
    longest = max(map(len, queries))
    hidden_BN = torch.ones(len(queries), longest, dtype=torch.bool)
    for row, query in enumerate(queries):
        hidden_BN[row, longest - len(query)] = query[:1] != encoder.query("")[:1]
    return hidden_BN


def explain(adapters: Adapters, hidden: CachedSequence, *, max_tokens: int) -> list[str]:
    """Write each row's chain.

    Args:
        adapters: θ with the decoder.
        hidden: Queries and contemplation tokens, the queries' columns hidden; extended.
        max_tokens: The cap.
    """
    encoder = adapters.theta.encoder
    start = [opening(encoder)] * len(hidden.mask_BS)
    text = decode(adapters, hidden, start, max_tokens=max_tokens, adapter=DECODER)
    return [encoder.decode(ids).strip() for ids in text.ids]
