"""The selectors: which positions of every chain are kept."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import torch

from ccot_cli.config import Settings
from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.data.shards import read_records
from ccot_cli.models.adapters import PSI, Adapters
from ccot_cli.models.predictive import announcements
from ccot_cli.models.scorer import Scorer, ScorerTraining, chain_scores
from ccot_cli.models.theta import Theta
from ccot_cli.progress import Progress
from ccot_cli.tensors.select import POSITIONAL, best, best_of_each, num_kept, num_rounds
from ccot_cli.workspace import Artifact

NUM_SCORED = 1000
"""Chains from which the predictive selector learns its scores."""


@dataclass
class Selection:
    """What is known when tokens are selected."""

    theta: Theta
    source: Artifact
    """The hidden states."""
    problems: list[EncodedProblem]
    """Training problems first."""
    num_train: int
    ratio: Decimal
    settings: Settings
    folder: Path
    """Where what was learned is saved."""
    progress: Progress

    def positions(self) -> list[list[int]]:
        """The kept positions of every problem, in reading order."""
        match self.settings.score.selector:
            case "predictive":
                return self._predictive()
            case "learned":
                return self._learned()
        return self._positional()

    def _num_kept(self, problem: EncodedProblem) -> int:
        return num_kept(self.ratio, len(problem.chain))

    def _positional(self) -> list[list[int]]:
        choose, seed = POSITIONAL[self.settings.score.selector], self.settings.score.seed
        return [
            choose(
                len(problem.chain), self._num_kept(problem), torch.Generator().manual_seed(seed * 1_000_003 + number)
            )
            for number, problem in enumerate(self.problems)
        ]

    def _predictive(self) -> list[list[int]]:
        self.progress.say("looking for the tokens that announce")
        sample = self.problems[: min(self.num_train, NUM_SCORED)]
        scores_V = announcements(self.theta, sample, batch_tokens=self.settings.precompute.batch_tokens)
        lines = [self.theta.encoder.lines(problem.chain) for problem in self.problems]
        train = lines[: self.num_train]
        rounds = num_rounds(self.ratio, sum(map(len, train)), sum(len(set(each)) for each in train))
        return [
            best_of_each(scores_V[problem.chain], each, self._num_kept(problem), rounds=rounds)
            for problem, each in zip(self.problems, lines, strict=True)
        ]

    def _learned(self) -> list[list[int]]:
        layer = self.source.manifest.config["precompute"]["scorer_layer"]
        scorer = self._train_scorer(layer)
        scorer.save(self.folder)
        place = layer if self.source.manifest.summary["is_every_index"] else 0
        kept: dict[int, list[int]] = {}
        for record in read_records(self.source.folder):
            scores_M = chain_scores(scorer, record.states_JID[1:, place])
            kept[record.number] = best(scores_M, self._num_kept(self.problems[record.number]))
        return [kept[number] for number in range(len(self.problems))]

    def _train_scorer(self, layer: int) -> Scorer:
        chosen, decoder = self.settings.score, self.settings.train_psi
        adapters = Adapters(self.theta)
        adapters.add(PSI, rank=decoder.lora_rank, alpha=decoder.lora_alpha, seed=chosen.seed)
        scorer = Scorer(self.theta, chosen.scorer, chosen.seed)
        training = ScorerTraining(
            self.theta,
            adapters,
            scorer,
            self.problems[: self.num_train],
            layer=layer,
            num_steps=chosen.scorer_steps,
            batch_size=decoder.batch_size,
            learning_rate=decoder.learning_rate,
            optimiser=decoder.optimiser,
            seed=chosen.seed,
        )
        with self.progress.task(f"{chosen.scorer} scorer", total=chosen.scorer_steps, unit="steps") as advance:
            for loss in training.steps():
                advance(1, loss=f"{loss:.4f}")
        adapters.train_only(())
        return scorer.eval()
