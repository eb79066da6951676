"""Show what contemplation tokens say, in 80 columns."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from rich.cells import cell_len, set_cell_size

from ccot_cli.models.decoding.thoughts import Word
from ccot_cli.stages.thoughts import CheckedThought

WORDS_WIDTH, LOWER_WORDS_WIDTH, EQUATION_WIDTH = 26, 17, 15
"""With three digits of a number, four of END, five of the norm, and two spaces between columns: 80."""
ALIGN = "><<>><"
CHAIN_WIDTH = 67
NEAREST_ALIGN = ">><"
SWAPPED_ALIGN = "><"


def thoughts_table(thoughts: Iterable[CheckedThought], *, layer: int, num_layers: int) -> list[Sequence[str]]:
    """Make the rows of a table, its head first.

    Args:
        thoughts: The tokens of one question.
        layer: l.
        num_layers: L.
    """
    head = ("", f"at index L = {num_layers}", f"at index l = {layer}", "END", "norm", "verified")
    return [head, *map(_row, thoughts)]


def nearest_table(thoughts: Iterable[CheckedThought]) -> list[Sequence[str]]:
    """Make the rows of a table of the gold states that the tokens are most alike, its head first; none without any."""
    rows = [
        (str(thought.number), f"{thought.nearest.cosine:.2f}", _cut(thought.nearest.chain, CHAIN_WIDTH))
        for thought in thoughts
        if thought.nearest
    ]
    return [("", "cosine", "nearest gold state, of the token in [brackets]"), *rows] if rows else []


def swapped_table(thoughts: Iterable[CheckedThought]) -> list[Sequence[str]]:
    """Make the rows of a table of the answers with another question's tokens, its head first; none without any."""
    rows = [(str(thought.number), thought.swapped) for thought in thoughts if thought.swapped is not None]
    return [("", "the answer if this one token is the other question's"), *rows] if rows else []


def _row(thought: CheckedThought) -> Sequence[str]:
    return (
        str(thought.number),
        _words(thought.words, WORDS_WIDTH),
        _words(thought.lower_words, LOWER_WORDS_WIDTH),
        f"{thought.end:.2f}",
        f"{thought.norm:.1f}" if thought.norm < 100 else f"{thought.norm:.0f}",
        _cut(thought.equation or "no", EQUATION_WIDTH),
    )


def _words(words: Sequence[Word], width: int) -> str:
    """Join as many words as fit, the first with its probability."""
    chance = f" {words[0].probability:.2f}"
    shown = [_cut(_visible(words[0].text), width - len(chance)) + chance, *(_visible(word.text) for word in words[1:])]
    lengths = accumulate(shown, lambda length, word: length + 2 + cell_len(word), initial=-2)
    return "  ".join(word for word, length in zip(shown, list(lengths)[1:], strict=True) if length <= width)


def _visible(text: str) -> str:
    """Return a word without the space before it; white space and control characters as escapes."""
    word = text.strip()
    return word if word and word.isprintable() else repr(text)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"
