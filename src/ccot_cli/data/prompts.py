"""Turn problems into token ids, segment by segment.

    [ query ][ chain ][ <ANS> ][ answer, end of sequence ]

Each segment is tokenized separately, so that a query has the same ids whatever follows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ccot_cli.data.problems import Problem

QUESTION_FIELD = "{question}"


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


class Encoder:
    """Turns problems into token ids, with a tokenizer and a template.

    Raises:
        ValueError: if the tokenizer has no end-of-sequence token.
    """

    def __init__(self, tokenizer: Any, template: Template) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end-of-sequence token, so no answer could end")
        self.tokenizer = tokenizer
        self.template = template
        self.answer_marker = self._ids([template.answer_marker])[0]
        """Token ids of <ANS>, never empty."""
        # Chat markup in the template becomes control tokens; chat markup in a question must not (see `_ids`).
        parts = (tokenizer(text, add_special_tokens=False).input_ids for text in template.prompt.split(QUESTION_FIELD))
        self._before, self._after = parts
        self._has_digit: dict[int, bool] = {}
        start = tokenizer.bos_token_id
        if start is not None and self._before[:1] != [start]:
            self._before = [start, *self._before]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        # split_special_tokens: chat markup in a question is plain text, never a control token.
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False, split_special_tokens=True).input_ids
        return ids

    def query(self, question: str) -> list[int]:
        """Return the token ids of a question in its prompt."""
        return self._queries([question])[0]

    def _queries(self, questions: list[str]) -> list[list[int]]:
        return [[*self._before, *ids, *self._after] for ids in self._ids(questions)]

    def problem(self, problem: Problem) -> EncodedProblem:
        """Return the token ids of one problem."""
        return self.problems([problem])[0]

    def problems(self, problems: Sequence[Problem]) -> list[EncodedProblem]:
        """Return the token ids of many problems, much faster than one by one."""
        queries = self._queries([each.question for each in problems])
        chains = self._ids([each.chain for each in problems])
        answers = self._ids([f" {each.answer}" for each in problems])
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

    def has_digit(self, token: int) -> bool:
        """Tell whether a token's text holds a digit."""
        if token not in self._has_digit:
            self._has_digit[token] = any(map(str.isdigit, self.tokenizer.decode([token])))
        return self._has_digit[token]

    def decode(self, ids: list[int]) -> str:
        """Return the text of generated ids, up to the end of sequence."""
        end = self.tokenizer.eos_token_id
        shown = ids[: ids.index(end)] if end in ids else ids
        text: str = self.tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
