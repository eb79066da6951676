"""Compare training steps with the straightforward way to do them.

    python examples/benchmarks/training.py                           # minutes on two cores
    python examples/benchmarks/training.py --repeats 5 --output training.json

The model is a random Llama, so that nothing depends on what was learned. Four pairs are timed:

- φ layer by layer, streamed over the data set, against running the model up to layer i at every step of layer i. Both
  end in the same adapters; the script prints their difference.
- A step of φ on its own rollout, whose inputs are constants: layers 1..l token by token without gradients, then all
  layers in one parallel pass, against all layers token by token with gradients. Both have the same gradients; the
  script prints their difference.
- A step of ψ on stored rollouts, against an ordinary LoRA step on as many tokens.
- Muon's step over an adapter of rank 128, which multiplies matrices of bfloat16 where the processor can, against the
  same in float32.

Dimensions: B batch, N query, K contemplation tokens, I indices, D width.
"""

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import torch
import typer
from interleaved import Round, ratio, report, take_turns

from ccot_cli.config import TrainPhiConfig, TrainPsiConfig
from ccot_cli.data.batches import bucketed
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.random_model import random_theta
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import GoldExample
from ccot_cli.models.training import optimiser
from ccot_cli.models.training.contexts import QueryContext, RolloutContext
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.models.training.phi_joint import generate
from ccot_cli.models.training.phi_layerwise import train_layerwise
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.queries import KeptQueries, fill_queries
from ccot_cli.tensors.losses import huber, scaled_errors, scaled_mse

NUM_QUERY, NUM_TOKENS, NUM_ANSWER = 100, 12, 6
BATCH_SIZE, NUM_EXAMPLES, EPOCHS = 16, 32, 2
RANK, MUON_RANK = 16, 128


class Bench:
    """A model, some problems, and the steps that are timed."""

    def __init__(self, shape: str, folder: Path) -> None:
        self.theta = random_theta(shape, device=torch.device("cpu"), dtype=torch.float32)
        self.layer = self.theta.num_layers // 2
        width, depth = self.theta.model.config.hidden_size, self.theta.num_layers
        draw = torch.Generator().manual_seed(0)
        self.ids = torch.randint(3, 1000, (NUM_EXAMPLES, NUM_QUERY + NUM_TOKENS + NUM_ANSWER), generator=draw).tolist()
        self.examples = [
            GoldExample(
                ids[:NUM_QUERY],
                torch.randn(1 + NUM_TOKENS, depth + 1, width, generator=draw),
                torch.zeros(NUM_TOKENS, dtype=torch.long),
            )
            for ids in self.ids
        ]
        self.adapters = self._adapters(self.theta)
        queries = [each.query for each in self.examples]
        for _ in fill_queries(self.adapters, queries, folder / "kept", batch_tokens=4096):
            pass
        self.queries = KeptQueries(self.theta, queries, self.layer, folder / "kept")

    @staticmethod
    def _adapters(theta: Theta) -> Adapters:
        adapters = Adapters(theta)
        for name in (PHI, PSI):
            adapters.add(name, rank=RANK, alpha=RANK, seed=0)
        return adapters

    # φ, layer by layer

    def streamed(self) -> Adapters:
        """Train φ as `ccot train-phi --schedule layerwise` does."""
        self.adapters.add(PHI, rank=RANK, alpha=RANK, seed=0)
        config = TrainPhiConfig(
            autoregressive_layer=self.layer,
            epochs=EPOCHS,
            batch_size=BATCH_SIZE,
            optimiser="adamw",
            learning_rate=1e-3,
        )
        for _ in train_layerwise(self.adapters, self.examples, self.examples[:1], config):
            pass
        return self.adapters

    def up_to_each_layer(self) -> Adapters:
        """Train φ layer by layer, and run all layers below afresh at every step."""
        adapters = self.adapters
        adapters.add(PHI, rank=RANK, alpha=RANK, seed=0)
        lengths = [len(example.query) for example in self.examples]
        groups = bucketed(lengths, batch_size=BATCH_SIZE, shuffler=random.Random(0))
        for index in range(1, self.theta.num_layers + 1):
            parameters = adapters.parameters(PHI, layers=range(index - 1, index))
            adapters.train_only(parameters)
            adamw = Optimiser(parameters, learning_rate=1e-3, num_steps=EPOCHS * len(groups))
            shuffler = random.Random(f"0/{index}")
            for _ in range(EPOCHS):
                for group in shuffler.sample(groups, len(groups)):
                    adamw.step_on(group, partial(self._loss_at, index))
        adapters.train_only(())
        return adapters

    def _loss_at(self, index: int, part: Sequence[int], whole: Sequence[int]) -> torch.Tensor:
        theta, batch = self.theta, [self.examples[number] for number in part]
        with torch.no_grad():
            # The loss needs layers 1..index only.
            self.adapters.use(None)
            ids_BN = torch.tensor([each.query for each in batch])
            sequence = CachedSequence.empty(len(batch), theta.device)
            theta.blocks.run_ids(ids_BN, torch.ones_like(ids_BN, dtype=torch.bool), sequence, last=index)
        gold_BJID = torch.stack([each.gold_JID for each in batch])
        mask_BK = torch.ones(len(batch), NUM_TOKENS, dtype=torch.bool)
        sequence.extend(mask_BK)
        self.adapters.use(PHI)
        with torch.no_grad():
            state_BKD = theta.blocks.enter(gold_BJID[:, :-1, self.layer], sequence)
            state_BKD = theta.blocks.run(state_BKD, 0, index - 1, sequence)
        state_BKD = theta.blocks.run(state_BKD, index - 1, index, sequence)
        return scaled_mse(state_BKD, gold_BJID[:, 1:, index], mask_BK)

    # φ on its own rollout

    def in_one_parallel_pass(self) -> torch.Tensor:
        """Take the gradient of a rollout's error as `ccot train-phi` does."""
        numbers = range(BATCH_SIZE)
        arguments = (self.adapters, self.examples, self.queries, numbers)
        loss = generate(*arguments, layer=self.layer).loss()
        torch.autograd.backward(loss)
        return loss

    def every_layer_token_by_token(self) -> torch.Tensor:
        """Take the same gradient, with all layers of a token run before the next token."""
        numbers, theta = range(BATCH_SIZE), self.theta
        gold_BJID = torch.stack([self.examples[number].gold_JID for number in numbers])
        sequence = self.queries.sequence(numbers)
        self.adapters.use(PHI)
        state_BD, errors = gold_BJID[:, 0, self.layer], []
        for column in range(NUM_TOKENS):
            sequence.extend(torch.ones(BATCH_SIZE, 1, dtype=torch.bool))
            entered = theta.blocks.enter(state_BD[:, None], sequence)
            states = theta.blocks.run_each(entered, 0, theta.num_layers, sequence)
            state_BD = states[self.layer][:, 0].detach()
            above_BID = torch.stack([state[:, 0] for state in states[self.layer :]], dim=1)
            errors.append(huber(scaled_errors(above_BID, gold_BJID[:, column + 1, self.layer :])))
        loss = torch.stack(errors).mean()
        torch.autograd.backward(loss)
        return loss

    def gradients(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return φ's gradients after a step, as one vector."""
        parameters = self.train_phi()
        step()
        return torch.cat([each.grad.flatten() for each in parameters if each.grad is not None])

    def train_phi(self) -> list[torch.nn.Parameter]:
        """Declare φ as what is trained, without gradients so far, and return its parameters."""
        parameters = self.adapters.parameters(PHI)
        self.adapters.train_only(parameters)
        for parameter in parameters.values():
            parameter.grad = None
        return list(parameters.values())

    # ψ

    def psi_steps(self) -> Iterator[float]:
        """Yield the losses of ψ's steps on stored rollouts, which are random states here."""
        rollouts = [each.gold_JID[:-1, self.layer] for each in self.examples]
        context = RolloutContext(self.adapters, self.queries, rollouts, self.layer)
        return self._psi(context, NUM_QUERY, NUM_TOKENS)

    def lora_steps(self) -> Iterator[float]:
        """Yield the losses of plain fine-tuning, on questions longer by the number of contemplation tokens."""
        return self._psi(QueryContext(self.adapters), NUM_QUERY + NUM_TOKENS, 0)

    def _psi(self, context: RolloutContext | QueryContext, num_query: int, count: int) -> Iterator[float]:
        examples = [PsiExample(ids[:num_query], ids[:1], ids[-NUM_ANSWER:], count) for ids in self.ids]
        config = TrainPsiConfig(epochs=1000, batch_size=BATCH_SIZE, optimiser="adamw", learning_rate=1e-4)
        return PsiTraining(self.adapters, examples, context, config).steps()

    # Muon

    def muon_step(self, *, in_bfloat16: bool) -> None:
        """Take a step of Muon over ψ, once `widen` has made it wide."""
        with patch.object(optimiser, "multiplies_bfloat16", lambda device: in_bfloat16):
            self._muon.step()

    def widen(self) -> None:
        """Give ψ a usual rank, and gradients."""
        self.adapters.add(PSI, rank=MUON_RANK, alpha=MUON_RANK, seed=0)
        parameters, draw = list(self.adapters.parameters(PSI).values()), torch.Generator().manual_seed(0)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        self._muon = optimiser.Muon(parameters, lr=1e-3)


def relative_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Divide the norm of the difference by the norm of the second."""
    return float((one - other).norm() / other.norm())


def main(
    shape: Annotated[str, typer.Option(help="Layers and width of the random Llama.")] = "16x256",
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 3,
    output: Annotated[Path | None, typer.Option(help="File for the results as JSON.")] = None,
) -> None:
    """Time the steps."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(shape, Path(folder))
        adapters = [
            torch.cat([tensor.flatten() for tensor in work().state(PHI).values()])
            for work in (bench.streamed, bench.up_to_each_layer)
        ]
        gradients = [bench.gradients(work) for work in (bench.in_one_parallel_pass, bench.every_layer_token_by_token)]
        rounds: list[Round] = take_turns(
            {"up to layer i at every step": bench.up_to_each_layer, "streamed": bench.streamed},
            repeats=repeats,
            warm_ups=0,
        )
        ratios = [ratio(rounds, "up to layer i at every step", "streamed")]
        bench.adapters.add(PHI, rank=RANK, alpha=RANK, seed=0)
        bench.train_phi()
        steps = take_turns(
            {
                "every layer token by token": bench.every_layer_token_by_token,
                "one parallel pass": bench.in_one_parallel_pass,
            },
            repeats=repeats,
        )
        ratios.append(ratio(steps, "every layer token by token", "one parallel pass"))
        psi, lora = bench.psi_steps(), bench.lora_steps()
        bench.adapters.train_only(bench.adapters.parameters(PSI))
        answers = take_turns({"ψ step": lambda: next(psi), "LoRA step": lambda: next(lora)}, repeats=3 * repeats)
        ratios.append(ratio(answers, "ψ step", "LoRA step"))
        bench.widen()
        muon = take_turns(
            {
                "Muon in float32": partial(bench.muon_step, in_bfloat16=False),
                "in bfloat16": partial(bench.muon_step, in_bfloat16=True),
            },
            repeats=repeats,
        )
        ratios.append(ratio(muon, "Muon in float32", "in bfloat16"))
        differences = {
            "adapters": relative_difference(*adapters),
            "gradients": relative_difference(*gradients),
        }
        report(
            ratios,
            [*rounds, *steps, *answers, *muon],
            output,
            shape=shape,
            query=NUM_QUERY,
            tokens=NUM_TOKENS,
            batch=BATCH_SIZE,
            differences=differences,
        )
        for name, difference in differences.items():
            typer.echo(f"{name} of the two ways differ by {difference:.1e} of their norm")


if __name__ == "__main__":
    typer.run(main)
