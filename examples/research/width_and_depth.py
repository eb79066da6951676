"""Test the paper's theorem by experiment: which problems need contemplation tokens, and of which kind?

    python examples/research/width_and_depth.py                        # every cell, three seeds; an hour on one core
    python examples/research/width_and_depth.py --seeds 1 --steps 500  # a first look
    python examples/research/width_and_depth.py --plot theory.svg

The class F(M, K) contains functions of N inputs. Such a function applies a binary operation along M subsets of K inputs
each, and then aggregates the M results. Here the operation is addition modulo V, relabelled at random so that it is
not associative; the aggregate is the most frequent result, or the least of several. The theorem is about two-layer
transformers in which every index can hold one value:

- without contemplation tokens they represent F(M, 2) only if M <= N;
- M - N parallel tokens suffice for F(M, 2) with M > N, and so do tokens that are fed back;
- M (K - 1) tokens that are fed back suffice for F(M, K) with K > 2; each is the first layer's output of the one before.

This script trains such transformers from random weights and prints what each learns: once from the answers alone, and
once *taught* where the theorem's construction keeps which result, as CCoT teaches its tokens. The taught results are
read from the first layer's output: with K = 2 one of the M results at each of the first M indices (inputs, then
tokens), as far as there are that many; with K > 2 one of the M (K - 1) partial results at each token.

Narrow states and two attention heads stand for the theorem's "one operation per index". A trained network need not obey
that, and training need not find what the theorem allows. Results go to stdout as a table and to --output as JSON lines;
a stopped run continues from there.

Dimensions: B batch, N inputs, P contemplation tokens, T all indices, A taught indices, D width, V values.
"""

import json
import math
import statistics
import time
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

Kind = Literal["none", "parallel", "fed back"]
NUM_VALUES, NUM_INPUTS = 4, 6
WIDTH, HEADS = 32, 2
BATCH_SIZE, LEARNING_RATE = 256, 3e-3
HELD_OUT = 1024
"""How many of the V ** N inputs training never draws, because a network could memorise those that it sees."""


class Cell(NamedTuple):
    """A class of functions, the tokens that a transformer has for it, and how it is trained."""

    subsets: int
    """M"""
    depth: int
    """K"""
    kind: Kind
    tokens: int
    """P"""
    is_taught: bool = False
    """Whether results are taught besides the answer."""

    @property
    def is_possible(self) -> bool:
        """Whether the theorem says that the tokens suffice."""
        if self.depth == 2:
            return self.subsets <= NUM_INPUTS + (self.tokens if self.kind != "none" else 0)
        return self.kind == "fed back" and self.tokens >= self.subsets * (self.depth - 1)

    @property
    def asked(self) -> range:
        """The indices at which a result is taught, if any are."""
        if self.depth == 2:
            return range(min(self.subsets, NUM_INPUTS + self.tokens))
        return range(NUM_INPUTS, NUM_INPUTS + self.tokens)


def all_cells() -> list[Cell]:
    """List the cells: for width K = 2 and M around N, for depth K > 2 and as many tokens as feeding back needs."""
    cells = []
    for subsets in (3, 6, 9, 12):
        extra = max(0, subsets - NUM_INPUTS)
        cells.append(Cell(subsets, 2, "none", 0))
        if extra:
            cells += [Cell(subsets, 2, "parallel", extra), Cell(subsets, 2, "fed back", extra)]
    for subsets, depth in ((1, 3), (1, 4), (1, 5), (1, 6), (3, 3)):
        tokens = subsets * (depth - 1)
        cells += [
            Cell(subsets, depth, "none", 0),
            Cell(subsets, depth, "parallel", tokens),
            Cell(subsets, depth, "fed back", tokens),
        ]
    return [
        each for cell in cells for each in (cell, cell._replace(is_taught=True)) if each.asked or not each.is_taught
    ]


class Task:
    """One function of F(M, K)."""

    def __init__(self, cell: Cell, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._num_asked = len(cell.asked)
        self.table_VV = latin_square(generator)
        subsets = list(combinations(range(NUM_INPUTS), cell.depth))
        drawn = torch.randperm(len(subsets), generator=generator)[: cell.subsets].tolist()
        self.subsets_MK = torch.tensor([subsets[number] for number in drawn])
        inputs_IN = torch.cartesian_prod(*[torch.arange(NUM_VALUES)] * NUM_INPUTS)
        order_I = torch.randperm(len(inputs_IN), generator=generator)
        self.held_out_BN, self.training_IN = inputs_IN[order_I[:HELD_OUT]], inputs_IN[order_I[HELD_OUT:]]

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw training inputs: B, N."""
        drawn_B = torch.randint(len(self.training_IN), (count,), generator=generator)
        return self.training_IN[drawn_B]

    def answers(self, values_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the function's values (B), and the results that the taught indices should hold (B, A)."""
        chosen_BMK = values_BN[:, self.subsets_MK]
        results = [chosen_BMK[..., 0]]
        for step in range(1, chosen_BMK.shape[-1]):
            results.append(self.table_VV[results[-1], chosen_BMK[..., step]])
        votes_BV = NUM_VALUES * F.one_hot(results[-1], NUM_VALUES).sum(dim=1) - torch.arange(NUM_VALUES)
        # Subset by subset, the results of its first two inputs, its first three, and so on.
        partial_BA = torch.stack(results[1:], dim=2).flatten(1)[:, : self._num_asked]
        return votes_BV.argmax(dim=1), partial_BA


def latin_square(generator: torch.Generator) -> Tensor:
    """Draw a random operation: addition with relabelled arguments and results, so that each argument always matters.

    Two kinds are left out, because a chain of them has no depth: associative operations, and those in which a sum, read
    as the next argument, is an affine function of itself. A chain of these is a single sum of relabelled inputs.
    """
    index = torch.arange(NUM_VALUES)
    while True:
        rows, columns, names = (torch.randperm(NUM_VALUES, generator=generator) for _ in range(3))
        read_V = rows[names]
        if len(torch.unique((read_V.roll(-1) - read_V) % NUM_VALUES)) == 1:
            continue
        table_VV = names[(rows[:, None] + columns[None]) % NUM_VALUES]
        left = table_VV[table_VV[index[:, None, None], index[None, :, None]], index[None, None, :]]
        right = table_VV[index[:, None, None], table_VV[index[None, :, None], index[None, None, :]]]
        if not torch.equal(left, right):
            return table_VV


class Layer(nn.Module):
    """Attention and a feed-forward part, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, state_BQD: Tensor, seen_BTD: Tensor, allowed_QT: Tensor | None = None) -> Tensor:
        """Compute the new indices' states (B, Q, D) from those of all that they may attend to (B, T, D)."""
        q, kv = self.norms[0](state_BQD), self.norms[0](seen_BTD)
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query(q), self.key(kv), self.value(kv))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed_QT)
        state_BQD = state_BQD + self.out(mixed.transpose(1, 2).flatten(2))
        fed_BQD: Tensor = self.feed_forward(self.norms[1](state_BQD))
        return state_BQD + fed_BQD


class TwoLayers(nn.Module):
    """A transformer that reads the inputs, then its contemplation tokens, and answers at the last index."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.kind, self.num_tokens, self.asked = cell.kind, cell.tokens, cell.asked
        self.embedding = nn.Embedding(NUM_VALUES, WIDTH)
        self.place_TD = nn.Parameter(0.5 * torch.randn(NUM_INPUTS + cell.tokens, WIDTH))
        self.first, self.second = Layer(), Layer()
        self.answer, self.result = (nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUM_VALUES)) for _ in range(2))

    def forward(self, values_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits of the answer (B, V), and of the results at the taught indices (B, A, V)."""
        inputs_BND = self.embedding(values_BN) + self.place_TD[:NUM_INPUTS]
        middle_BND = self.first(inputs_BND, inputs_BND)
        places_PD = self.place_TD[NUM_INPUTS:]
        if self.kind == "fed back":
            middle_BTD = self._fed_back(inputs_BND, middle_BND, places_PD)
        else:
            # A parallel token holds its position alone; it attends to the inputs and to the tokens up to itself.
            tokens_BPD = places_PD.expand(len(values_BN), -1, -1)
            allowed_PT = torch.ones(self.num_tokens, NUM_INPUTS + self.num_tokens).tril(NUM_INPUTS).bool()
            seen_BTD = torch.cat([inputs_BND, tokens_BPD], dim=1)
            new = [self.first(tokens_BPD, seen_BTD, allowed_PT)] if self.num_tokens else []
            middle_BTD = torch.cat([middle_BND, *new], dim=1)
        last_BD = self.second(middle_BTD[:, -1:], middle_BTD)[:, 0]
        return self.answer(last_BD), self.result(middle_BTD[:, self.asked.start : self.asked.stop])

    def _fed_back(self, inputs_BND: Tensor, middle_BND: Tensor, places_PD: Tensor) -> Tensor:
        """Add the first layer's outputs of the tokens, one by one; each token is that output of the one before."""
        seen_BTD, middle_BTD = inputs_BND, middle_BND
        for place_D in places_PD:
            token_B1D = middle_BTD[:, -1:] + place_D
            seen_BTD = torch.cat([seen_BTD, token_B1D], dim=1)
            middle_BTD = torch.cat([middle_BTD, self.first(token_B1D, seen_BTD)], dim=1)
        return middle_BTD


def train(cell: Cell, seed: int, steps: int) -> float:
    """Train on most inputs, and return the accuracy on those held out."""
    task = Task(cell, seed)
    torch.manual_seed(seed)
    model, generator = TwoLayers(cell), torch.Generator().manual_seed(1000 + seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 100) * (1 + math.cos(math.pi * step / steps)) / 2
        values_BN = task.draw(BATCH_SIZE, generator)
        answer_B, partial_BA = task.answers(values_BN)
        answer_BV, result_BAV = model(values_BN)
        loss = F.cross_entropy(answer_BV, answer_B)
        if cell.is_taught:
            loss = loss + F.cross_entropy(result_BAV.flatten(0, 1), partial_BA.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    with torch.no_grad():
        right_B = model(task.held_out_BN)[0].argmax(dim=1) == task.answers(task.held_out_BN)[0]
        return float(right_B.float().mean())


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for each cell: of the task, the weights and the data.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 1500,
    output: Annotated[
        Path, typer.Option(help="File of JSON lines, one for each run; its runs are not repeated.")
    ] = Path("theory.jsonl"),
    plot: Annotated[Path | None, typer.Option(help="File for a plot, .png or .svg; needs matplotlib.")] = None,
) -> None:
    """Train every cell, and print its accuracy beside what the theorem says."""
    done = {}
    if output.exists():
        for line in output.read_text().splitlines():
            run = json.loads(line)
            done[Cell(*run["cell"]), run["seed"], run["steps"]] = run["accuracy"]
    typer.echo(f"N = {NUM_INPUTS}, {NUM_VALUES} values, width {WIDTH}, {HEADS} heads, {steps:,} steps of {BATCH_SIZE}")
    typer.echo(f"{'M':>3} {'K':>3}  {'tokens':<12} {'theorem':<9} {'trained on':<12} accuracy (seeds)")
    means: dict[Cell, float] = {}
    for cell in all_cells():
        for seed in range(seeds):
            if (cell, seed, steps) not in done:
                started = time.perf_counter()
                done[cell, seed, steps] = train(cell, seed, steps)
                run = {"cell": list(cell), "seed": seed, "steps": steps, "accuracy": done[cell, seed, steps]}
                with output.open("a") as file:
                    file.write(json.dumps({**run, "seconds": time.perf_counter() - started}) + "\n")
        accuracies = [done[cell, seed, steps] for seed in range(seeds)]
        means[cell] = statistics.fmean(accuracies)
        tokens = f"{cell.tokens} {cell.kind}" if cell.tokens else "none"
        by_seed = " ".join(f"{accuracy:.3f}" for accuracy in accuracies)
        theorem = "possible" if cell.is_possible else "not"
        trained = "results too" if cell.is_taught else "answers"
        typer.echo(
            f"{cell.subsets:>3} {cell.depth:>3}  {tokens:<12} {theorem:<9} {trained:<12} {means[cell]:.3f} ({by_seed})"
        )
    if plot:
        draw(means, plot)


def draw(means: dict[Cell, float], path: Path) -> None:
    """Plot accuracy by M at K = 2 and by K at M = 1, a line for each kind of token, dotted for answers alone."""
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    wide = {(cell.subsets, cell.kind, cell.is_taught): mean for cell, mean in means.items() if cell.depth == 2}
    deep = {(cell.depth, cell.kind, cell.is_taught): mean for cell, mean in means.items() if cell.subsets == 1}
    panels = (("width: K = 2", "M, operations", wide), ("depth: M = 1", "K, inputs of the operation", deep))
    for axes, (title, label, panel) in zip(both, panels, strict=True):
        for kind, marker, colour in (("none", "o", "C7"), ("parallel", "s", "C1"), ("fed back", "^", "C0")):
            for is_taught, line in ((True, "-"), (False, ":")):
                points = sorted((size, mean) for (size, *cell), mean in panel.items() if cell == [kind, is_taught])
                name = f"{kind}, {'taught' if is_taught else 'answers alone'}"
                if points:
                    axes.plot(*zip(*points, strict=True), f"{marker}{line}", color=colour, label=name)
        axes.set_title(title)
        axes.set_xlabel(label)
        axes.set_xticks(sorted({size for size, _, _ in panel}))
    both[0].set_ylabel("accuracy on inputs held out")
    both[0].set_ylim(0, 1.03)
    handles = {name: handle for axes in both for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    both[0].legend(handles.values(), handles.keys(), frameon=False, fontsize="small", loc="lower left")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    typer.run(main)
