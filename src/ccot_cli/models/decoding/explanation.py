"""Write out the reasoning chain that contemplation tokens hold.

The decoder, an adapter like ψ, attends to the contemplation tokens, to the question's numbers in their order, and to
what it has written itself, not to the query. So what it does with the numbers comes from the tokens: it cannot solve
the problem anew, because it does not know what happens in it or what is asked.

Dimensions: B batch, N query, T tokens of numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ccot_cli.data.arithmetic import numbers_in, read_number, results_in, write_number
from ccot_cli.data.prompts import Encoder
from ccot_cli.models.base.adapters import DECODER, Adapters
from ccot_cli.models.base.cache import CachedSequence
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


def append_numbers(adapters: Adapters, hidden: CachedSequence, queries: Sequence[list[int]]) -> None:
    """Tell the decoder each question's numbers, as many as the model has positions for.

    Args:
        adapters: θ with the decoder.
        hidden: Queries and contemplation tokens, the queries' columns hidden; extended.
        queries: The queries' ids.
    """
    theta = adapters.theta
    ids = [numbers_told(theta.encoder, query) for query in queries]
    if theta.blocks.num_positions is not None:
        room_B = theta.blocks.num_positions - hidden.mask_BS.sum(dim=1) - len(opening(theta.encoder))
        ids = [each[: max(0, room)] for each, room in zip(ids, room_B.tolist(), strict=True)]
    if any(ids):
        adapters.use(DECODER)
        ids_BT, mask_BT = pad_right(ids, fill=theta.pad_id, device=theta.device)
        theta.blocks.run_ids(ids_BT, mask_BT, hidden)


@torch.no_grad()
def explain(adapters: Adapters, hidden: CachedSequence, queries: Sequence[list[int]], *, max_tokens: int) -> list[str]:
    """Write each row's chain.

    Args:
        adapters: θ with the decoder.
        hidden: Queries and contemplation tokens, the queries' columns hidden; extended.
        queries: The queries' ids.
        max_tokens: The cap.
    """
    append_numbers(adapters, hidden, queries)
    encoder = adapters.theta.encoder
    start = [opening(encoder)] * len(hidden.mask_BS)
    text = decode(adapters, hidden, start, max_tokens=max_tokens, adapter=DECODER)
    return [without_results(encoder.decode(ids).strip()) for ids in text.ids]
