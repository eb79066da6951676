"""Check what contemplation tokens say against the question's numbers, and find gold states to compare them to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from ccot_cli.data.arithmetic import check, read_number
from ccot_cli.data.shards import read_records
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.thoughts import GoldStates, Thought, Word
from ccot_cli.models.methods.method import Reply
from ccot_cli.names import PRECOMPUTE, SCORE, ratio_name
from ccot_cli.stages.problems import read_problems
from ccot_cli.stages.statistics import auroc
from ccot_cli.workspace.workspace import Workspace

MOST_COMPARED = 2000
"""Training problems, at most, whose gold states contemplation tokens are compared to."""


@dataclass(frozen=True)
class CheckedThought(Thought):
    """What one contemplation token says, and whether that follows."""

    number: int
    """Its place, from 1."""
    verified: bool
    """Whether its top number follows by one operation from the question's numbers and earlier verified ones."""
    equation: str
    """How it follows, such as `12 + 7 = 19`; empty if it does not."""
    swapped: str | None = field(default=None, kw_only=True)
    """The answer if it is another question's token of this place; None if that was not asked for, or there is none."""


class Checked(NamedTuple):
    """The thoughts behind one answer."""

    thoughts: list[CheckedThought]
    is_answer_verified: bool
    """Whether the answer is the last verified number."""
    number_chance: float
    """The least probability of a token's top number; 0 if no token has one."""


def check_thoughts(question: str, reply: Reply) -> Checked:
    """Check the thoughts of a reply, which must have been read."""
    assert reply.thoughts is not None
    tops = [top_number(thought) for thought in reply.thoughts]
    found = check(question, [result_of(thought) for thought in reply.thoughts], reply.answer)
    thoughts = [
        CheckedThought(**vars(thought), number=number, verified=bool(equation), equation=equation)
        for number, (thought, equation) in enumerate(zip(reply.thoughts, found.equations, strict=True), start=1)
    ]
    return Checked(thoughts, found.is_answer_verified, min((top.probability for top in tops if top), default=0.0))


def load_gold(workspace: Workspace, theta: Theta, ratio: Decimal, layer: int) -> GoldStates | None:
    """Load the selected gold states of the first training problems; None if a workspace has none, as an imported one.

    Args:
        layer: Autoregressive layer l.
    """
    source, scored = workspace.artifact(PRECOMPUTE), workspace.artifact(SCORE, ratio_name(ratio))
    if source is None or scored is None or source.is_bare():
        return None
    if scored.manifest.inputs[PRECOMPUTE] != source.fingerprint:
        return None
    items = [item for item in read_problems(source)[:MOST_COMPARED] if not item.is_validation]
    problems = theta.encoder.problems([item.problem for item in items])
    states, chains = list[Tensor](), list[str]()
    for record in read_records(scored.folder, indices=slice(layer, layer + 1), wanted=frozenset(range(len(items)))):
        problem = problems[record.number]
        lines = theta.encoder.lines(problem.chain)
        for row, position in enumerate(record.positions_J[1:].tolist(), start=1):
            place = position - len(problem.query)
            start, end = lines.index(lines[place]), len(lines) - lines[::-1].index(lines[place])
            states.append(record.states_JID[row, 0])
            chains.append(" ".join(theta.encoder.marked(problem.chain[start:end], [place - start]).split()))
    return GoldStates(torch.stack(states), chains) if states else None


def top_number(thought: Thought) -> Word | None:
    """Return the likelier of the first words of both indices that are numbers; None if neither is.

    A token announces a result at index L if its state there imitates a text token's. Nothing but END and the draft
    reads that state, so it may say less than the state at index l does.
    """
    firsts = (*thought.words[:1], *thought.lower_words[:1])
    numbers = (word for word in firsts if read_number(word.text) is not None)
    return max(numbers, key=lambda word: word.probability, default=None)


def result_of(thought: Thought) -> Fraction | None:
    """Return the value of the top number."""
    top = top_number(thought)
    return None if top is None else read_number(top.text)


@dataclass(frozen=True)
class Verification:
    """How often CCoT's answers are verified, and how well figures tell right answers from wrong ones.

    AUROC is the probability that a right answer has a higher figure than a wrong one; 0.5 is chance.
    """

    verified_right: float | None
    """Share of the right answers that are verified; None if there is none."""
    verified_wrong: float | None
    """Share of the wrong answers that are verified; None if there is none."""
    auroc_confidence: float | None
    """Of `confidence`; None if all answers are right, or all are wrong."""
    auroc_number: float | None
    """Of the least probability of a contemplation token's top number."""
    auroc_verified: float | None
    """Of whether the answer is verified."""


def verification(replies: Sequence[Reply], checked: Sequence[Checked], are_right: Sequence[bool]) -> Verification:
    """Summarise the checks of all replies of one method."""
    verified = [each.is_answer_verified for each in checked]

    def share(is_right: bool) -> float | None:
        chosen = [each for each, right in zip(verified, are_right, strict=True) if right == is_right]
        return sum(chosen) / len(chosen) if chosen else None

    return Verification(
        verified_right=share(True),
        verified_wrong=share(False),
        auroc_confidence=auroc([reply.confidence for reply in replies], are_right),
        auroc_number=auroc([each.number_chance for each in checked], are_right),
        auroc_verified=auroc(verified, are_right),
    )
