"""Write out the reasoning chain that contemplation tokens hold.

The decoder, an adapter like ψ, never attends to the query. It writes in two parts:

1. the chain's results. It reads them from the contemplation tokens, and from the words that θ's own head reads there.
   Of the question it knows the length alone, because tokens keep their positions. So it can compute no result that the
   tokens do not hold.
2. the chain's lines. It is told these results and the question's numbers in their order as well: which of the numbers
   lead to which result.

Dimensions: B batch, N query, K contemplation tokens, T tokens that it is told, D width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ccot_cli.data.arithmetic import numbers_in, results_in, write_number
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
    return encoder.query("")[-1:] if encoder.goes_on_after_question else encoder.answer_marker


def hidden_columns(encoder: Encoder, queries: Sequence[list[int]]) -> Tensor:
    """Return which columns of queries that are padded on the left the decoder must not see: B, N.

    A first token that every query has, such as the beginning of the text, stays visible: it has seen nothing of the
    question, and models rest their attention there if it has nowhere else to go.
    """
    longest, first = max(map(len, queries)), encoder.query("")[:1]
    hidden_BN = torch.ones(len(queries), longest, dtype=torch.bool)
    for row, query in enumerate(queries):
        hidden_BN[row, longest - len(query)] = query[:1] != first
    return hidden_BN


def results_line(chain: str) -> str:
    """Return the results of a chain in their order, as the decoder learns to read them from the tokens."""
    return " ".join(map(write_number, results_in(chain)))


WORDS_TOLD = 1
"""Words of each contemplation token that the decoder is told, the likeliest ones."""


@torch.no_grad()
def told_to_read(theta: Theta, lower_KD: Tensor) -> list[int]:
    """Return the ids that the decoder is told before it reads the results: the words that the tokens say at index l.

    φ imitates text tokens at index l, so θ's norm and head read there what the token stands for. The decoder could
    learn to read it from keys and values, but takes long.

    Args:
        lower_KD: States of the contemplation tokens at index l.
    """
    return list(theta.blocks.logits(lower_KD).topk(WORDS_TOLD, dim=-1).indices.flatten().tolist())


def told_to_write(encoder: Encoder, words: list[int], results: str, query: list[int]) -> list[int]:
    """Return the ids that the decoder is told before it writes the lines: words, results, and the question's numbers.

    Args:
        words: What `told_to_read` returns.
        results: What the decoder has read.
        query: The question's ids. Its numbers include those that words give.
    """
    numbers = " ".join(map(write_number, numbers_in(encoder.question(query))))
    return [*words, *encoder.tokenizer(f"\n{results}\n{numbers}", add_special_tokens=False).input_ids]


class KeptTokens(NamedTuple):
    """Contemplation tokens of one query as a decoder learns from them."""

    states: Tensor
    """Keys and values at every layer, as `CachedSequence.kept` returns them, of the query's first token and of the
    contemplation tokens: 2 L, H, 1 + K, C."""
    told: list[int]
    """What `told_to_read` or `told_to_write` returns."""


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
def explain(
    adapters: Adapters,
    hidden: CachedSequence,
    queries: Sequence[list[int]],
    words: Sequence[list[int]],
    *,
    max_tokens: int,
) -> list[str]:
    """Read each row's results, and write its chain.

    Args:
        adapters: θ with the decoder.
        hidden: Queries and contemplation tokens, the queries' columns hidden; extended.
        queries: The questions' ids. Only their numbers are told, and only after the results are read.
        words: What `told_to_read` returns for each row.
        max_tokens: The cap of either part.
    """
    encoder, num_columns = adapters.theta.encoder, hidden.mask_BS.shape[1]

    def write(told: Sequence[list[int]]) -> list[str]:
        append_told(adapters, hidden, told)
        start = [opening(encoder)] * len(told)
        text = decode(adapters, hidden, start, max_tokens=max_tokens, adapter=DECODER)
        return [encoder.decode(ids).strip() for ids in text.ids]

    results = write(words)
    hidden.crop(num_columns)
    return write([told_to_write(encoder, *each) for each in zip(words, results, queries, strict=True)])
