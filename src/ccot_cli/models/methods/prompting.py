"""Chains without training: θ is asked to think step by step, or shown a few solved problems.

For models that were trained to follow instructions. `zero-shot` appends "Let's think step by step." (Kojima et al.,
2022); `few-shot` shows solved training problems first (Wei et al., 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ccot_cli.data.answers import has_whole_answer
from ccot_cli.data.problems import Problem
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.names import PromptingName

ENCOURAGEMENT = "Let's think step by step."


@dataclass
class PromptedMethod(ChainMethod):
    """Writes a chain under θ, for a question that is put into a prompt."""

    shots: Sequence[Problem] = field(default_factory=list)
    """Solved problems to show first."""

    def phrase(self, question: str) -> str:
        if not self.shots:
            return f"{question}\n{ENCOURAGEMENT}"
        solved = [f"Question: {shot.question}\nAnswer: {shot.chain}\n#### {shot.answer}" for shot in self.shots]
        return "\n\n".join([*solved, f"Question: {question}\nAnswer:"])


def prompted(plain: ChainMethod, name: PromptingName, shots: Sequence[Problem]) -> PromptedMethod:
    """Make a method that prompts θ for a chain.

    Args:
        plain: The method that writes chains without a prompt.
        shots: Solved problems to show first; `zero-shot` ignores them.
    """
    encoder = plain.theta.encoder
    if name == "zero-shot":
        return PromptedMethod(plain.adapters, plain.max_chain_tokens, name=name)
    return PromptedMethod(
        plain.adapters,
        plain.max_chain_tokens,
        name=name,
        # After the answer, the model would go on with a problem that it invents. Decoding the whole text is slow, so it
        # is checked at the ends of lines only.
        is_done=lambda ids: bool(ids) and ids[-1] in encoder.line_breaks and has_whole_answer(encoder.decode(ids)),
        shots=shots,
    )
