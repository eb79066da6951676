"""Train θ, the embedded base model: its tokenizer and its weights.

    python examples/train_theta.py --people gsm8k.jsonl --bfloat16 --workers 14    # minutes on a GPU
    python examples/train_theta.py --people gsm8k.jsonl --bfloat16 --start src/ccot_cli/embedded
    torchrun --nproc-per-node 2 -- examples/train_theta.py --people gsm8k.jsonl --device cpu --compile    # on two cores

The first command begins with fresh weights; the second goes on from a trained model. The tokenizer is made anew either
way, because problems may have new words. After an interruption, the same command resumes. The model goes to
src/ccot_cli/embedded/; tokenizer, checkpoints and logs go to build/theta/, where each training that goes on from
another has files of its own. Then `train_embedded.py` makes the methods anew, because they belong to the old weights.

Dimensions: B batch, T tokens of query and solution, M of them with a loss, D width, V vocabulary.
"""

import json
import multiprocessing
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize
from training_texts import Solved, read_people, renumbered, replaceable_stems, sums, varied
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ccot_cli import ranks
from ccot_cli.cli.console import TerminalProgress
from ccot_cli.config import AUTO
from ccot_cli.data.batches import cut
from ccot_cli.data.families import WordProblem
from ccot_cli.data.problems import Problem, split_solution
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.data.stories import MOST_STEPS
from ccot_cli.data.tokenizer import train_tokenizer
from ccot_cli.data.word_problems import generate
from ccot_cli.files import commit, set_usual_mode, write_json
from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER
from ccot_cli.models.base.theta import resolve_device
from ccot_cli.models.training.loop import read_lines, write_lines
from ccot_cli.models.training.optimiser import Muon, sum_of_ranks
from ccot_cli.progress import Progress
from ccot_cli.tensors.masks import pad_right

BUILD_FOLDER = Path("build/theta")
RECORD_FILE = "training.json"
"""The trainings that made the shipped weights, one after the other."""
SEED = 0
WIDTH, HEAD_WIDTH = 192, 32
CPU = torch.device("cpu")
BATCH_SIZE = 512
POOL_BATCHES = 32
SEEDS_OF_PHASE = 1_000_000
"""How many seeds of problems a phase has for itself."""
MUON_RATE, ADAM_SHARE = 3e-3, 2 / 3
"""Muon's highest learning rate, and AdamW's as a share of it. They fall linearly to zero over all phases."""
WARM_UP_STEPS = 100
CHECKPOINT_STEPS = 100
CPU_ROWS = 16
"""Rows of a backward pass on a CPU: more take memory, which is slow to get, and are no faster."""
QUESTION_WEIGHT = 0.3
"""Weight of a question's token in the loss. Predicting questions teaches their language: θ answers more of them."""
NUM_TOKENIZER_PROBLEMS = 20_000
NUM_WORDS = 6_500
PEOPLE_SHARE = 0.05
"""How often a training problem is one that people wrote, with other numbers where these can be replaced."""
SUMS_PROBABILITY = 0.1
"""How often a training example is sums alone."""

Example = tuple[list[int], list[float]]
"""Ids, and the weight of each one's loss."""


@dataclass(frozen=True)
class Phase:
    """A phase of θ's training, with its own problems and optimisers."""

    steps: int
    most_steps: int
    """Most reasoning steps of a problem."""
    long_probability: float
    """How often a generated problem has more than half of the most steps there are."""
    people_share: float = PEOPLE_SHARE
    """How often a training problem is one that people wrote."""


PHASES = (
    Phase(steps=5_000, most_steps=5, long_probability=0.0),
    Phase(steps=1_000, most_steps=MOST_STEPS, long_probability=0.15),
)
"""Those from fresh weights. Long problems last: they take longer, and consist of what short ones teach."""
FURTHER_STEPS, FURTHER_LONG_PROBABILITY = 3_000, 0.25
"""Of the one phase of a training that goes on from a model."""


def make_model(tokenizer: PreTrainedTokenizerFast, width: int = WIDTH, device: torch.device = CPU) -> LlamaForCausalLM:
    """Make θ with fresh weights; its width is a multiple of a head's."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=32 * round(width / 12),
        num_hidden_layers=8,
        num_attention_heads=width // HEAD_WIDTH,
        num_key_value_heads=width // HEAD_WIDTH,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    if device == CPU:
        # Plain attention's backward pass is faster there than that of PyTorch's fused one, for texts as short as these.
        model.set_attn_implementation("eager")
    # The output layer has the same vectors; ThetaTraining takes them from here.
    model.lm_head = nn.Identity()
    parametrize.register_parametrization(
        model.model.embed_tokens, "weight", DigitSums(tokenizer, config.hidden_size), unsafe=True
    )
    model.to(device)  # type: ignore[arg-type]
    return model


@torch.no_grad()
def load_weights(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Give θ the weights of a trained one; a new token's vector becomes the mean of those that the old one cut it into.

    Args:
        tokenizer: θ's.
        folder: The trained model, with its tokenizer.
    """
    state = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).model.state_dict()
    old_VD = state.pop("embed_tokens.weight")
    tokenize = PreTrainedTokenizerFast.from_pretrained(folder).backend_tokenizer.model.tokenize
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    pieces = [[piece.id for piece in tokenize(word)] for word in words]
    vectors = model.model.embed_tokens.parametrizations.weight
    vectors[0].digits.zero_()
    vectors.original.copy_(torch.stack([old_VD[ids].mean(dim=0) for ids in pieces]))
    model.model.load_state_dict(state, strict=False)


def compile_layers(model: LlamaForCausalLM) -> None:
    """Compile the layers: their many small operations become few, which read memory less often."""
    for layer in model.model.layers:
        layer.compile(dynamic=True)


def with_plain_vectors(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a trained model as it is saved: with one table of vectors, for input and output."""
    parametrize.remove_parametrizations(model.model.embed_tokens, "weight")
    plain = LlamaForCausalLM(model.config)
    plain.model.load_state_dict(model.model.state_dict())
    plain.tie_weights()
    return plain


def make_tokenizer(people: list[Solved]) -> PreTrainedTokenizerFast:
    """Train the tokenizer on generated problems of the training split, and on those of people."""
    problems = islice(generate("train", seed=SEED), NUM_TOKENIZER_PROBLEMS)
    texts = [text for problem in problems for text in (problem.question, problem.solution)]
    return train_tokenizer([*texts, *(question for question, _ in people)], num_words=NUM_WORDS)


class DigitSums(nn.Module):
    """Adds to the vectors of numbers one for each digit, at its place, so that numbers alike have vectors alike."""

    places: Tensor

    def __init__(self, tokenizer: PreTrainedTokenizerFast, width: int) -> None:
        super().__init__()
        texts = [str(tokenizer.decode([token])).strip() for token in range(len(tokenizer))]
        places = torch.zeros(len(texts), 30)
        for token, text in enumerate(texts):
            if text.isdigit() and len(text) <= 3:
                for place, digit in enumerate(reversed(text)):
                    places[token, 10 * place + int(digit)] = 1
        self.register_buffer("places", places, persistent=False)
        self.digits = nn.Parameter(0.02 * torch.randn(30, width))

    def forward(self, weight_VD: Tensor) -> Tensor:
        """Return the vectors of all tokens."""
        return weight_VD + self.places @ self.digits


def encode(encoder: Encoder, told: Solved, *, question_weight: float) -> Example:
    """Return the ids of a question and its solution, and their weights; those of the solution are 1."""
    question, solution = told
    chain, answer = split_solution(solution)
    encoded = encoder.problem(Problem("", question, chain, answer))
    solution_ids = [*encoded.chain, *encoder.answer_marker, *encoded.answer]
    weights = [*[question_weight] * len(encoded.query), *[1.0] * len(solution_ids)]
    return [*encoded.query, *solution_ids], weights


def padded(encoder: Encoder, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Return the ids of a batch and their weights: B, T each."""
    ids_BT, _ = pad_right([ids for ids, _ in examples], fill=encoder.tokenizer.pad_token_id)
    weight_BT = nn.utils.rnn.pad_sequence([torch.tensor(weights) for _, weights in examples], batch_first=True)
    return ids_BT, weight_BT


Batch = tuple[Tensor, Tensor]
"""Ids, and the weights of their losses: B, T each."""


@dataclass(frozen=True)
class PoolMaker:
    """Makes pools of batches of fresh training problems; one pool depends on nothing but the step it is for."""

    encoder: Encoder
    first_seed: int
    """That of the pool for step 0; the pool for another step has this seed and the step."""
    phase: Phase
    people: list[Solved]
    """Problems that people wrote, which are mixed in."""
    stems: list[str]
    """Of words that others may replace."""
    batch_size: int = BATCH_SIZE

    def __call__(self, step: int) -> list[Batch]:
        """Make the batches of `POOL_BATCHES` steps from `step` on, each of examples of similar length."""
        seed = self.first_seed + step
        rng = random.Random(seed)
        generated = generate("train", seed=seed, steps=(1, self.phase.most_steps))
        long = generate("train", seed=seed, steps=(MOST_STEPS // 2 + 1, MOST_STEPS))
        examples = sorted(
            (self._draw(rng, generated, long) for _ in range(self.batch_size * POOL_BATCHES)),
            key=lambda example: len(example[0]),
        )
        batches = cut(examples, self.batch_size)
        rng.shuffle(batches)
        return [padded(self.encoder, batch) for batch in batches]

    def _draw(self, rng: random.Random, generated: Iterator[WordProblem], long: Iterator[WordProblem]) -> Example:
        if rng.random() < SUMS_PROBABILITY:
            return self._practice(rng)
        if rng.random() < self.phase.people_share:
            told = renumbered(rng, rng.choice(self.people))
        else:
            problem = next(long if rng.random() < self.phase.long_probability else generated)
            told = problem.question, problem.solution
        told = varied(rng, self.stems, told)
        return encode(self.encoder, told, question_weight=QUESTION_WEIGHT)

    def _practice(self, rng: random.Random) -> Example:
        ids = self.encoder.query(sums(rng))
        equals = self.encoder.tokenizer.convert_tokens_to_ids("Ġ=")
        return ids, [0.0, *(float(token == equals) for token in ids[:-1])]


def make_batches(make_pool: PoolMaker, steps: range, *, workers: int = 0) -> Iterator[Batch]:
    """Yield the batches of some steps of a phase.

    Args:
        workers: Processes that make pools ahead of their use; 0 for this one, which makes each when it is needed.
    """
    # A training that resumes skips the batches of its first pool that were used.
    firsts = range(steps.start - steps.start % POOL_BATCHES, steps.stop, POOL_BATCHES)
    pools = _made_ahead(make_pool, firsts, workers) if workers else map(make_pool, firsts)
    yield from islice(
        (batch for pool in pools for batch in pool), steps.start - firsts.start, steps.stop - firsts.start
    )


def _made_ahead(make_pool: PoolMaker, firsts: range, workers: int) -> Iterator[list[Batch]]:
    pending = deque[Future[list[Batch]]]()
    # Fresh processes, because a copy of this one would share its GPU.
    executor = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        for first in firsts:
            pending.append(executor.submit(make_pool, first))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # A training that is stopped does not wait for the pools ahead.
        executor.shutdown(cancel_futures=True)


@dataclass
class ThetaTraining:
    """The training of one phase: Muon for the matrices of the layers, AdamW for the other parameters."""

    model: LlamaForCausalLM
    number: int
    """The phase's, from 0."""
    in_bfloat16: bool
    """Whether matrix products are computed in bfloat16, which is faster on processors that can."""
    phases: Sequence[Phase]
    """All phases of the training."""
    rate: float = MUON_RATE
    """Muon's highest learning rate."""
    step: int = 0
    """Steps that have been taken."""

    def __post_init__(self) -> None:
        matrices = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.ndim == 2 and "embed" not in name
        }
        others = {name: p for name, p in self.model.named_parameters() if name not in matrices}
        self.named = [matrices, others]
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(list(matrices.values()), lr=self.rate),
            torch.optim.AdamW(list(others.values()), lr=ADAM_SHARE * self.rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def train_on(self, ids_BT: Tensor, weight_BT: Tensor) -> tuple[float, float]:
        """Take one step; return its loss and the weighted accuracy of the predicted tokens.

        Of several ranks, each computes some of the rows.
        """
        device = self.model.device
        total = weight_BT[:, 1:].sum().to(device)
        num_rows = CPU_ROWS if device == CPU else len(ids_BT)
        ids, weights = (
            torch.split(each_BT[ranks.rank() :: ranks.size()].to(device), num_rows) for each_BT in (ids_BT, weight_BT)
        )
        parts = [self._backward(*part, total) for part in zip(ids, weights, strict=True)]
        figures = sum_of_ranks(list(self.model.parameters()), [sum(each) for each in zip(*parts, strict=True)])
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rise = min(1.0, (self.step + 1) / WARM_UP_STEPS)
        done = sum(phase.steps for phase in self.phases[: self.number]) + self.step
        fall = 1 - done / sum(phase.steps for phase in self.phases)
        for optimiser, rate in zip(self.optimisers, (self.rate, ADAM_SHARE * self.rate), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * rise * fall
            with torch.autocast(device.type, torch.bfloat16, enabled=self.in_bfloat16):
                optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        return figures[0], figures[1]

    def _backward(self, ids_BT: Tensor, weight_BT: Tensor, total: Tensor) -> tuple[float, float]:
        """Add some rows' gradients to those that are there; return their shares of the loss and of the accuracy."""
        target_BT, weight_BT = ids_BT[:, 1:], weight_BT[:, 1:]
        has_loss_BT = weight_BT > 0
        with parametrize.cached(), torch.autocast(ids_BT.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            vectors_VD = self.model.model.embed_tokens.weight
            hidden_BTD = self.model.model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1]
            logits_MV, target_M = F.linear(hidden_BTD[has_loss_BT], vectors_VD).float(), target_BT[has_loss_BT]
        weight_M = weight_BT[has_loss_BT] / total
        loss = (F.cross_entropy(logits_MV, target_M, reduction="none") * weight_M).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        right = ((logits_MV.argmax(-1) == target_M) * weight_M).sum()
        return loss.item(), right.item()

    @property
    def _state(self) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer]]:
        for named, optimiser in zip(self.named, self.optimisers, strict=True):
            for name, parameter in named.items():
                yield name, parameter, optimiser

    def save(self, path: Path) -> None:
        """Write parameters, moments and the number of steps."""
        tensors = {"step": torch.tensor(self.step)}
        for name, parameter, optimiser in self._state:
            tensors[f"parameter/{name}"] = parameter.detach()
            for key, value in optimiser.state[parameter].items():
                tensors[f"{key}/{name}"] = torch.as_tensor(value).contiguous()
        with commit(path) as part:
            save_file(tensors, part)

    @torch.no_grad()
    def resume(self, path: Path) -> None:
        """Read what `save` wrote."""
        tensors = load_file(path)
        self.step = int(tensors.pop("step"))
        for name, parameter, optimiser in self._state:
            parameter.copy_(tensors[f"parameter/{name}"])
            keys = [key for key in tensors if key.endswith(f"/{name}") and not key.startswith("parameter/")]
            # AdamW keeps its count of steps on the CPU.
            optimiser.state[parameter] = {
                key.split("/")[0]: tensors[key].to(parameter.device) if tensors[key].ndim else tensors[key]
                for key in keys
            }


def train_phase(
    model: LlamaForCausalLM,
    encoder: Encoder,
    number: int,
    people: list[Solved],
    *,
    phases: Sequence[Phase],
    in_bfloat16: bool,
    batch_size: int = BATCH_SIZE,
    rate: float = MUON_RATE,
    workers: int = 0,
    run: int = 0,
) -> float:
    """Train a phase to its end, from its last checkpoint if there is one; return the seconds that it took.

    Args:
        run: How many trainings came before; each has problems, checkpoints and a log of its own.
    """
    training, num_steps = ThetaTraining(model, number, in_bfloat16, phases, rate), phases[number].steps
    serial = len(PHASES) * run + number
    checkpoint, log = BUILD_FOLDER / f"theta-{serial}.safetensors", BUILD_FOLDER / f"theta-{serial}.jsonl"
    if ranks.first(checkpoint.exists):
        training.resume(checkpoint)
    make_pool = PoolMaker(encoder, SEEDS_OF_PHASE * serial, phases[number], people, replaceable_stems(), batch_size)
    batches = make_batches(make_pool, range(training.step, num_steps), workers=workers)
    lines = ranks.first(lambda: read_lines(log) if log.exists() else [])
    lines = [line for line in lines if line["step"] <= training.step]
    seconds_before, started = (lines[-1]["seconds"] if lines else 0.0), time.perf_counter()
    progress = TerminalProgress() if ranks.rank() == 0 else Progress()
    name = f"θ, phase {number + 1}"
    with progress.task(name, total=num_steps, unit="steps", done=training.step) as advance:
        for batch in batches:
            loss, accuracy = training.train_on(*batch)
            advance(1, loss=f"{loss:.4f}", right=f"{accuracy:.4f}")
            if training.step % CHECKPOINT_STEPS == 0 or training.step == num_steps:
                seconds = seconds_before + time.perf_counter() - started
                lines.append({"step": training.step, "loss": loss, "right": accuracy, "seconds": seconds})
                # A log may have more steps than its checkpoint, but not fewer.
                ranks.first(partial(write_lines, log, lines))
                ranks.first(partial(training.save, checkpoint))
    return float(lines[-1]["seconds"])


def main(
    people: Annotated[
        list[Path], typer.Option(help="Problems that people wrote: GSM8K's training file; give any number of files.")
    ],
    bfloat16: Annotated[
        bool, typer.Option(help="Compute matrix products in bfloat16, for processors that are faster at it.")
    ] = False,
    device: Annotated[
        str, typer.Option(help="Where to compute: cuda, cpu, or auto for the GPU if there is one.")
    ] = AUTO,
    workers: Annotated[
        int, typer.Option(help="Processes that make problems, which keep up with a GPU; 0 for none beside training.")
    ] = 0,
    compile: Annotated[
        bool, typer.Option(help="Compile the layers, which takes a minute and a C++ compiler; then they are faster.")
    ] = False,
    batch_size: Annotated[int, typer.Option(help="Examples of a step.")] = BATCH_SIZE,
    rate: Annotated[float, typer.Option(help="Highest learning rate of the layers' matrices.")] = MUON_RATE,
    start: Annotated[Path | None, typer.Option(help="A trained model to go on from; without it, a new one.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of a training that goes on from a model.")] = FURTHER_STEPS,
    people_share: Annotated[
        float, typer.Option(help="Share of people's problems in a training that goes on from a model.")
    ] = PEOPLE_SHARE,
) -> None:
    """Train tokenizer and model, and save them into the package, the model in bfloat16."""
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    problems = read_people(*people)
    earlier = json.loads((start / RECORD_FILE).read_text()) if start else []
    tokenizer_folder = BUILD_FOLDER / f"tokenizer-{len(earlier)}"

    def prepare() -> None:
        if not (tokenizer_folder / "tokenizer.json").exists():
            make_tokenizer(problems).save_pretrained(tokenizer_folder)

    ranks.first(prepare)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    model, encoder = make_model(tokenizer, device=resolve_device(device)), Encoder(tokenizer, Template())
    if start:
        load_weights(model, tokenizer, start)
    if compile:
        compile_layers(model)
    phases = (Phase(steps, MOST_STEPS, FURTHER_LONG_PROBABILITY, people_share),) if start else PHASES
    seconds = sum(
        train_phase(
            model,
            encoder,
            number,
            problems,
            phases=phases,
            in_bfloat16=bfloat16,
            batch_size=batch_size,
            rate=rate,
            workers=workers,
            run=len(earlier),
        )
        for number in range(len(phases))
    )
    ranks.leave()
    if ranks.rank() > 0:
        return
    tokenizer.save_pretrained(EMBEDDED_FOLDER)
    with_plain_vectors(model).bfloat16().save_pretrained(EMBEDDED_FOLDER)
    set_usual_mode(EMBEDDED_FOLDER / "model.safetensors")
    run = {"steps": sum(phase.steps for phase in phases), "seconds": seconds, "what": "as the script is now"}
    write_json(EMBEDDED_FOLDER / RECORD_FILE, [*earlier, run])


if __name__ == "__main__":
    typer.run(main)
