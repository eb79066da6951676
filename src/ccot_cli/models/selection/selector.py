"""A selector decides which tokens of a chain are kept (paper, section 4.1).

It is fitted on training problems and then selects from any.

Dimensions: M chain tokens, D width, V vocabulary.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ccot_cli.data.prompts import EncodedProblem, Encoder
from ccot_cli.errors import CorruptError
from ccot_cli.files import strict_json, write_json
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.scorer import Scorer, chain_scores
from ccot_cli.names import SelectorName, parse_ratio
from ccot_cli.tensors.select import POSITIONAL, best, best_of_each, num_kept, num_rounds

FILE_NAME = "selector.json"
SCORES_FILE = "announcements.safetensors"
NUM_SCORED = 1000
"""Most chains that the predictive selector learns its scores from."""


@dataclass(frozen=True)
class Selector:
    """One way to choose tokens, at one ratio r. The fields after `encoder` belong to the selectors they name."""

    name: SelectorName
    ratio: Decimal
    encoder: Encoder
    seed: int = 0
    """Of the draws (`random`)."""
    rounds: int = 0
    """Tokens to take from every line of a chain (`predictive`)."""
    scores_V: Tensor | None = None
    """How much the words that begin with each token announce, in nats (`predictive`)."""
    layer: int = 0
    """T, the index of the states that the scorer reads (`learned`)."""
    scorer: Scorer | None = None
    """Scores the states (`learned`)."""

    def positions(self, problem: EncodedProblem, *, states_MD: Tensor | None = None) -> list[int]:
        """Choose k = ceil(r m) positions in the problem's chain, in reading order, counted from 0.

        Args:
            problem: The problem; its chain must not be empty. The random selector always draws the same for it.
            states_MD: The chain's states at index T; needed by the learned selector.
        """
        num_chain = len(problem.chain)
        kept = num_kept(self.ratio, num_chain)
        if self.scorer is not None:
            assert states_MD is not None
            return best(chain_scores(self.scorer, states_MD), kept)
        if self.scores_V is not None:
            lines, words = self.encoder.lines(problem.chain), self.encoder.words(problem.chain)
            # A word's score is that of its first token.
            firsts = [problem.chain[words.index(word)] for word in words]
            return best_of_each(self.scores_V[firsts], lines, kept, rounds=self.rounds, words=words)
        drawn = random.Random(f"{self.seed}/{problem.query}/{problem.chain}")
        generator = torch.Generator().manual_seed(drawn.getrandbits(63))
        return POSITIONAL[self.name](num_chain, kept, generator)

    def save(self, folder: Path) -> list[Path]:
        """Write the selector into a folder, and return the paths of its files."""
        fields = {"name": self.name, "ratio": f"{self.ratio:f}", "seed": self.seed}
        files = [folder / FILE_NAME]
        if self.scores_V is not None:
            save_file({"scores": self.scores_V.contiguous()}, folder / SCORES_FILE)
            fields["rounds"] = self.rounds
            files.append(folder / SCORES_FILE)
        if self.scorer is not None:
            files.append(self.scorer.save(folder))
            fields |= {"layer": self.layer, "scorer": self.scorer.kind}
        write_json(folder / FILE_NAME, fields)
        return files

    @classmethod
    def load(cls, theta: Theta, folder: Path) -> "Selector":
        """Read a saved selector.

        Raises:
            CorruptError: if it is missing, damaged or made for another model.
        """
        try:
            fields = strict_json((folder / FILE_NAME).read_bytes())
            kind = fields.pop("scorer", None)
            fields |= {"ratio": parse_ratio(fields["ratio"]), "encoder": theta.encoder}
            if "rounds" in fields:
                fields["scores_V"] = load_file(folder / SCORES_FILE)["scores"]
                if fields["scores_V"].shape != (theta.model.config.vocab_size,):
                    raise ValueError("its scores are those of another vocabulary")
            if kind is not None:
                fields["scorer"] = Scorer.load(theta, kind, folder)
            selector = cls(**fields)
            if selector.name not in POSITIONAL and selector.scorer is None and selector.scores_V is None:
                raise ValueError(f"there is no selector {selector.name!r}")
            return selector
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise CorruptError(
                f"the selector in {folder} cannot be read: {error}", fix="run 'ccot score' again"
            ) from error


def predictive_selector(theta: Theta, problems: Sequence[EncodedProblem], ratio: Decimal, scores_V: Tensor) -> Selector:
    """Make the predictive selector.

    Args:
        problems: Training problems.
        ratio: r.
        scores_V: How much words announce, by their first token, from `announcements`.
    """
    lines = [theta.encoder.lines(problem.chain) for problem in problems]
    rounds = num_rounds(ratio, sum(map(len, lines)), sum(len(set(each)) for each in lines))
    return Selector("predictive", ratio, theta.encoder, rounds=rounds, scores_V=scores_V)
