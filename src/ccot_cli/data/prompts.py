"""Turn problems into token ids, segment by segment.

    [ query ][ chain ][ <ANS> ][ answer, end of sequence ]

A segment has the ids that it has in the joined text. A token never spans two segments, so that a query has the same ids
whatever follows it: where the tokenizer would join the end of one segment and the start of the next, the text is cut.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, takewhile
from typing import Any

from ccot_cli.data.problems import Problem
from ccot_cli.errors import UsageError

QUESTION_FIELD = "{question}"
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d]+|[^\w ]")
"""A number, a word of letters, or any other character but a space."""


@dataclass(frozen=True)
class EncodedProblem:
    """The token ids of one problem."""

    id: str
    query: list[int]
    chain: list[int]
    answer: list[int]
    """The answer and the end of sequence, without <ANS>."""


@dataclass(frozen=True)
class Template:
    """The text around the question, and the text that starts the answer."""

    prompt: str = "{question}\n"
    answer_marker: str = "\n####"

    def __post_init__(self) -> None:
        if self.prompt.count(QUESTION_FIELD) != 1:
            raise ValueError(f"a prompt must hold {QUESTION_FIELD} once, but this one does not: {self.prompt!r}")
        if not self.answer_marker:
            raise ValueError("the answer marker is empty, so nothing would separate the answer from the chain")


def chat_prompt(tokenizer: Any, system: str | None) -> str:
    """Render a tokenizer's chat template as a prompt, with a place for the question.

    Args:
        system: The system prompt; None: the template's own, if it has one.

    Raises:
        UsageError: if there is no template, or it has no place for a system prompt or a question.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            "the tokenizer has no chat template",
            fix='set model.prompt to a text, such as "{question}\\n"',
        )
    messages = [{"role": "user", "content": QUESTION_FIELD}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    # Some templates tell today's date; a prompt must be the same every day.
    render = partial(tokenizer.apply_chat_template, tokenize=False, date_string="26 Jul 2024")
    try:
        prompt: str = render(messages, add_generation_prompt=True)
        replied: str = render([*messages, {"role": "assistant", "content": "1"}])
    except Exception as error:  # Templates raise errors of their own.
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"the tokenizer's chat template cannot be used: {first_line}", fix="set model.prompt"
        ) from error
    if prompt.count(QUESTION_FIELD) != 1:
        raise UsageError("the tokenizer's chat template does not hold the question once", fix="set model.prompt")
    if replied.startswith(f"{prompt} 1"):
        prompt += " "  # The template puts a space before the reply.
    return prompt


class Encoder:
    """Turns problems into token ids, with a tokenizer and a template.

    Args:
        ends: Further ids that end a text when the model writes them, beside the tokenizer's end of sequence.

    Raises:
        ValueError: if the tokenizer has no end-of-sequence token.
    """

    def __init__(self, tokenizer: Any, template: Template, *, ends: Iterable[int] = ()) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end-of-sequence token, so no answer could end")
        self.tokenizer = tokenizer
        self.template = template
        self.ends = frozenset({tokenizer.eos_token_id, *ends})
        """Ids that end a text."""
        # A space at the end of a prompt is part of the next word's token, so it goes to the chain.
        prompt = template.prompt.rstrip(" ")
        self._opening = template.prompt[len(prompt) :]
        self._before, self._after = prompt.split(QUESTION_FIELD)
        self._control_ids = {
            *tokenizer.all_special_ids,
            *(token for token, added in tokenizer.added_tokens_decoder.items() if added.special),
        }
        self.answer_marker = self._following("1", [template.answer_marker])[0]
        """Token ids of <ANS>, never empty."""
        self._has_digit: dict[int, bool] = {}
        self._pieces: dict[int, str] = {}

    def _plain(self, text: str) -> list[int]:
        """Return the ids of a text whose control tokens are plain text, as chat markup in a question is."""
        # Some tokenizers put a space before a text, but not into one.
        start, ids, alone = self.tokenizer(
            ["\n", f"\n{text}", text], add_special_tokens=False, split_special_tokens=True
        ).input_ids
        return list(ids[len(start) :] if ids[: len(start)] == start else alone)

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False).input_ids if texts else []
        return ids

    def _joined(self, before: str, texts: Sequence[str], after: str = "") -> list[list[int]]:
        """Return the ids of texts between two others, which alone may hold control tokens."""
        start, end = self._ids([before, after])
        controls = [token for token in [*start, *end] if token in self._control_ids]
        joined = self._ids([f"{before}{text}{after}" for text in texts])
        return [
            ids
            if [token for token in ids if token in self._control_ids] == controls
            else [*start, *self._plain(text), *end]
            for ids, text in zip(joined, texts, strict=True)
        ]

    def _following(self, before: str, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts that stand behind another."""
        start = self._ids([before])[0]
        return [
            ids[len(start) :] if ids[: len(start)] == start else self._plain(text)
            for ids, text in zip(self._joined(before, texts), texts, strict=True)
        ]

    @property
    def goes_on_after_question(self) -> bool:
        """Whether the prompt has a text after the question."""
        return bool(self._after)

    def query(self, question: str) -> list[int]:
        """Return the token ids of a question in its prompt."""
        return self._queries([question])[0]

    def question(self, query: list[int]) -> str:
        """Return the text of the question in a query; of the whole query if the prompt's texts are not found in it."""
        if not self._before and query[:1] == [self.tokenizer.bos_token_id]:
            query = query[1:]
        text: str = self.tokenizer.decode(query, clean_up_tokenization_spaces=False)
        start, end = text.find(self._before), text.rfind(self._after)
        is_found = 0 <= start <= end - len(self._before)
        return text[start + len(self._before) : end] if is_found else text

    def _queries(self, questions: list[str]) -> list[list[int]]:
        start = self.tokenizer.bos_token_id
        return [
            ids if start is None or ids[:1] == [start] else [start, *ids]
            for ids in self._joined(self._before, questions, self._after)
        ]

    def problem(self, problem: Problem) -> EncodedProblem:
        """Return the token ids of one problem."""
        return self.problems([problem])[0]

    def problems(self, problems: Sequence[Problem]) -> list[EncodedProblem]:
        """Return the token ids of many problems, much faster than one by one."""
        queries = self._queries([each.question for each in problems])
        chains = self._following(self._after or ".", [f"{self._opening}{each.chain}" for each in problems])
        answers = self._following(self.template.answer_marker, [f" {each.answer}" for each in problems])
        return [
            EncodedProblem(id=each.id, query=query, chain=chain, answer=[*answer, self.tokenizer.eos_token_id])
            for each, query, chain, answer in zip(problems, queries, chains, answers, strict=True)
        ]

    @cached_property
    def line_breaks(self) -> set[int]:
        """Ids of the tokens that hold a line break."""
        return {token for token in range(len(self.tokenizer)) if "\n" in self.tokenizer.decode([token])}

    def lines(self, chain: list[int]) -> list[int]:
        """Return the line number of every chain token, from 0. A line break belongs to the line that it ends."""
        lines, line, has_ended = [], 0, False
        for token in chain:
            is_break = token in self.line_breaks
            line += has_ended and not is_break
            has_ended = is_break
            lines.append(line)
        return lines

    def marked(self, chain: list[int], positions: list[int]) -> str:
        """Return a chain's text with the tokens at these positions in [brackets]."""
        pieces = [str(self.tokenizer.decode([token])) for token in chain]
        for position in positions:
            bare = pieces[position].strip(" ")
            shown = {"\n": "⏎", "": "␣"}.get(bare, bare)
            pieces[position] = pieces[position].replace(bare, f"[{shown}]", 1)
        return "".join(pieces)

    def words(self, chain: list[int]) -> list[int]:
        """Return the number of the word that each chain token is a part of, not decreasing, from 0.

        A number is a word, and so is a sign. A token that is a space alone belongs to the word before it. So a word is
        the same whether the tokenizer makes one token of it or several.
        """
        pieces = [self._piece(token) for token in chain]
        starts = [match.start() for match in _WORD.finditer("".join(pieces))]
        return [max(0, bisect_left(starts, end) - 1) for end in accumulate(map(len, pieces))]

    def _piece(self, token: int) -> str:
        """Return a token's text within a text: some tokenizers drop the space at the start of one."""
        if token not in self._pieces:
            decode, before = partial(self.tokenizer.decode, clean_up_tokenization_spaces=False), self.answer_marker[-1]
            self._pieces[token] = decode([before, token])[len(decode([before])) :]
        return self._pieces[token]

    def has_digit(self, token: int) -> bool:
        """Tell whether a token's text holds a digit."""
        if token not in self._has_digit:
            self._has_digit[token] = any(map(str.isdigit, self.tokenizer.decode([token])))
        return self._has_digit[token]

    def decode(self, ids: list[int]) -> str:
        """Return the text of generated ids, up to the end of sequence."""
        shown = list(takewhile(lambda token: token not in self.ends, ids))
        text: str = self.tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
