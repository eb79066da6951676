"""Does our COCONUT do what its authors' does? Two tasks, with the curriculum and without.

    python examples/research/coconut.py                  # sums: three seeds, an hour each
    python examples/research/coconut.py --task words     # word problems, three hours a seed
    python examples/research/coconut.py --seeds 1

COCONUT, the class behind `ccot train-baseline coconut`, puts latent thoughts in the chain's place: staged, one line
more with every stage (the published recipe), and unstaged, all lines from the beginning, for the same number of steps
on the same problems. All weights of the model learn, as its authors train it.

- sums: the sum of six digits modulo 5, its chain the running sums, a line each, on a Llama of two layers. The first
  stage is to write the chain. Unstaged, it begins with fresh weights, or, to see what the later stages add to the
  first, with those that write the chain. By its authors' account the staged one should solve the task and one that
  never saw a chain not.
- words: problems of two steps, on the model in the package. It writes chains, so that the first stage is behind it.

What came of it is in docs/results.md.
"""

import copy
import json
import random
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
import typer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ccot_cli.config import DataConfig, ModelConfig, TrainPsiConfig
from ccot_cli.data.problems import Problem, load_training
from ccot_cli.data.prompts import EncodedProblem, Encoder, Template
from ccot_cli.data.tokenizer import train_tokenizer
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.blocks import Blocks
from ccot_cli.models.base.theta import Theta, load_theta
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.coconut import CoconutMethod
from ccot_cli.models.methods.method import Method
from ccot_cli.models.selection.gold import solution_ids
from ccot_cli.models.training.loop import Training
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.models.training.recipes.base import RecipeSetup
from ccot_cli.models.training.recipes.coconut import CoconutContext, CoconutRecipe
from ccot_cli.tensors.masks import pad_right

Task = Literal["sums", "words"]
MOST_TOKENS = 128
"""Of a text that is written."""

# Word problems
DATA = DataConfig(steps=(2, 2), limit=16_000, validation_limit=1000)
WORDS_COURSE = TrainPsiConfig(epochs=16, optimiser="adamw", learning_rate=1e-3)

# Sums
MODULUS, NUM_DIGITS = 5, 6
WIDTH, NUM_LAYERS = 64, 2
THETA_STEPS, THETA_RATE = 3000, 3e-3
EMBEDDING_SIZE = 0.05
"""Standard deviation of fresh embeddings; at transformers' 0.02 some seeds never learn to add."""
# At twice this rate, and in half as many epochs at two thirds of it, a stage in the middle was not learned.
COURSE = TrainPsiConfig(lora_rank=4, lora_alpha=4, epochs=40, batch_size=64, optimiser="adamw", learning_rate=5e-4)
NUM_TRAIN, NUM_TEST = 8000, 1000


class WholeContext(CoconutContext):
    """All weights of the model learn, as its authors train it."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in self.adapters.named_parameters() if "lora_" not in name}


class Staged(CoconutRecipe):
    """The published recipe."""

    def context(self, setup: RecipeSetup) -> CoconutContext:
        return WholeContext(setup.adapters)


class StagedFromChains(Staged):
    """The same for a model that writes chains already: the first stage is behind it."""

    def stage(self, setup: RecipeSetup, epoch: int) -> int:
        return min(self._most, 1 + super().stage(setup, epoch))


class Unstaged(Staged):
    """All lines are thoughts from the beginning, to see what the curriculum is good for."""

    def stage(self, setup: RecipeSetup, epoch: int) -> int:
        return super().stage(setup, setup.num_falling)


@dataclass(frozen=True)
class Outcome:
    """Accuracies of one seed."""

    seed: int
    tests: int
    """Problems they are shares of."""
    chain: float
    staged: float
    unstaged: float
    steps: int
    """Optimiser steps of either, the first stage's among them where θ did not write chains before."""
    seconds: float
    from_chains: float | None = None
    """Unstaged, but with weights that write the chain to begin with; where `unstaged` has fresh ones."""


def problems(seed: int) -> tuple[list[Problem], list[Problem]]:
    """Training and test problems; no test problem is among the others."""
    draw = random.Random(seed)
    tuples = draw.sample(range(MODULUS**NUM_DIGITS), NUM_TRAIN + NUM_TEST)
    made = []
    for number in tuples:
        digits = [number // MODULUS**place % MODULUS for place in range(NUM_DIGITS)]
        sums = [sum(digits[: count + 1]) % MODULUS for count in range(1, NUM_DIGITS)]
        made.append(Problem(str(number), " ".join(map(str, digits)), "\n".join(map(str, sums)), str(sums[-1])))
    return made[:NUM_TRAIN], made[NUM_TRAIN:]


def encoder_for(train: list[Problem]) -> Encoder:
    return Encoder(train_tokenizer([train[0].question, train[0].chain, "####"]), Template())


def fresh_theta(encoder: Encoder, seed: int) -> Theta:
    torch.manual_seed(seed)
    tokenizer = encoder.tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    nn.init.normal_(cast(torch.Tensor, model.model.embed_tokens.weight), std=EMBEDDING_SIZE)
    return Theta("modular sums", model.requires_grad_(False).eval(), encoder, Blocks(model))


class ChainTraining(Training):
    """The first stage: all weights of θ learn to write the chain."""

    def __init__(self, theta: Theta, encoded: list[EncodedProblem], seed: int) -> None:
        self.model, self.pad, self.seed = theta.model, theta.pad_id, seed
        self.rows = [solution_ids(theta, each) for each in encoded]
        self.num_query = len(encoded[0].query)
        self.lengths, self.batch_size = [len(row) for row in self.rows], COURSE.batch_size
        self.epochs = -(-THETA_STEPS * self.batch_size // len(self.rows))
        self.optimiser = Optimiser(
            dict(self.model.named_parameters()),
            learning_rate=THETA_RATE,
            num_steps=self.epochs * self.steps_per_epoch,
        )

    def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> torch.Tensor:
        ids_BT, mask_BT = pad_right([self.rows[number] for number in part], fill=self.pad)
        counts_BT = mask_BT.clone()
        counts_BT[:, : self.num_query] = False
        logits_BTV = self.model(input_ids=ids_BT).logits[:, :-1]
        loss = F.cross_entropy(logits_BTV[counts_BT[:, 1:]], ids_BT[:, 1:][counts_BT[:, 1:]])
        return loss * (len(part) / len(whole))


def teach_chains(theta: Theta, encoded: list[EncodedProblem], seed: int) -> int:
    """Teach θ to write the chain; returns how many epochs that takes."""
    theta.model.requires_grad_(True)
    training = ChainTraining(theta, encoded, seed)
    for _ in training.steps():
        pass
    theta.model.requires_grad_(False)
    return training.epochs


def accuracy(method: Method, tests: list[Problem]) -> float:
    replies, _ = method.reply([problem.question for problem in tests])
    return statistics.mean(reply.answer == problem.answer for reply, problem in zip(replies, tests, strict=True))


def equations(problem: Problem) -> tuple[str, ...]:
    """What is computed, line by line."""
    return tuple(re.findall(r"\d+ \S \d+ = \d+", problem.chain))


def train_coconut(
    theta: Theta, encoded: list[EncodedProblem], chosen: TrainPsiConfig, coconut: CoconutRecipe
) -> tuple[Method, int]:
    """COCONUT on a copy of θ, and its steps."""
    theta = copy.deepcopy(theta)
    adapters = Adapters(theta)
    adapters.add(PSI, rank=chosen.lora_rank, alpha=chosen.lora_alpha, seed=chosen.seed)
    setup = RecipeSetup(adapters, encoded, Decimal(0), chosen)
    training = coconut.training(setup)
    for _ in training.steps():
        pass
    adapters.train_only(())
    thoughts = coconut.num_tokens(setup)
    method = CoconutMethod(adapters, MOST_TOKENS, adapter=PSI, num_thoughts=thoughts)
    return method, training.optimiser.step_count


def sums(seed: int) -> Outcome:
    """Seen from the beginning, and not from a model that writes chains already."""
    started = time.perf_counter()
    train, tests = problems(seed)
    encoder = encoder_for(train)
    encoded = [encoder.problem(each) for each in train]
    fresh = fresh_theta(encoder, seed)
    theta = copy.deepcopy(fresh)
    first_epochs = teach_chains(theta, encoded, seed)
    chain = accuracy(ChainMethod(Adapters(theta), MOST_TOKENS), tests)
    chosen = COURSE.model_copy(update={"seed": seed})
    longer = chosen.model_copy(update={"epochs": chosen.epochs + first_epochs})
    staged, _ = train_coconut(theta, encoded, chosen, Staged())
    from_chains, _ = train_coconut(theta, encoded, chosen, Unstaged())
    unstaged, steps = train_coconut(fresh, encoded, longer, Unstaged())
    return Outcome(
        seed,
        len(tests),
        chain,
        accuracy(staged, tests),
        accuracy(unstaged, tests),
        steps,
        time.perf_counter() - started,
        accuracy(from_chains, tests),
    )


def words(seed: int) -> Outcome:
    """On the model in the package, training problems of its generator, and validation ones.

    With two steps and so many problems, many of validation differ from one of training in words alone; those are left
    out.
    """
    started = time.perf_counter()
    theta, loaded = load_theta(ModelConfig()), load_training(DATA)
    known = set(map(equations, loaded.train))
    encoded = theta.encoder.problems(loaded.train)
    tests = [problem for problem in loaded.validation if equations(problem) not in known]
    chain = accuracy(ChainMethod(Adapters(theta), MOST_TOKENS), tests)
    chosen = WORDS_COURSE.model_copy(update={"seed": seed})
    staged, steps = train_coconut(theta, encoded, chosen, StagedFromChains())
    unstaged, _ = train_coconut(theta, encoded, chosen, Unstaged())
    spent = time.perf_counter() - started
    return Outcome(seed, len(tests), chain, accuracy(staged, tests), accuracy(unstaged, tests), steps, spent)


def main(
    task: Annotated[Task, typer.Option(help="What is to be learned.")] = "sums",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
) -> None:
    """Train and compare; a JSON line for each seed."""
    for seed in range(seeds):
        typer.echo(json.dumps(vars(sums(seed) if task == "sums" else words(seed))))


if __name__ == "__main__":
    typer.run(main)
