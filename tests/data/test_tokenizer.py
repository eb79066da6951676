"""The embedded tokenizer: numbers are single tokens, and nothing is lost."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ccot_cli.data.numerals import ONES, TENS, with_large_in_digits, write_numeral
from ccot_cli.data.tokenizer import BOS, EOS, PAD, train_tokenizer
from ccot_cli.data.word_problems import generate

WORDS = (*ONES[1:4], "Nine", "twelve", *TENS[:3], "hundred", "hundred", "and", "a", "5", "pens")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text for made in islice(generate("train"), 200) for text in (made.question, made.solution)]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    return train_tokenizer(texts)


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def test_every_number_below_1000_is_one_token_alone_and_after_a_space(tokenizer: PreTrainedTokenizerFast) -> None:
    for number in range(1000):
        assert len(ids_of(tokenizer, f"{number}")) == 1
        assert len(ids_of(tokenizer, f" {number}")) == 1


def test_a_number_is_the_same_token_whatever_is_next_to_it(tokenizer: PreTrainedTokenizerFast) -> None:
    (alone,), (spaced,) = ids_of(tokenizer, "42"), ids_of(tokenizer, " 42")
    for text in ("$42", "42.", "42+", "=42", "x42", "42x"):
        assert alone in ids_of(tokenizer, text)
    for text in ("= 42 pens", "#### 42", "has 42."):
        assert spaced in ids_of(tokenizer, text)


def test_numbers_from_1000_on_are_read_three_digits_at_a_time(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [tokenizer.decode([token]) for token in ids_of(tokenizer, " 1234567")] == [" 123", "456", "7"]


def test_common_words_are_one_token_each(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(ids_of(tokenizer, "How many are left of the 51?")) == 8


def test_a_number_in_words_is_read_as_its_digits(tokenizer: PreTrainedTokenizerFast) -> None:
    for number in range(21, 1000):
        text = f"She has {write_numeral(number)} pens."
        assert ids_of(tokenizer, text) == ids_of(tokenizer, f"She has {number} pens.")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from("  -."))))
def test_numbers_in_words_are_read_alike_by_the_tokenizer_and_by_python(
    tokenizer: PreTrainedTokenizerFast, words: list[tuple[str, str]]
) -> None:
    text = "".join(map("".join, words))
    assert tokenizer.decode(ids_of(tokenizer, text)) == with_large_in_digits(text)


@settings(deadline=None)
@given(text=st.text())
def test_any_text_round_trips(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(ids_of(tokenizer, text)) == text


@pytest.mark.parametrize("text", ["  two  spaces ", "a\r\n\tb", " . , ' n't", "½٣四🙂\x00\x7f", f"{BOS}{EOS}{PAD}"])
def test_text_that_tokenizers_like_to_tidy_round_trips(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(ids_of(tokenizer, text)) == text


def test_training_twice_gives_the_same_tokenizer(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> None:
    assert train_tokenizer(texts).backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_numbers_and_bytes_are_there_without_any_text() -> None:
    empty = train_tokenizer([])
    assert len(ids_of(empty, " 999")) == 1
    assert empty.decode(ids_of(empty, "né")) == "né"


def test_control_tokens_are_known_by_their_roles(tokenizer: PreTrainedTokenizerFast) -> None:
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (BOS, EOS, PAD)
    assert len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3
    assert tokenizer.padding_side == "left"


def test_no_control_token_is_added_to_a_text(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer("Emma has 51 candles.").input_ids == ids_of(tokenizer, "Emma has 51 candles.")
