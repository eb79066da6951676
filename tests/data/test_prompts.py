"""From text to segments of ids and back."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ccot_cli.data.problems import Problem
from ccot_cli.data.prompts import Encoder, Template, chat_prompt
from ccot_cli.errors import UsageError

PROBLEM = Problem("7", "Mia has 3 pens.", "3 + 4 = 7", "7")


def byte_tokenizer(**roles: str) -> PreTrainedTokenizerFast:
    """One token a byte, and only the control tokens that are named."""
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


@pytest.fixture
def encoder(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    return Encoder(tokenizer, Template())


def text_of(encoder: Encoder, ids: list[int]) -> str:
    text: str = encoder.tokenizer.decode(ids)
    return text


def test_a_problem_becomes_query_chain_and_answer(encoder: Encoder) -> None:
    encoded = encoder.problem(PROBLEM)
    assert encoded.id == "7"
    assert text_of(encoder, encoded.query) == "<s>Mia has 3 pens.\n"
    assert text_of(encoder, encoded.chain) == "3 + 4 = 7"
    assert text_of(encoder, encoder.answer_marker) == "\n####"
    assert text_of(encoder, encoded.answer) == " 7</s>"


def test_blank_lines_are_no_steps_of_their_own(encoder: Encoder) -> None:
    for text in ("3 + 4 = 7\n7 + 2 = 9", "3 + 4 = 7\n\n7 + 2 = 9\n", "3 + 4 = 7\n\n\n7 + 2 = 9"):
        chain = encoder.problem(replace(PROBLEM, chain=text)).chain
        lines = encoder.lines(chain)
        second = next(place for place, line in enumerate(lines) if line)
        assert text_of(encoder, chain[second:]).strip() == "7 + 2 = 9"
        assert set(lines[second:]) == {1}


def test_the_query_of_a_problem_is_the_query_of_its_question(encoder: Encoder) -> None:
    assert encoder.problem(PROBLEM).query == encoder.query(PROBLEM.question)


def test_the_template_surrounds_the_question(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer, Template(prompt="Q: {question}\nA:", answer_marker="\nSo:"))
    assert text_of(encoder, encoder.query("why")) == "<s>Q: why\nA:"
    assert text_of(encoder, encoder.answer_marker) == "\nSo:"


@pytest.mark.parametrize("prompt", ["Q: {question}\nA:", "{question}"])
def test_the_question_of_a_query_is_the_one_that_was_asked(tokenizer: PreTrainedTokenizerFast, prompt: str) -> None:
    encoder = Encoder(tokenizer, Template(prompt=prompt))
    assert encoder.question(encoder.query("why 12 pens")) == "why 12 pens"


@pytest.mark.parametrize("prompt", ["", "no field", "{question} {question}", "{Question}"])
def test_a_prompt_without_one_place_for_the_question_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"must hold \{question\} once"):
        Template(prompt=prompt)


def test_an_empty_answer_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="answer marker is empty"):
        Template(answer_marker="")


def test_a_tokenizer_that_cannot_end_an_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        Encoder(byte_tokenizer(bos_token="<s>"), Template())


@settings(deadline=None)
@given(before=st.text(), markup=st.sampled_from(["<s>", "</s>", "<pad>"]), after=st.text())
def test_control_tokens_in_a_problem_are_plain_text(
    tokenizer: PreTrainedTokenizerFast, before: str, markup: str, after: str
) -> None:
    encoder = Encoder(tokenizer, Template(prompt="{question}"))
    text = before + markup + after
    encoded = encoder.problem(Problem("", text, text, text))
    segments = encoded.query[1:], encoded.chain, encoded.answer[:-1]
    assert not set(tokenizer.all_special_ids) & {token for segment in segments for token in segment}
    assert [text_of(encoder, segment) for segment in segments] == [text, text, f" {text}"]


def test_control_tokens_of_the_template_are_control_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer, Template(prompt="<pad>{question}</s>"))
    query = encoder.query("</s>")
    assert query[:2] == [tokenizer.bos_token_id, tokenizer.pad_token_id]
    assert query.count(tokenizer.eos_token_id) == 1
    assert query[-1] == tokenizer.eos_token_id


def test_a_question_with_control_tokens_leaves_no_trace_on_later_calls(encoder: Encoder) -> None:
    tokenizer, plain = encoder.tokenizer, encoder.query("Mia has 3 pens.")
    for _ in range(2):
        assert encoder.query("a</s>b") == encoder.query("a</s>b")
        assert tokenizer("</s>", add_special_tokens=False).input_ids == [tokenizer.eos_token_id]
        assert encoder.query("Mia has 3 pens.") == plain


def test_a_saved_tokenizer_gives_the_same_ids(encoder: Encoder, tmp_path: Path) -> None:
    question = "Mia</s> has 3 pens, <s>12 books"
    expected = encoder.query(question)  # before saving: the call must not change what is saved
    encoder.tokenizer.save_pretrained(tmp_path)
    assert Encoder(AutoTokenizer.from_pretrained(tmp_path), Template()).query(question) == expected


def test_ordinary_text_has_the_ids_of_the_plain_tokenizer(encoder: Encoder) -> None:
    text = "Mia has 3 pens & sells 17% of them for $2 each."
    assert encoder.problem(Problem("", "q", text, "1")).chain == encoder.tokenizer(text).input_ids


@pytest.mark.parametrize("prompt", ["{question}", "<s>{question}"])
def test_a_query_opens_with_one_beginning_of_sequence(tokenizer: PreTrainedTokenizerFast, prompt: str) -> None:
    query = Encoder(tokenizer, Template(prompt=prompt)).query("Mia has 3 pens.")
    assert query[0] == tokenizer.bos_token_id
    assert query.count(tokenizer.bos_token_id) == 1


def test_a_tokenizer_without_beginning_of_sequence_adds_none() -> None:
    encoder = Encoder(byte_tokenizer(eos_token="</s>"), Template())
    assert text_of(encoder, encoder.query("Mia")) == "Mia\n"
    assert encoder.problem(PROBLEM).answer[-1] == encoder.tokenizer.eos_token_id


def test_decoding_stops_at_the_end_of_sequence(encoder: Encoder) -> None:
    answer = encoder.problem(PROBLEM).answer
    assert encoder.decode(answer) == " 7"
    assert encoder.decode(answer + encoder.query("More text.")) == " 7"
    assert encoder.decode([]) == ""


def test_decoding_without_an_end_gives_all_text_as_it_was_written(encoder: Encoder) -> None:
    text = " 7 . It 's  done ,\n"
    assert encoder.decode(encoder.tokenizer(text).input_ids) == text


def test_decoding_leaves_control_tokens_out(encoder: Encoder) -> None:
    assert encoder.decode(encoder.query("Mia")) == "Mia\n"


CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}<s>[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content }} </s>{% endif %}{% endfor %}"
)
DATED = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}{{ date_string }}"
)


def with_template(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer(bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "system", "expected"),
    [
        (CHATML, None, "<|im_start|>system\nBe helpful.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"),
        (CHATML, "Be brief.", "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"),
        (LLAMA_2, None, "<s>[INST] {question} [/INST] "),
    ],
)
def test_a_chat_template_becomes_a_prompt(template: str, system: str | None, expected: str) -> None:
    assert chat_prompt(with_template(template), system).removesuffix("<|im_start|>assistant\n") == expected


def test_a_chat_prompt_is_the_same_every_day() -> None:
    template = DATED + CHATML
    assert chat_prompt(with_template(template), None).startswith("26 Jul 2024<|im_start|>")


@pytest.mark.parametrize(
    ("template", "system", "message"),
    [
        (None, None, "has no chat template"),
        ("hello", None, "does not hold the question once"),
        ("{{ messages[0].content }}{{ messages[0].content }}", None, "does not hold the question once"),
        (LLAMA_2, "Be brief.", "cannot be used: no system role"),
    ],
)
def test_a_chat_template_that_gives_no_prompt_is_refused(
    template: str | None, system: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        chat_prompt(with_template(template), system)
    assert "model.prompt" in caught.value.fix


def test_decoding_stops_at_any_end(tokenizer: PreTrainedTokenizerFast) -> None:
    pad = tokenizer.pad_token_id
    encoder = Encoder(tokenizer, Template(), ends=[pad])
    answer = encoder.problem(PROBLEM).answer
    assert encoder.ends == {pad, tokenizer.eos_token_id}
    assert encoder.decode([*answer[:-1], pad, *answer]) == encoder.decode(answer) == " 7"


@pytest.mark.parametrize("splits_digits", [False, True])
def test_a_word_is_the_same_however_many_tokens_it_has(splits_digits: bool) -> None:
    text = "12 + 7.5 = 1,019 pens.\nShe has 430 now"
    splitter: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Digits(individual_digits=True)] * splits_digits
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.Sequence([*splitter, pre_tokenizers.ByteLevel(False)])
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    plain.train_from_iterator([text] * 3, trainer)
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="</s>"), Template())
    chain = encoder.tokenizer(text).input_ids
    words = [
        encoder.tokenizer.decode([token for _, token in group]).strip(" ")
        for _, group in groupby(zip(encoder.words(chain), chain, strict=True), key=lambda pair: pair[0])
    ]
    assert len(encoder.tokenizer("430").input_ids) == (3 if splits_digits else 1)
    assert words == ["12", "+", "7.5", "=", "1,019", "pens", ".", "\n", "She", "has", "430", "now"]
