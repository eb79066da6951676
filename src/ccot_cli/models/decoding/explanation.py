"""Write out the reasoning chain that contemplation tokens hold.

The decoder, an adapter like ψ, attends to the contemplation tokens, to the words that θ's own head reads from them, to
the question's numbers in their order, and to what it has written itself, not to the query. So what it does with the
numbers comes from the tokens: it cannot solve the problem anew, because it does not know what happens in it or what is
asked.

Dimensions: B batch, N query, K contemplation tokens, T tokens that it is told, D width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ccot_cli.data.arithmetic import numbers_in, read_number, results_in, write_number
from ccot_cli.data.prompts import Encoder
from ccot_cli.models.base.adapters import DECODER, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.psi import decode
from ccot_cli.tensors.masks import pad_right


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


def with_results(chain: str) -> str:
    """Put the results of a chain before it, on a line of their own, as the decoder learns to write it.

    The tokens hold results. So the decoder first writes what it reads, and then which operations lead there.
    """
    results = " ".join(map(write_number, results_in(chain)))
    return f"{results}\n{chain}" if results else chain


def without_results(text: str) -> str:
    """Return what follows the line of results."""
    first, _, rest = text.partition("\n")
    return rest if first.split() and None not in map(read_number, first.split()) else text


def numbers_told(encoder: Encoder, query: list[int]) -> list[int]:
    """Return the ids of a question's numbers in their order, those that words give included."""
    text = " ".join(map(write_number, numbers_in(encoder.question(query))))
    return list(encoder.tokenizer(text, add_special_tokens=False).input_ids) if text else []


WORDS_TOLD = 1
"""Words of each contemplation token that the decoder is told, the likeliest ones."""


@torch.no_grad()
def told(theta: Theta, query: list[int], lower_KD: Tensor) -> list[int]:
    """Return the ids that the decoder is told: words that the tokens say at index l, and the question's numbers.

    φ imitates text tokens at index l, so θ's norm and head read there what the token stands for. The decoder could
    learn to read it from keys and values, but takes long.

    Args:
        query: The question's ids.
        lower_KD: States of its contemplation tokens at index l.
    """
    words_KW = theta.blocks.logits(lower_KD).topk(WORDS_TOLD, dim=-1).indices
    between = theta.encoder.tokenizer("\n", add_special_tokens=False).input_ids
    return [*words_KW.flatten().tolist(), *between, *numbers_told(theta.encoder, query)]


class KeptTokens(NamedTuple):
    """Contemplation tokens of one query as a decoder learns from them."""

    states: Tensor
    """Keys and values at every layer, as `CachedSequence.kept` returns them, of the query's first token and of the
    contemplation tokens: 2 L, H, 1 + K, C."""
    told: list[int]


def append_told(adapters: Adapters, hidden: CachedSequence, told: Sequence[list[int]]) -> None:
    """Tell the decoder these ids, the first ones, as many as the model has positions for.

    Args:
        adapters: θ with the decoder.
        hidden: Queries and contemplation tokens, the queries' columns hidden; extended.
        told: By row.
    """
    theta = adapters.theta
    if theta.blocks.num_positions is not None:
        room_B = theta.blocks.num_positions - hidden.mask_BS.sum(dim=1) - len(opening(theta.encoder))
        told = [each[: max(0, room)] for each, room in zip(told, room_B.tolist(), strict=True)]
    if any(told):
        adapters.use(DECODER)
        ids_BT, mask_BT = pad_right(told, fill=theta.pad_id, device=theta.device)
        theta.blocks.run_ids(ids_BT, mask_BT, hidden)


@torch.no_grad()
def explain(adapters: Adapters, hidden: CachedSequence, told: Sequence[list[int]], *, max_tokens: int) -> list[str]:
    """Write each row's chain.

    Args:
        adapters: θ with the decoder.
        hidden: Queries and contemplation tokens, the queries' columns hidden; extended.
        told: What `told` returns for each row.
        max_tokens: The cap.
    """
    append_told(adapters, hidden, told)
    encoder = adapters.theta.encoder
    start = [opening(encoder)] * len(hidden.mask_BS)
    text = decode(adapters, hidden, start, max_tokens=max_tokens, adapter=DECODER)
    return [without_results(encoder.decode(ids).strip()) for ids in text.ids]
