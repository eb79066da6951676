"""Turn problems into token ids, segment by segment.

    [ query ][ chain ][ <ANS> ][ answer, end of sequence ]

Each segment is tokenized by itself, so that a query has the same ids whatever follows it.
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
    """How text becomes segments."""

    prompt: str = "{question}\n"
    answer_marker: str = "\n####"

    def __post_init__(self) -> None:
        if self.prompt.count(QUESTION_FIELD) != 1:
            raise ValueError(f"a prompt must hold {QUESTION_FIELD} once, this one does not: {self.prompt!r}")
        if not self.answer_marker:
            raise ValueError("the answer marker is empty, so nothing would tell the answer from the chain")


class Encoder:
    """A tokenizer and a template, as one function from text to ids."""

    def __init__(self, tokenizer: Any, template: Template) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end-of-sequence token, so no answer could end")
        self.tokenizer = tokenizer
        self.template = template
        self.answer_marker = self._ids([template.answer_marker])[0]
        """The ids of <ANS>: O_marker tokens, never empty."""
        # The template is ours and may hold chat markup as control tokens; the question may not.
        around = (tokenizer(text, add_special_tokens=False).input_ids for text in template.prompt.split(QUESTION_FIELD))
        self._before, self._after = around
        start = tokenizer.bos_token_id
        if start is not None and self._before[:1] != [start]:
            self._before = [start, *self._before]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        # Chat markup in a question is plain text, never a control token.
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False, split_special_tokens=True).input_ids
        return ids

    def query(self, question: str) -> list[int]:
        return self._queries([question])[0]

    def _queries(self, questions: list[str]) -> list[list[int]]:
        return [[*self._before, *ids, *self._after] for ids in self._ids(questions)]

    def problem(self, problem: Problem) -> EncodedProblem:
        return self.problems([problem])[0]

    def problems(self, problems: Sequence[Problem]) -> list[EncodedProblem]:
        """The same for many, much faster than one by one."""
        queries = self._queries([each.question for each in problems])
        chains = self._ids([each.chain for each in problems])
        answers = self._ids([f" {each.answer}" for each in problems])
        return [
            EncodedProblem(id=each.id, query=query, chain=chain, answer=[*answer, self.tokenizer.eos_token_id])
            for each, query, chain, answer in zip(problems, queries, chains, answers, strict=True)
        ]

    @cached_property
    def line_breaks(self) -> set[int]:
        """Tokens with a line break in them."""
        return {token for token in range(len(self.tokenizer)) if "\n" in self.tokenizer.decode([token])}

    def lines(self, chain: list[int]) -> list[int]:
        """The line of every chain token, one reasoning step each; line breaks belong to the line that they end."""
        lines, line, has_ended = [], 0, False
        for token in chain:
            is_break = token in self.line_breaks
            line += has_ended and not is_break
            has_ended = is_break
            lines.append(line)
        return lines

    def decode(self, ids: list[int]) -> str:
        """The text of generated ids, up to the end of sequence."""
        end = self.tokenizer.eos_token_id
        kept = ids[: ids.index(end)] if end in ids else ids
        text: str = self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
