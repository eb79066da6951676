"""Segments have the ids of the joined text, whichever kind of tokenizer a model has."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccot_cli.data.problems import Problem
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.presets import preset
from data.made_tokenizers import KINDS, make_tokenizer

PROMPTS = (
    "{question}\n",
    "Q: {question}\nA:",
    "[INST] {question} [/INST] ",
    "<|user|>\n{question}<|assistant|>\n",
    "<|user|>{question}<|assistant|>",
)


TOKENIZERS = {kind: make_tokenizer(kind) for kind in KINDS}
PROBLEM = Problem("1", "Mia has 3 pens. She buys 4 more. How many pens does she have?", "3 + 4 = 7 pens", "7")


def segments(encoder: Encoder, problem: Problem) -> list[list[int]]:
    encoded = encoder.problem(problem)
    return [encoded.query, encoded.chain, encoder.answer_marker, encoded.answer[:-1]]


def text_of(encoder: Encoder, ids: list[int]) -> str:
    text: str = encoder.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    return text


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("kind", KINDS)
def test_segments_have_the_ids_of_the_joined_text(kind: str, prompt: str) -> None:
    tokenizer = TOKENIZERS[kind]
    joined = f"{prompt.format(question=PROBLEM.question)}{PROBLEM.chain}\n#### {PROBLEM.answer}"
    expected = [tokenizer.bos_token_id, *tokenizer(joined, add_special_tokens=False).input_ids]
    assert [
        token for segment in segments(Encoder(tokenizer, Template(prompt)), PROBLEM) for token in segment
    ] == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chain", ["3 + 4 = 7 pens.", "3 + 4 = 7.\n7 + 2 = 9.", "", " ", "\n", ".", "</s>", "<|user|>"])
def test_no_segment_depends_on_what_follows(kind: str, chain: str) -> None:
    encoder = Encoder(TOKENIZERS[kind], Template())
    query, _, marker, answer = segments(encoder, PROBLEM)
    changed = segments(encoder, replace(PROBLEM, chain=chain))
    assert changed[0] == query == encoder.query(PROBLEM.question)
    assert changed[2:] == [marker, answer]
    whole = [token for segment in changed for token in segment]
    assert text_of(encoder, whole[1:]) == f"{PROBLEM.question}\n{chain}\n#### 7"


@pytest.mark.parametrize("kind", KINDS)
def test_segments_alone_open_with_no_space_of_the_tokenizer(kind: str) -> None:
    encoder = Encoder(TOKENIZERS[kind], Template())
    for segment, first in zip(segments(encoder, PROBLEM)[1:], ("3", "\n", " "), strict=True):
        piece = encoder.tokenizer.convert_ids_to_tokens(segment[0])
        assert piece.replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n").replace("<0x0A>", "\n").startswith(first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_space_at_the_end_of_a_prompt_goes_to_the_chain(kind: str) -> None:
    prompt = preset("gsm8k-llama2-7b").model.prompt
    encoder = Encoder(TOKENIZERS[kind], Template(prompt))
    query, chain, _, _ = segments(encoder, PROBLEM)
    assert prompt.endswith("[/INST] ")
    assert text_of(encoder, query).endswith("[/INST]")
    assert encoder.tokenizer.convert_ids_to_tokens(chain[0])[0] in "▁Ġ"


@settings(deadline=None, max_examples=60)
@given(kind=st.sampled_from(KINDS), question=st.text(), chain=st.text(), answer=st.text())
def test_any_text_survives(kind: str, question: str, chain: str, answer: str) -> None:
    encoder = Encoder(TOKENIZERS[kind], Template())
    whole = [token for segment in segments(encoder, Problem("", question, chain, answer)) for token in segment]
    assert encoder.tokenizer.bos_token_id == whole[0]
    assert not set(whole[1:]) & set(encoder.tokenizer.all_special_ids)
