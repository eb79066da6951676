"""Turn problems into token ids, segment by segment.

    [ query ][ chain ][ <ANS> ][ answer, end of sequence ]

Each segment is tokenized by itself, so that a query has the same ids whatever follows it.
"""

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
        self.answer_marker = self._ids(template.answer_marker)
        """The ids of <ANS>: O_marker tokens, never empty."""

    def _ids(self, text: str) -> list[int]:
        # Chat markup in a question is plain text, never a control token.
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        return ids

    def query(self, question: str) -> list[int]:
        before, after = self.template.prompt.split(QUESTION_FIELD)
        # The template is ours and may hold chat markup as control tokens; the question may not.
        ids = [
            *self.tokenizer(before, add_special_tokens=False).input_ids,
            *self._ids(question),
            *self.tokenizer(after, add_special_tokens=False).input_ids,
        ]
        start = self.tokenizer.bos_token_id
        return ids if start is None or ids[:1] == [start] else [start, *ids]

    def problem(self, problem: Problem) -> EncodedProblem:
        return EncodedProblem(
            id=problem.id,
            query=self.query(problem.question),
            chain=self._ids(problem.chain),
            answer=[*self._ids(f" {problem.answer}"), self.tokenizer.eos_token_id],
        )

    @cached_property
    def _line_breaks(self) -> set[int]:
        return {token for token in range(len(self.tokenizer)) if "\n" in self.tokenizer.decode([token])}

    def lines(self, chain: list[int]) -> list[int]:
        """The line of every chain token, a line break belonging to the line it ends: one reasoning step each."""
        lines, line = [], 0
        for token in chain:
            lines.append(line)
            line += token in self._line_breaks
        return lines

    def decode(self, ids: list[int]) -> str:
        """The text of generated ids, up to the end of sequence."""
        end = self.tokenizer.eos_token_id
        kept = ids[: ids.index(end)] if end in ids else ids
        text: str = self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
