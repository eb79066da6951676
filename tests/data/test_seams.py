"""Segments have the ids of the joined text, whichever kind of tokenizer a model has."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ccot_cli.data.problems import Problem
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.presets import preset

CORPUS = [
    "Mia has 3 pens. She buys 4 more. How many pens does she have?\n3 + 4 = 7 pens.\n#### 7",
    "[INST] Tom bakes 12 cakes and eats 5 of them. How many are left? [/INST] That is 12 - 5 = 7.\n#### 7",
    "<|user|>\nHow much is 3 + 4?<|assistant|>\n3 + 4 = 7\n#### 7",
] * 3
CONTROL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
LLAMA_3 = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Llama 3 and Qwen split text: a full stop and the line break after it are one token."""
KINDS = ("metaspace-always", "metaspace-first", "metaspace-never", "llama-2", "gpt-2", "llama-3")
SPACED = KINDS[:4]
"""Those that write a space as a letter of their own, as SentencePiece does."""
PROMPTS = (
    "{question}\n",
    "Q: {question}\nA:",
    "[INST] {question} [/INST] ",
    "<|user|>\n{question}<|assistant|>\n",
    "<|user|>{question}<|assistant|>",
)


def make_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Train a small tokenizer as one family's is built."""
    is_spaced = kind in SPACED
    tokenizer = Tokenizer(models.BPE(byte_fallback=is_spaced, unk_token="<unk>" if is_spaced else None))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind == "gpt-2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "llama-3":
        split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        scheme = "always" if kind == "llama-2" else kind.removeprefix("metaspace-")
        metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "isolated"), metaspace])
        alphabet = []
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))] if is_spaced else []
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text.replace("\n", " ") if is_spaced else text for text in CORPUS], trainer)
    if is_spaced:
        # Trained tokenizers hold the bytes as control tokens; those of SentencePiece models hold them as text.
        learnt = json.loads(tokenizer.to_str())["model"]
        merges = [(left, right) for left, right in learnt["merges"]]
        tokenizer = Tokenizer(models.BPE(learnt["vocab"], merges, byte_fallback=True, unk_token="<unk>"))
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        if kind == "llama-2":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            tokenizer.pre_tokenizer = metaspace
    else:
        tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    made.add_special_tokens({"additional_special_tokens": [AddedToken(each, special=True) for each in CONTROL[2:]]})
    return made


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
