"""Train θ-everyday, the base model for everyday problems: its tokenizer and its weights.

    python examples/train_theta.py --people gsm8k.jsonl --bfloat16
    python examples/train_theta.py --people gsm8k.jsonl --bfloat16 --start src/ccot_cli/embedded/everyday

The first command begins with fresh weights; the second goes on from a trained model and keeps its tokenizer. After an
interruption, the same command resumes. The model goes to src/ccot_cli/embedded/everyday/, checkpoints and logs to
build/everyday/. When you go on from a model, first move the checkpoints of its training away.

Dimensions: B batch, T tokens of query and solution, M of them with a loss, D width, V vocabulary.
"""

import hashlib
import json
import random
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from theta_loop import Training, checkpoint_of, run_phase
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ccot_cli.data.everyday import generate
from ccot_cli.data.families import LARGEST, LARGEST_FACTOR, EverydayProblem, Step
from ccot_cli.data.grammar import lexicon
from ccot_cli.data.problems import Problem, split_solution
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.data.tokenizer import train_tokenizer
from ccot_cli.files import write_json
from ccot_cli.models.base.pretrained import PACKAGED_FOLDERS
from ccot_cli.models.training.optimiser import Muon
from ccot_cli.names import EVERYDAY
from ccot_cli.tensors.masks import pad_right

BUILD_FOLDER = Path("build/everyday")
TOKENIZER_FOLDER = BUILD_FOLDER / "tokenizer"
THETA_FOLDER = PACKAGED_FOLDERS[EVERYDAY]
SEED = 0
BATCH_SIZE = 32
POOL_BATCHES = 32
MUON_RATE, ADAM_RATE = 3e-3, 2e-3
"""Highest learning rates. They fall linearly to zero over all phases."""
WARM_UP_STEPS = 100
QUESTION_WEIGHT = 0.3
"""Weight of a question's token in the loss. Predicting questions teaches their language: θ answers more of them."""
NUM_TOKENIZER_PROBLEMS = 20_000
NUM_WORDS = 5_000
PEOPLE_PROBABILITY = 0.06
"""How often a training problem is one that people wrote."""
NEW_WORDS_PROBABILITY, REPLACED = 0.15, 0.7
"""How often a generated problem has words that do not exist, and how many of its nouns and names then are such."""
SUMS_PROBABILITY, NUM_SUMS = 0.1, 10
"""How often a training example is sums alone, and how many it has."""
ANNOTATED = re.compile(r"<<(\d+)([-+*/])(\d+)=(\d+)>>")
"""A step of GSM8K's chains."""

Solved = tuple[str, str]
"""Question and solution, as in GSM8K."""
Example = tuple[list[int], list[float]]
"""Ids, and the weight of each one's loss."""


@dataclass(frozen=True)
class Phase:
    """A phase of θ's training, with its own problems and optimisers."""

    steps: int
    most_steps: int
    """Most reasoning steps of a problem."""


PHASES = (Phase(steps=11_000, most_steps=5), Phase(steps=4_200, most_steps=10))
"""Long problems last: they take longer, and consist of what short ones teach."""


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Make θ with fresh weights."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    # On a CPU, plain attention's backward pass is faster than that of PyTorch's fused one, for texts as short as these.
    model.set_attn_implementation("eager")
    # The output layer has the same vectors; ThetaTraining takes them from here.
    model.lm_head = nn.Identity()
    parametrize.register_parametrization(
        model.model.embed_tokens, "weight", DigitSums(tokenizer, config.hidden_size), unsafe=True
    )
    return model


@torch.no_grad()
def load_weights(model: LlamaForCausalLM, folder: Path) -> None:
    """Give θ the weights of a trained one, which has the same tokenizer."""
    state = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).model.state_dict()
    vectors = model.model.embed_tokens.parametrizations.weight
    vectors[0].digits.zero_()
    vectors.original.copy_(state.pop("embed_tokens.weight"))
    model.model.load_state_dict(state, strict=False)


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


def read_people(path: Path) -> list[Solved]:
    """Read the problems of a file in GSM8K's format whose every step is one operation on whole numbers to 999.

    The chain becomes that of the generator, as the wording of people is too varied for so small a model.
    """
    chosen = []
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        *chain, answer = row["answer"].split("\n")
        steps = [found[0] for line in chain if len(found := ANNOTATED.findall(line)) == line.count("<<") == 1]
        numbers = [int(each) for left, _, right, result in steps for each in (left, right, result)]
        answer = answer.removeprefix("####").strip()
        if len(steps) == len(chain) > 0 and answer.isdigit() and max(*numbers, int(answer)) <= LARGEST:
            lines = [write_step(*step) for step in steps]
            chosen.append((" ".join(row["question"].split()), "\n".join([*lines, f"#### {answer}"])))
    return chosen


def is_held_out(solved: Solved) -> bool:
    """Tell whether training never sees a problem that people wrote; one in ten is."""
    return hashlib.sha256(solved[0].encode()).digest()[0] < 26


def replaceable_stems() -> list[str]:
    """Return the lexicon's nouns and first names in lower case, without a plural's s."""
    nouns = {pair[1].split()[-1] for pairs in lexicon().objects.values() for pair in pairs}
    names = {name for each in lexicon().names.values() for name in each}
    return sorted({word.lower().removesuffix("s") for word in nouns | names if len(word) >= 4 and word.isalpha()})


def with_new_words(rng: random.Random, stems: list[str], problem: Solved) -> Solved:
    """Put words that do not exist, made of two that do, in the place of a problem's nouns and names.

    So θ learns what to do with words that it does not know.
    """
    question, solution = problem
    of_question = dict.fromkeys(each.lower().removesuffix("s") for each in re.findall(r"[A-Za-z]{4,}", question))
    for stem in of_question:
        index = bisect_left(stems, stem)
        if stems[index : index + 1] != [stem] or rng.random() > REPLACED:
            continue
        new = rng.choice(stems)[: rng.randint(2, 4)] + rng.choice(stems)[-rng.randint(2, 4) :]

        def replace(found: re.Match[str], new: str = new) -> str:
            return (new.capitalize() if found[1][0].isupper() else new) + found[2]

        pattern = re.compile(rf"\b({stem})(s?)\b", re.IGNORECASE)
        question, solution = pattern.sub(replace, question), pattern.sub(replace, solution)
    return question, solution


def sums(rng: random.Random) -> str:
    """Write sums to practise on; the generated problems alone have too few."""
    written: list[str] = []
    while len(written) < NUM_SUMS:
        sign = rng.choice("++--*/")
        most = rng.choice((20, 100, 100, LARGEST))
        left, right = rng.randint(1, most), rng.randint(1, rng.choice((LARGEST_FACTOR, most)))
        if sign == "/":
            left *= right
        if rng.random() < 0.5 and sign in "+*":
            left, right = right, left
        result = Step("p", "a", sign, "b").compute({"a": left, "b": right}) if left <= LARGEST else None
        if result is not None:
            written.append(write_step(left, sign, right, result))
    return " ".join(written)


def write_step(left: int | str, sign: str, right: int | str, result: int | str) -> str:
    """Write a line of a chain as the generator does."""
    return Step("p", "a", sign, "b").write({"a": int(left), "b": int(right), "p": int(result)})


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


class Batches:
    """An endless stream of fresh training problems, in batches of similar length.

    Args:
        number: The phase's.
        people: Problems that people wrote, which are mixed in.
        first_step: Number of batches to skip, of a training that resumes.
    """

    def __init__(self, encoder: Encoder, number: int, people: list[Solved], *, first_step: int) -> None:
        self.encoder = encoder
        self.number = number
        self.people = people
        self._stems = replaceable_stems()
        # Skip whole pools, then the batches of the next pool that were used.
        self._step = first_step - first_step % POOL_BATCHES
        self._pool: list[list[Example]] = []
        for _ in range(first_step % POOL_BATCHES):
            self.next()

    def _fill(self) -> None:
        seed = self.number * 1_000_000 + self._step
        rng = random.Random(seed)
        generated = generate("train", seed=seed, steps=(1, PHASES[self.number].most_steps))
        encoded = sorted(
            (self._draw(rng, generated) for _ in range(BATCH_SIZE * POOL_BATCHES)), key=lambda example: len(example[0])
        )
        self._pool = [encoded[start : start + BATCH_SIZE] for start in range(0, len(encoded), BATCH_SIZE)]
        rng.shuffle(self._pool)

    def _draw(self, rng: random.Random, generated: Iterator[EverydayProblem]) -> Example:
        if rng.random() < SUMS_PROBABILITY:
            return self._practice(rng)
        if self.people and rng.random() < PEOPLE_PROBABILITY:
            return self._encode(rng.choice(self.people))
        problem = next(generated)
        solved = problem.question, problem.solution
        return self._encode(
            with_new_words(rng, self._stems, solved) if rng.random() < NEW_WORDS_PROBABILITY else solved
        )

    def _encode(self, solved: Solved) -> Example:
        question, solution = solved
        chain, answer = split_solution(solution)
        encoded = self.encoder.problem(Problem("", question, chain, answer))
        solution_ids = [*encoded.chain, *self.encoder.answer_marker, *encoded.answer]
        weights = [*[QUESTION_WEIGHT] * len(encoded.query), *[1.0] * len(solution_ids)]
        return [*encoded.query, *solution_ids], weights

    def _practice(self, rng: random.Random) -> Example:
        ids = self.encoder.query(sums(rng))
        equals = self.encoder.tokenizer.convert_tokens_to_ids("Ġ=")
        return ids, [0.0, *(float(token == equals) for token in ids[:-1])]

    def next(self) -> tuple[Tensor, Tensor]:
        """Return a batch's ids and the weights of their losses: B, T each."""
        if not self._pool:
            self._fill()
        batch = self._pool.pop()
        self._step += 1
        ids_BT, _ = pad_right([ids for ids, _ in batch], fill=self.encoder.tokenizer.pad_token_id)
        weight_BT = nn.utils.rnn.pad_sequence([torch.tensor(weights) for _, weights in batch], batch_first=True)
        return ids_BT, weight_BT


@dataclass
class ThetaTraining(Training):
    """The training of one phase: Muon for the matrices of the layers, AdamW for the other parameters."""

    model: LlamaForCausalLM
    number: int
    """The phase's, from 0."""
    in_bfloat16: bool
    """Whether matrix products are computed in bfloat16, which is faster on processors that can."""
    step: int = 0
    """Steps that have been taken."""

    def __post_init__(self) -> None:
        matrices = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        }
        others = {name: p for name, p in self.model.named_parameters() if name not in matrices}
        self.named = [matrices, others]
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(list(matrices.values()), lr=MUON_RATE),
            torch.optim.AdamW(list(others.values()), lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def train_on(self, ids_BT: Tensor, weight_BT: Tensor) -> tuple[float, float]:
        """Take one step; return its loss and the weighted accuracy of the predicted tokens."""
        target_BT, weight_BT = ids_BT[:, 1:], weight_BT[:, 1:]
        has_loss_BT = weight_BT > 0
        with parametrize.cached(), torch.autocast("cpu", torch.bfloat16, enabled=self.in_bfloat16):
            vectors_VD = self.model.model.embed_tokens.weight
            hidden_BTD = self.model.model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1]
            logits_MV, target_M = F.linear(hidden_BTD[has_loss_BT], vectors_VD).float(), target_BT[has_loss_BT]
        weight_M = weight_BT[has_loss_BT] / weight_BT.sum()
        loss = (F.cross_entropy(logits_MV, target_M, reduction="none") * weight_M).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rise = min(1.0, (self.step + 1) / WARM_UP_STEPS)
        done = sum(phase.steps for phase in PHASES[: self.number]) + self.step
        fall = 1 - done / sum(phase.steps for phase in PHASES)
        for optimiser, rate in zip(self.optimisers, (MUON_RATE, ADAM_RATE), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * rise * fall
            with torch.autocast("cpu", torch.bfloat16, enabled=self.in_bfloat16):
                optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item(), ((logits_MV.argmax(-1) == target_M) * weight_M).sum().item()


def train_phase(
    model: LlamaForCausalLM, encoder: Encoder, number: int, people: list[Solved], *, in_bfloat16: bool
) -> float:
    """Train a phase to its end, from its last checkpoint if there is one; return the seconds that it took."""
    training = ThetaTraining(model, number, in_bfloat16)
    if (checkpoint := checkpoint_of(BUILD_FOLDER, number)).exists():
        training.resume(checkpoint)
    batches = Batches(encoder, number, people, first_step=training.step)
    return run_phase(training, batches, num_steps=PHASES[number].steps, folder=BUILD_FOLDER, number=number)


def main(
    people: Annotated[Path, typer.Option(help="Problems that people wrote: the training file of GSM8K.")],
    bfloat16: Annotated[
        bool, typer.Option(help="Compute matrix products in bfloat16, for processors that are faster at it.")
    ] = False,
    start: Annotated[
        Path | None, typer.Option(help="A trained model to go on from, with its tokenizer; without it, a new one.")
    ] = None,
) -> None:
    """Train tokenizer and model, and save them into the package, the model in bfloat16."""
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    problems = [solved for solved in read_people(people) if not is_held_out(solved)]
    if not (TOKENIZER_FOLDER / "tokenizer.json").exists():
        made = PreTrainedTokenizerFast.from_pretrained(start) if start else make_tokenizer(problems)
        made.save_pretrained(TOKENIZER_FOLDER)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TOKENIZER_FOLDER)
    model, encoder = make_model(tokenizer), Encoder(tokenizer, Template())
    if start:
        load_weights(model, start)
    seconds = sum(train_phase(model, encoder, number, problems, in_bfloat16=bfloat16) for number in range(len(PHASES)))
    tokenizer.save_pretrained(THETA_FOLDER)
    with_plain_vectors(model).bfloat16().save_pretrained(THETA_FOLDER)
    write_json(THETA_FOLDER / "training.json", {"steps": sum(phase.steps for phase in PHASES), "seconds": seconds})


if __name__ == "__main__":
    typer.run(main)
