"""Training-free chains: θ is asked to think step by step, or shown how by a few solved problems.

For models that were taught to follow instructions. `zero-shot` appends "Let's think step by step." (Kojima et al.,
2022); `few-shot` shows solved training problems first (Wei et al., 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ccot_cli.data.answers import has_whole_answer
from ccot_cli.data.problems import Problem
from ccot_cli.models.methods.method import ChainReasoner
from ccot_cli.names import PromptingName

ENCOURAGEMENT = "Let's think step by step."


@dataclass
class PromptedReasoner(ChainReasoner):
    """θ writes a chain for a question that was put in other words."""

    shots: Sequence[Problem] = field(default_factory=list)
    """Solved problems to show first."""

    def put(self, question: str) -> str:
        if not self.shots:
            return f"{question}\n{ENCOURAGEMENT}"
        solved = [f"Question: {shot.question}\nAnswer: {shot.chain}\n#### {shot.answer}" for shot in self.shots]
        return "\n\n".join([*solved, f"Question: {question}\nAnswer:"])


def prompted(plain: ChainReasoner, name: PromptingName, shots: Sequence[Problem]) -> PromptedReasoner:
    """A chain by θ itself, asked for in that way.

    Shown solved problems, a model goes on with a problem of its own; it is stopped after the first answer.
    """
    theta, line_breaks = plain.theta, plain.theta.encoder.line_breaks
    if name == "zero-shot":
        return PromptedReasoner(theta, plain.adapters, plain.max_chain_tokens, name=name)
    return PromptedReasoner(
        theta,
        plain.adapters,
        plain.max_chain_tokens,
        name=name,
        # To read all that was said costs as much as saying it: only where a line has ended.
        is_done=lambda ids: ids[-1] in line_breaks and has_whole_answer(theta.encoder.decode(ids)),
        shots=shots,
    )
