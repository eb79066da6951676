"""Train the embedded default from scratch: its tokenizer, θ-tiny, and the methods that are shipped with it.

    python examples/train_embedded.py                     # everything, hours on two cores
    python examples/train_embedded.py --only methods      # the methods and the card again, with the θ that is shipped
    python examples/train_embedded.py --only domain       # the record of the training questions, in seconds

After an interruption, the same command resumes. Results go to src/ccot_cli/embedded/, checkpoints and logs to
build/embedded/.

Dimensions: B batch, T tokens of query and solution, M of them with a loss, D width, V vocabulary.
"""

import json
import platform
import random
import shutil
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
import typer
from safetensors.torch import load_file, save_file
from theta_loop import Training, checkpoint_of, run_phase
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ccot_cli.cli.console import TerminalProgress
from ccot_cli.config import Settings
from ccot_cli.data.domain import Domain
from ccot_cli.data.problems import Problem, load_training, split_solution
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.data.tokenizer import train_tokenizer
from ccot_cli.data.word_problems import MEDIUM, NOUNS, PEOPLE, WIDE, Limits, generate
from ccot_cli.files import write_json
from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER
from ccot_cli.names import TRAIN_BASELINE, TRAIN_PHI, TRAIN_PSI, BaselineName, ratio_name
from ccot_cli.overrides import override
from ccot_cli.stages import evaluate, precompute, score, train_baseline, train_phi, train_psi
from ccot_cli.stages.ask import DOMAIN_FILE
from ccot_cli.stages.methods import METHODS_FOLDER, baseline_key
from ccot_cli.tensors.masks import pad_right
from ccot_cli.workspace.workspace import Workspace

BUILD_FOLDER = Path("build/embedded")
THETA_RECORD = BUILD_FOLDER / "theta.json"
SEED = 0
BATCH_SIZE = 32
POOL_BATCHES = 32
MUON_RATE, ADAM_RATE = 5e-3, 3e-3
WARM_UP_STEPS = 100
NUM_TOKENIZER_PROBLEMS = 20_000


@dataclass(frozen=True)
class Phase:
    """A phase of θ's training, with its own data and optimisers."""

    steps: int
    seed: int
    """Of the problem generator."""
    limits: Limits
    """Ranges of the problems' numbers."""
    decays: bool
    """Whether the learning rate falls linearly to zero over the phase."""
    peak: float = 1.0
    """Its peak, in units of `MUON_RATE` and `ADAM_RATE`."""


PHASES = (
    Phase(steps=1600, seed=0, limits=WIDE, decays=False),
    Phase(steps=900, seed=1, limits=MEDIUM, decays=True),
    Phase(steps=400, seed=2, limits=Limits(), decays=True, peak=0.5),
)
"""Wide ranges of numbers first, then smaller ones, then those of the shipped problems."""

RATIO = Decimal("0.1")
"""The ratio at which φ is trained from scratch; at the others it starts from that φ."""
OTHER_RATIOS: dict[Decimal, dict[str, Any]] = {
    Decimal("0.05"): {
        "train_phi.epochs": 13,
        "train_psi.epochs": 10,
        "train_psi.ends": "late",
        "train_psi.end_threshold": 2,
    },
    Decimal("0.2"): {"train_phi.epochs": 3, "train_psi.epochs": 3},
}
"""Settings of the other ratios. At 0.05, a problem may have more steps than tokens, so ψ has to compute a step itself,
and END is often wrong."""
SHIPPED_BASELINES: tuple[BaselineName, ...] = ("direct", "pause")


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Make θ-tiny with fresh weights."""
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
    return LlamaForCausalLM(config)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer on problems of the training split."""
    problems = islice(generate("train", seed=SEED, limits=WIDE), NUM_TOKENIZER_PROBLEMS)
    return train_tokenizer(text for problem in problems for text in (problem.question, problem.solution))


class Batches:
    """An endless stream of fresh training problems, in batches of similar length.

    Args:
        first_step: Number of batches to skip, of a training that resumes.
    """

    def __init__(self, encoder: Encoder, phase: Phase, *, first_step: int) -> None:
        self.encoder = encoder
        self._problems = generate("train", seed=phase.seed, limits=phase.limits)
        # Skip whole pools, then the batches of the next pool that were used.
        self._step = first_step - first_step % POOL_BATCHES
        for _ in islice(self._problems, self._step * BATCH_SIZE):
            pass
        self._pool: list[list[tuple[list[int], list[int]]]] = []
        for _ in range(first_step % POOL_BATCHES):
            self.next()

    def _fill(self) -> None:
        encoded = sorted(
            (self._ids(problem) for problem in islice(self._problems, BATCH_SIZE * POOL_BATCHES)),
            key=lambda ids: len(ids[0]) + len(ids[1]),
        )
        self._pool = [encoded[start : start + BATCH_SIZE] for start in range(0, len(encoded), BATCH_SIZE)]
        random.Random(self._step).shuffle(self._pool)

    def _ids(self, problem: Any) -> tuple[list[int], list[int]]:
        """Encode a problem as query and solution."""
        chain, answer = split_solution(problem.solution)
        encoded = self.encoder.problem(Problem("", problem.question, chain, answer))
        return encoded.query, [*encoded.chain, *self.encoder.answer_marker, *encoded.answer]

    def next(self) -> tuple[Tensor, Tensor]:
        """Return a batch's ids, and True at those that have a loss (chain, marker and answer): B, T each."""
        if not self._pool:
            self._fill()
        batch = self._pool.pop()
        self._step += 1
        ids_BT, mask_BT = pad_right(
            [[*query, *solution] for query, solution in batch], fill=self.encoder.tokenizer.pad_token_id
        )
        starts_B = torch.tensor([len(query) for query, _ in batch])
        return ids_BT, mask_BT & (torch.arange(ids_BT.shape[1])[None] >= starts_B[:, None])


@dataclass
class ThetaTraining(Training):
    """The training of one phase: Muon for the matrices of the layers, AdamW for the other parameters."""

    model: LlamaForCausalLM
    phase: Phase
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
            torch.optim.Muon(list(matrices.values()), lr=MUON_RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(list(others.values()), lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def train_on(self, ids_BT: Tensor, has_loss_BT: Tensor) -> tuple[float, float]:
        """Take one step; return its loss and the accuracy of the predicted tokens."""
        hidden_BTD = self.model.model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1]
        target_BT, has_loss_BT = ids_BT[:, 1:], has_loss_BT[:, 1:]
        logits_MV, target_M = self.model.lm_head(hidden_BTD[has_loss_BT]), target_BT[has_loss_BT]
        loss = F.cross_entropy(logits_MV, target_M)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rise = min(1.0, (self.step + 1) / WARM_UP_STEPS)
        fall = 1 - self.step / self.phase.steps if self.phase.decays else 1.0
        for optimiser, rate in zip(self.optimisers, (MUON_RATE, ADAM_RATE), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = self.phase.peak * rate * (rise * fall)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item(), (logits_MV.argmax(-1) == target_M).float().mean().item()


def train_phase(model: LlamaForCausalLM, encoder: Encoder, number: int) -> float:
    """Train a phase to its end, from its last checkpoint if there is one; return the seconds that it took."""
    phase = PHASES[number]
    training = ThetaTraining(model, phase)
    if (checkpoint := checkpoint_of(BUILD_FOLDER, number)).exists():
        training.resume(checkpoint)
    batches = Batches(encoder, phase, first_step=training.step)
    return run_phase(training, batches, num_steps=phase.steps, folder=BUILD_FOLDER, number=number)


def train_theta() -> None:
    """Train tokenizer and model from scratch, and save them into the package, the model in bfloat16."""
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    encoder = Encoder(tokenizer, Template())
    seconds = sum(train_phase(model, encoder, number) for number in range(len(PHASES)))
    EMBEDDED_FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(EMBEDDED_FOLDER)
    model.bfloat16().save_pretrained(EMBEDDED_FOLDER)
    write_json(THETA_RECORD, {"steps": sum(phase.steps for phase in PHASES), "seconds": seconds})


def train_methods() -> None:
    """Run the stages of `ccot` on the embedded model, and copy their results into the package."""
    folder = BUILD_FOLDER / "workspace"
    workspace = Workspace.open(folder) if (folder / "ccot.yaml").exists() else Workspace.create(folder, "embedded")
    settings = override(workspace.settings, SHIPPED_SETTINGS)
    progress = TerminalProgress()
    precompute.run(workspace, settings, overrides=tuple(SHIPPED_SETTINGS), progress=progress)
    for ratio in (RATIO, *OTHER_RATIOS):
        score.run(workspace, settings, ratio, progress=progress)
        of_ratio = override(settings, {**CONTINUED_SETTINGS, **OTHER_RATIOS[ratio]} if ratio in OTHER_RATIOS else {})
        train_phi.run(workspace, of_ratio, ratio, progress=progress)
        result = train_psi.run(workspace, of_ratio, ratio, progress=progress)
        progress.say(f"r = {ratio}: validation accuracy {result.validation_accuracy:.3f}")
        ship(workspace.folder(TRAIN_PSI, ratio_name(ratio)), METHODS_FOLDER / ratio_name(ratio))
    for name in SHIPPED_BASELINES:
        baseline = train_baseline.run(workspace, settings, name, RATIO, progress=progress)
        progress.say(f"{name}: validation accuracy {baseline.validation_accuracy:.3f}")
        key = baseline_key(name, RATIO)
        ship(workspace.folder(TRAIN_BASELINE, key), METHODS_FOLDER / key)


SHIPPED_SETTINGS: dict[str, Any] = {
    "data.limit": 30_000,
    "data.validation_limit": 500,
    "train_phi.lora_rank": 128,
    "train_phi.lora_alpha": 128,
    "train_phi.taught_epochs": 4,
    "train_phi.epochs": 10,
    "train_psi.epochs": 1,
}
"""What differs from the settings of `ccot init`, with which training takes minutes."""

CONTINUED_SETTINGS: dict[str, Any] = {
    "train_phi.start": ratio_name(RATIO),
    "train_phi.taught_epochs": 0,
    "train_phi.learning_rate": 0.005,
}
"""What differs further if φ starts from another ratio's."""


def make_domain() -> Domain:
    """Record the questions that φ and ψ learn from, so that `ccot ask` notices others."""
    training = load_training(override(Settings(), SHIPPED_SETTINGS).data)
    questions = (problem.question for problem in training.train)
    return Domain.learn(questions, people=PEOPLE, objects=[plural for _, plural in NOUNS])


def ship(source: Path, target: Path) -> None:
    """Copy the files that answering needs, with adapters in bfloat16.

    Args:
        source: An artifact's folder.
        target: Where to copy to; what is there is deleted.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copy(source / "method.json", target)
    for path in source.rglob("*.safetensors"):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        tensors, config = load_file(path), path.parent / "adapter_config.json"
        is_adapter = config.exists()
        save_file({name: each.bfloat16() if is_adapter else each for name, each in tensors.items()}, copy)
        if is_adapter:
            # The base model's path on this machine is of no use elsewhere.
            write_json(copy.parent / config.name, {**json.loads(config.read_text()), "base_model_name_or_path": None})


def write_card(training: dict[str, Any], num_test: int) -> None:
    """Measure on the test split, and write the figures and the model card.

    Args:
        training: Steps and seconds of θ's training.
        num_test: Number of test problems.
    """
    workspace = Workspace.open(BUILD_FOLDER / "workspace")
    settings = override(workspace.settings, {"eval.limit": num_test})
    phi_steps, psi_steps = (
        {
            ratio: workspace.require(stage, ratio_name(ratio)).manifest.summary["num_steps"]
            for ratio in (RATIO, *OTHER_RATIOS)
        }
        for stage in (TRAIN_PHI, TRAIN_PSI)
    )
    result = evaluate.run(None, settings, progress=TerminalProgress())
    write_json(EMBEDDED_FOLDER / "metrics.json", {"training": training, **result.to_json()})
    rows = [
        f"| {row.method} | {row.ratio} | {row.accuracy:.3f} ({row.low:.3f} – {row.high:.3f}) |"
        f" {row.contemplation_tokens_mean:.1f} |"
        for row in result.rows
    ]
    steps = list(result.rows[0].by_steps)
    step_rows = [
        f"| {row.method} | {row.ratio} | " + " | ".join(f"{row.by_steps[step].accuracy:.2f}" for step in steps) + " |"
        for row in result.rows
    ]
    card = CARD.format(
        rows="\n".join(rows),
        by_steps=" | ".join(steps),
        rule="---|" * len(steps),
        step_rows="\n".join(step_rows),
        n=num_test,
        others=", ".join(f"{phi_steps[ratio]:,} and {psi_steps[ratio]:,} at r = {ratio:f}" for ratio in OTHER_RATIOS),
        machine=platform.machine(),
        phi_steps=phi_steps[RATIO],
        psi_steps=psi_steps[RATIO],
        **training,
    )
    (EMBEDDED_FOLDER / "README.md").write_text(card, encoding="utf-8")


CARD = """# θ-tiny, the embedded default

A Llama of 8 layers, width 192 and 4.1 M parameters, and adapters for it, which the stages of `ccot` trained. The model
was trained from scratch on word problems that `ccot_cli.data.word_problems` generates. It knows nothing beyond these
problems.

- Command: `python examples/train_embedded.py`
- Data: the generator's train split, 2 to 8 steps, quantities from 1 to 99. θ sees each problem of a phase once.
- θ: {steps:,} steps of 32 problems in three phases, from wide ranges of numbers to those of the shipped problems
  (`PHASES` in the script), with Muon and AdamW, seed 0. It took {seconds:,.0f} seconds on two {machine} cores that had
  other work too.
- φ, ψ and END at r = 0.1: 30,000 training problems, with the settings of `ccot init` except those that the script names
  (`SHIPPED_SETTINGS`), seed 0. φ took {phi_steps:,} steps and ψ {psi_steps:,}, of 64 problems each.
- Other ratios: φ starts from the one of r = 0.1 (`CONTINUED_SETTINGS`), and each ratio has its own settings
  (`OTHER_RATIOS`). Steps of φ and of ψ: {others}.
- `direct` (r = 0) and `pause`: trained on the same problems for as many steps as ψ at r = 0.1.
- `domain.json`: what the questions of these 30,000 problems hold. `ccot ask` warns of other questions.
- Stored in bfloat16, computed in float32 on a CPU.

Exact match on {n:,} problems of the test split, which shares no problem with training, with 95 % Wilson intervals; and
the mean number of contemplation tokens (at r = 1, of the chain's tokens):

| method | r | exact match | tokens |
|---|---|---|---|
{rows}

Exact match by number of steps:

| method | r | {by_steps} |
|---|---|{rule}
{step_rows}
"""


def main(
    only: Annotated[
        Literal["all", "theta", "methods", "domain", "card"],
        typer.Option(help="Which part to make; the methods come with a new record and card."),
    ] = "all",
    test: Annotated[int, typer.Option(help="Number of test problems for the card.")] = 1000,
) -> None:
    """Train the embedded default, and write its card."""
    if only in ("all", "theta"):
        train_theta()
    if only in ("all", "methods"):
        train_methods()
    if only in ("all", "methods", "domain"):
        make_domain().save(DOMAIN_FILE)
    if only in ("all", "methods", "card"):
        # If θ was not trained here, its record is the one that is shipped with it.
        path = THETA_RECORD if THETA_RECORD.exists() else EMBEDDED_FOLDER / "metrics.json"
        record = json.loads(path.read_text())
        write_card(record.get("training", record), test)


if __name__ == "__main__":
    typer.run(main)
