"""Count the arithmetic of each stage, from which docs/scaling.md estimates large models. Nothing is timed.

    python examples/benchmarks/operations.py
    python examples/benchmarks/operations.py --shape 32x256 --output operations.json

The unit is the pass of one token through all decoder layers: two operations for each of their weights. The model is a
random Llama, with LoRA of rank 16 that is not merged, as for a large model.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch.utils.flop_counter import FlopCounterMode
from training import BATCH_SIZE, NUM_ANSWER, NUM_EXAMPLES, NUM_QUERY, NUM_TOKENS, Bench

from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.selection.gold import gold_states, solution_ids
from ccot_cli.models.training.contexts import QueryContext, RolloutContext, roll_out
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.phi_joint import generate
from ccot_cli.models.training.psi import answer_loss
from ccot_cli.models.training.queries import FreshQueries

NUM_CHAIN = 120
NUMBERS = range(BATCH_SIZE)


class Counted:
    """Pieces of work on one batch; each method does one."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.theta, self.adapters, self.layer = bench, bench.theta, bench.adapters, bench.layer
        ids = bench.ids[:BATCH_SIZE]
        chain = ids[0][:1] * NUM_CHAIN
        self.problems = [EncodedProblem("", each[:NUM_QUERY], chain, each[-NUM_ANSWER:]) for each in ids]
        self.examples = [PsiExample(each[:NUM_QUERY], each[:1], each[-NUM_ANSWER:], NUM_TOKENS) for each in ids]
        rollouts = [each.gold_JID[:-1, self.layer] for each in bench.examples]
        self.rollout_context = RolloutContext(self.adapters, bench.queries, rollouts, self.layer)

    def solutions_under_theta(self) -> None:
        """Run whole solutions, as `precompute` does."""
        self.adapters.use(None)
        indices, num_tokens = [self.theta.num_layers], len(solution_ids(self.theta, self.problems[0]))
        states = gold_states(
            self.theta, self.problems, indices=indices, batch_tokens=BATCH_SIZE * num_tokens, dtype=torch.float32
        )
        assert len(list(states)) == BATCH_SIZE

    def queries_under_theta(self) -> None:
        """Run the queries, whose keys and values are kept or not."""
        FreshQueries(self.adapters, [each.query for each in self.problems], self.layer).encoded(NUMBERS)

    def phi_from_gold_inputs(self) -> None:
        """Do what a step of φ in a taught epoch does; the queries are kept."""
        self._phi(gold_fraction=1.0)

    def phi_from_its_rollout(self) -> None:
        """Do what a later step of φ does."""
        self._phi(gold_fraction=0.0)

    def _phi(self, gold_fraction: float) -> None:
        self.bench.train_phi()
        bench = self.bench
        generated = generate(
            self.adapters, bench.examples, bench.queries, NUMBERS, layer=self.layer, gold_fraction=gold_fraction
        )
        torch.autograd.backward(generated.loss())

    def rollout_for_psi(self) -> None:
        """Roll φ out once, before ψ learns."""
        # Of all problems, which are two batches.
        counts = [NUM_TOKENS] * NUM_EXAMPLES
        for _ in roll_out(self.adapters, self.bench.queries, counts, layer=self.layer, batch_size=BATCH_SIZE):
            pass

    def psi_on_rollouts(self) -> None:
        """Do what a step of ψ does; the queries are kept."""
        self._psi(self.rollout_context)

    def fine_tuning(self) -> None:
        """Do what a step of the baseline `direct` does: the query runs under ψ too."""
        self._psi(QueryContext(self.adapters))

    def _psi(self, context: RolloutContext | QueryContext) -> None:
        self.adapters.train_only(self.adapters.parameters(PSI))
        sequence = context.read(NUMBERS, self.examples).sequence
        answers = [each.answer for each in self.examples]
        torch.autograd.backward(answer_loss(self.adapters, sequence, [each.start for each in self.examples], answers))


def operations(work: Callable[[], None]) -> int:
    """Count the multiplications and additions of matrix products and of attention."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def main(
    shape: Annotated[str, typer.Option(help="Layers and width of the random Llama.")] = "16x256",
    output: Annotated[Path | None, typer.Option(help="File for the results as JSON.")] = None,
) -> None:
    """Count the passes of each stage for one problem."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(shape, Path(folder))
        bench.adapters.merges = False
        counted = Counted(bench)
        weights = [each.numel() for name, each in bench.theta.blocks.layers.named_parameters() if "lora_" not in name]
        config = bench.theta.model.config
        # The output matrix, forward and backward, at the answer's tokens.
        output_matrix = 4 * config.vocab_size * config.hidden_size * NUM_ANSWER * BATCH_SIZE
        found = {
            name: (operations(getattr(counted, name)) - left_out) / (2 * sum(weights) * num_problems)
            for name, num_problems, left_out in (
                ("solutions_under_theta", BATCH_SIZE, 0),
                ("queries_under_theta", BATCH_SIZE, 0),
                ("phi_from_gold_inputs", BATCH_SIZE, 0),
                ("phi_from_its_rollout", BATCH_SIZE, 0),
                ("rollout_for_psi", NUM_EXAMPLES, 0),
                ("psi_on_rollouts", BATCH_SIZE, output_matrix),
                ("fine_tuning", BATCH_SIZE, output_matrix),
            )
        }
    typer.echo(f"{NUM_QUERY} tokens of query, {NUM_CHAIN} of chain, k = {NUM_TOKENS}, {NUM_ANSWER} of answer")
    for name, count in found.items():
        typer.echo(f"{name.replace('_', ' '):24} {count:8.1f}")
    if output:
        output.write_text(json.dumps({"shape": shape, "passes": found}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
