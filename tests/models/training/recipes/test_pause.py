"""Pause and filler tokens against the model's own forward pass."""

from dataclasses import replace

import torch
from conftest import shaken
from torch import nn

from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training.contexts import Context, QueryContext
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import answer_loss
from ccot_cli.models.training.recipes.pause import PauseContext, filler_embedding, fresh_pause

QUERIES = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]


def make_examples(theta: Theta, counts: list[int]) -> list[PsiExample]:
    """Ask each query for an answer after so many pause tokens."""
    marker = theta.encoder.answer_marker
    return [PsiExample(query, marker, [20, 21], count) for query, count in zip(QUERIES, counts, strict=True)]


def pause_loss(adapters: Adapters, examples: list[PsiExample], pause_1D: nn.Parameter | None) -> torch.Tensor:
    """Compute the answers' loss; without an embedding nothing comes after the query."""
    context: Context = QueryContext(adapters) if pause_1D is None else PauseContext(adapters, pause_1D)
    sequence = context.read(range(len(examples)), examples).sequence
    return answer_loss(adapters, sequence, [each.start for each in examples], [each.answer for each in examples])


def test_no_pause_tokens_are_answering_at_once(theta: Theta) -> None:
    examples, adapters = make_examples(theta, [0, 0, 0]), shaken(theta, PSI)
    found, expected = (pause_loss(adapters, examples, pause) for pause in (fresh_pause(theta), None))
    torch.testing.assert_close(found, expected)


def test_pause_tokens_are_those_of_the_models_own_forward_pass(theta: Theta) -> None:
    width = theta.model.config.hidden_size
    pause = nn.Parameter(torch.randn(1, width, generator=torch.Generator().manual_seed(0)))
    [example, *_] = make_examples(theta, [3, 0, 0])
    adapters = shaken(theta, PSI)
    adapters.use(PSI)
    embedding = theta.model.get_input_embeddings()
    ends = torch.tensor([[*example.start, *example.answer]])
    embeds = torch.cat([embedding(torch.tensor([example.query])), pause.expand(1, 3, -1), embedding(ends)], dim=1)
    logits = theta.model(inputs_embeds=embeds).logits[:, -len(example.answer) - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits[0], torch.tensor(example.answer))
    torch.testing.assert_close(pause_loss(adapters, [example], pause), expected, atol=1e-5, rtol=1e-4)


def test_the_pause_token_learns(llama: Theta) -> None:
    pause = fresh_pause(llama)
    pause_loss(shaken(llama, PSI), make_examples(llama, [3, 1, 2]), pause).backward()  # type: ignore[no-untyped-call]
    assert pause.grad is not None
    assert pause.grad.abs().max() > 0


def test_a_filler_token_is_the_full_stop_itself_and_never_learns(theta: Theta) -> None:
    [example, *_] = make_examples(theta, [3, 0, 0])
    adapters = shaken(theta, PSI)
    stop = theta.encoder.tokenizer(".", add_special_tokens=False).input_ids
    context = PauseContext(adapters, filler_embedding(theta))
    assert not context.trained
    sequence = context.read([0], [example]).sequence
    found = answer_loss(adapters, sequence, [example.start], [example.answer])
    spelled = replace(example, query=[*example.query, *stop[:1] * 3])
    assert torch.allclose(found, pause_loss(adapters, [spelled], None), atol=1e-5)
