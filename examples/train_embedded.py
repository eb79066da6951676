"""Train the methods of the embedded model, θ of `train_theta.py`, and measure them.

    P="--people gsm8k.jsonl --people examples/written_problems.jsonl"
    python examples/train_embedded.py $P --test-people people.jsonl    # everything, on a GPU
    python examples/train_embedded.py ... --start FOLDER   # φ, ψ and direct go on from other methods'
    python examples/train_embedded.py --only domain        # the record of the training questions
    python examples/train_embedded.py --only calibration   # of confidence, for what is shipped
    python examples/train_embedded.py --only card --test-people people.jsonl

`--people` are files in GSM8K's format to learn from, `--test-people` is one of `research/people.py`. After an
interruption, the same command resumes. Results go to src/ccot_cli/embedded/, the workspace with its logs to
build/embedded/. A stage that is finished there is not repeated, so any of them can be run in another way first:

    torchrun --nproc-per-node 2 -m ccot_cli train-phi -w build/embedded/methods --ratio 0.1
"""

import json
import random
import shutil
from dataclasses import asdict
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from safetensors.torch import load_file, save_file
from training_texts import read_people, renumbered, replaceable_stems, varied, write_solved

from ccot_cli.cli.console import TerminalProgress
from ccot_cli.cli.plots import draw_frontier
from ccot_cli.cli.tables import render, training_table
from ccot_cli.config import Settings
from ccot_cli.data.domain import Domain
from ccot_cli.data.problems import Problem, load_training, split_solution
from ccot_cli.data.stories import MOST_STEPS
from ccot_cli.data.word_problems import generate
from ccot_cli.files import commit, write_json
from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.models.base.history import read_history, write_history
from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER
from ccot_cli.names import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    EMBEDDED_MIN_CONFIDENCE,
    METRICS_FILE,
    TRAIN_BASELINE,
    TRAIN_PSI,
    ratio_name,
)
from ccot_cli.overrides import override
from ccot_cli.stages import evaluate, precompute, score, train_baseline, train_phi, train_psi
from ccot_cli.stages.ask import DOMAIN_FILE
from ccot_cli.stages.card import accuracies
from ccot_cli.stages.methods import METHODS_FOLDER, find_methods
from ccot_cli.stages.validation import calibrate, validate_method
from ccot_cli.workspace.workspace import Workspace

BUILD_FOLDER = Path("build/embedded")
PROBLEMS_FILE, NUM_PROBLEMS = BUILD_FOLDER / "problems.jsonl", 120_500
METRICS, FRONTIER = EMBEDDED_FOLDER / METRICS_FILE, Path("docs/frontier.svg")
"""What the tables and the picture of the pages show."""
PEOPLE = "people"
"""The set of test problems that people wrote."""
NUM_RETELLINGS = 2
"""How often each problem of people that can be told with other numbers is."""
WRITTEN, OTHER_TEXTS = Path("examples/written_problems.jsonl"), Path("examples/other_texts.jsonl")
NUM_DOMAIN_PROBLEMS, NUM_DOMAIN_WRITTEN = 23_000, 20_292
"""Problems in the record of training questions: of the generator, and the first of writers.

With 26,681 of writers, all there were, 12 fewer of their 3,051 held-out problems are called outside, but 52 instead of
53 of the 55 news reports with several numbers, and fewer texts of other kinds.
"""
LEAST_CONFIDENCE = 0.5
"""Below this calibrated confidence an answer is called a guess: it is more likely wrong than right."""
LONGER_STEPS, LONGER_PROBABILITY = (3, MOST_STEPS), 0.4
"""Reasoning steps of some of the generated problems that the methods learn from; the others have any number."""
GENERATOR_SEED = 40_000_000
"""θ learned from other problems."""
CALIBRATION = {"limit": 1, "validation_limit": 1000, "seed": 3}
"""What is changed of the generator's settings for the problems that confidence is calibrated on."""

RATIO = Decimal("0.1")
"""Of the method in the package."""
FIRST_RATIO = Decimal("0.3")
"""A φ that starts from nothing learns sooner with three tokens a step, and only then with one."""
DIRECT = "direct"
SETTINGS: dict[str, Any] = {
    "data.source": str(PROBLEMS_FILE.resolve()),
    "data.limit": 120_000,
    "data.validation_limit": 500,
    "model.dtype": "float32",
    "model.tf32": True,
    "precompute.max_disk": 16,
    "train_phi.lora_rank": 128,
    "train_phi.lora_alpha": 128,
    "train_phi.batch_size": 512,
    "train_phi.taught_epochs": 1,
    "train_phi.epochs": 9,
    "train_psi.limit": 60_000,
    "train_psi.epochs": 2,
    "train_psi.lora_rank": 64,
    "train_psi.lora_alpha": 64,
    "train_psi.ends": "late",
}
"""What differs from the settings of `ccot init`, with which training takes minutes on a CPU."""
GOING_ON: dict[str, Any] = {
    "train_phi.batch_size": 256,
    "train_phi.taught_epochs": 0,
    "train_phi.epochs": 8,
    "train_phi.learning_rate": 1.5e-3,
}
"""Settings of a φ that starts from another one: a higher rate undoes what that one has learned."""
PSI_RATE = 2e-3
"""Learning rate of a ψ that starts from another one."""
FOR_DIRECT: dict[str, Any] = {
    "train_psi.limit": None,
    "train_psi.epochs": 11,
    "train_psi.lora_rank": 192,
    "train_psi.lora_alpha": 192,
}
"""About as many examples, and as many weights that learn, as φ and ψ have together that start from others."""


def write_problems(people: list[Path], path: Path, seed: int) -> None:
    """Write the problems that the methods learn from: people's, these with other numbers, and generated ones.

    Args:
        people: Files in GSM8K's format.
        path: Where to write, unless it is there already.
        seed: Of the generated problems, and of what is drawn otherwise.
    """
    if path.exists():
        return
    rng, stems = random.Random(f"methods {seed}"), replaceable_stems()
    generated, longer = generate("train", seed=seed), generate("train", seed=seed, steps=LONGER_STEPS)
    told = read_people(*people)
    solutions = dict(told)
    for _ in range(NUM_RETELLINGS):
        solutions = dict(varied(rng, stems, renumbered(rng, each)) for each in told) | solutions
    while len(solutions) < NUM_PROBLEMS:
        problem = next(longer if rng.random() < LONGER_PROBABILITY else generated)
        question, solution = varied(rng, stems, (problem.question, problem.solution))
        solutions.setdefault(question, solution)
    rows = list(solutions.items())
    rng.shuffle(rows)
    write_solved(rows, path)


def train_methods(start: Path | None) -> None:
    """Run the stages of `ccot` on the embedded model, and copy their results into the package.

    Args:
        start: Folder of methods, as the package has them; φ, ψ and `direct` go on from theirs.
    """
    workspace, progress, key = open_workspace("methods", SETTINGS), TerminalProgress(), ratio_name(RATIO)
    settings = workspace.settings

    def for_psi(name: str, changes: dict[str, Any]) -> Settings:
        """Return the settings with which the ψ of a method learns."""
        if start is None:
            return override(settings, changes)
        start_psi = str((start / name / PSI).resolve())
        return override(settings, {**changes, "train_psi.start": start_psi, "train_psi.learning_rate": PSI_RATE})

    precompute.run(workspace, settings, progress=progress)
    if start is None:
        score.run(workspace, settings, FIRST_RATIO, progress=progress)
        train_phi.run(workspace, settings, FIRST_RATIO, progress=progress)
        first_phi = ratio_name(FIRST_RATIO)
    else:
        first_phi = str((start / key / PHI).resolve())
    score.run(workspace, settings, RATIO, progress=progress)
    changed = override(settings, {**GOING_ON, "train_phi.start": first_phi})
    train_phi.run(workspace, changed, RATIO, progress=progress)
    ccot = train_psi.run(workspace, for_psi(key, {}), RATIO, progress=progress)
    progress.say(f"r = {RATIO}: validation accuracy {ccot.validation_accuracy:.3f}")
    ship(workspace.folder(TRAIN_PSI, key), METHODS_FOLDER / key)
    direct = train_baseline.run(workspace, for_psi(DIRECT, FOR_DIRECT), DIRECT, RATIO, progress=progress)
    progress.say(f"direct: validation accuracy {direct.validation_accuracy:.3f}")
    ship(workspace.folder(TRAIN_BASELINE, DIRECT), METHODS_FOLDER / DIRECT)


def open_workspace(name: str, settings: dict[str, Any]) -> Workspace:
    """Open one of the workspaces, or begin it."""
    folder = BUILD_FOLDER / name
    is_there = (folder / "ccot.yaml").exists()
    return Workspace.open(folder) if is_there else Workspace.create(folder, "embedded", settings)


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
        if path.name == ADAPTER_FILE:
            ship_adapter(path.parent, target / path.parent.relative_to(source))
        else:
            shutil.copy(path, target)


def ship_adapter(source: Path, target: Path) -> None:
    """Copy an adapter, in bfloat16."""
    target.mkdir(exist_ok=True)
    tensors = load_file(source / ADAPTER_FILE)
    with commit(target / ADAPTER_FILE) as part:
        save_file({name: each.bfloat16() for name, each in tensors.items()}, part)
    if (history := read_history(source)) is not None:
        write_history(history, target)
    # The base model's path on this machine is of no use elsewhere.
    config = json.loads((source / ADAPTER_CONFIG_FILE).read_text())
    write_json(target / ADAPTER_CONFIG_FILE, {**config, "base_model_name_or_path": None})


def calibrate_methods() -> None:
    """Make the confidence of the shipped methods, and of θ's own chain, the probability that an answer is right.

    People word questions in ways of their own, so half of the problems are held-out ones that writers wrote.
    """
    settings, progress = Settings(), TerminalProgress()
    methods = find_methods(None, settings)
    data = settings.data.model_copy(update=CALIBRATION)
    problems = load_training(data).validation
    written = random.Random(data.seed).sample(read_people(WRITTEN, held_out=True), data.validation_limit)
    problems += [Problem("", question, *split_solution(solution)) for question, solution in written]
    problems.sort(key=lambda problem: len(problem.question))
    for ratio, folder in {
        **methods.folders,
        Decimal(0): methods.baselines[DIRECT],
        Decimal(1): METHODS_FOLDER,
    }.items():
        method = methods.load(ratio)
        method.calibration = None
        calibrate(validate_method(method, problems, settings.eval.batch_size, progress), folder, progress)


def make_domain() -> Domain:
    """Record the wording of problems and of other texts, so that `ccot ask` notices these."""
    generated = [problem.question for problem in islice(generate("train"), NUM_DOMAIN_PROBLEMS)]
    written = [question for question, _ in read_people(WRITTEN)[:NUM_DOMAIN_WRITTEN]]
    others = [json.loads(line)["text"] for line in OTHER_TEXTS.read_text(encoding="utf-8").splitlines()]
    return Domain.learn([*generated, *written], others, least_confidence=LEAST_CONFIDENCE)


class MeasuredOn(NamedTuple):
    """Test problems that the shipped methods are measured on."""

    title: str
    """What the card calls them."""
    command: str
    """That measures the same."""
    changes: dict[str, Any]
    """Of the settings."""


RESEARCH = Path("examples/research")
SETS = {
    "test": MeasuredOn(
        "{n:,} problems of the generator's test split, 1 to 10 steps; no problem or numbers of training are in it:",
        "ccot eval --limit 1000 --min-confidence 0.6 --plot docs/frontier.svg",
        {"eval.limit": 1000},
    ),
    "unseen": MeasuredOn(
        "{n:,} of its test problems in forms of text that training never saw (`unseen`):",
        "ccot eval --limit 1000 --set data.test_split=unseen --min-confidence 0.6",
        {"eval.limit": 1000, "data.test_split": "unseen"},
    ),
    "ten-steps": MeasuredOn(
        "{n:,} of its test problems of 10 steps:",
        "ccot eval --steps 10 10 --limit 300 --min-confidence 0.6",
        {"eval.limit": 300, "eval.steps": (10, 10)},
    ),
    PEOPLE: MeasuredOn(
        "{n:,} problems of one or two steps that people wrote, with whole numbers below 1,000 (see below):",
        "ccot eval --data people.jsonl --limit 2000 --min-confidence 0.6",
        {"eval.limit": None},
    ),
    "everyday": MeasuredOn(
        "{n:,} everyday questions (`examples/research/everyday.jsonl`):",
        "ccot eval --data examples/research/everyday.jsonl --min-confidence 0.6",
        {"data.test_source": str(RESEARCH / "everyday.jsonl")},
    ),
    "typed": MeasuredOn(
        "{n:,} questions by a language model that knew nothing of the project (`examples/research/typed.jsonl`):",
        "ccot eval --data examples/research/typed.jsonl --min-confidence 0.6",
        {"data.test_source": str(RESEARCH / "typed.jsonl")},
    ),
}
"""By the name that `docs/tables.py` knows them by."""


def measure(test_people: Path) -> dict[str, Any]:
    """Evaluate the shipped methods on each set of test problems; return the figures by set."""
    figures, progress = {}, TerminalProgress()
    for name, each in SETS.items():
        changes = each.changes | ({"data.test_source": str(test_people)} if name == PEOPLE else {})
        settings = override(Settings(), changes)
        result = evaluate.run(None, settings, min_confidence=EMBEDDED_MIN_CONFIDENCE, progress=progress)
        figures[name] = {"command": each.command, **asdict(result)}
    return figures


def write_card(test_people: Path) -> None:
    """Measure, and write the figures, the picture of them and the model card."""
    figures = measure(test_people)
    write_json(METRICS, figures)
    draw_frontier(figures["test"], FRONTIER)
    (EMBEDDED_FOLDER / "README.md").write_text(make_card(figures), encoding="utf-8")


def make_card(figures: dict[str, Any]) -> str:
    """Return the model card, with the figures of `measure`."""
    runs = json.loads((EMBEDDED_FOLDER / "training.json").read_text())
    tables = [
        f"{SETS[name].title.format(n=result['rows'][0]['n'])}\n\n{accuracies(result['rows'])}"
        for name, result in figures.items()
    ]
    return CARD.format(
        runs="\n".join(f"| {number} | {run['steps']:,} | {run['what']} |" for number, run in enumerate(runs, 1)),
        training=render(training_table(figures["test"]), "markdown").split("\n\n")[1],
        tables="\n\n".join(tables),
    )


CARD = """# The embedded model

A Llama of 8 layers, width 192 and 5.2 M parameters, and adapters for it, which the stages of `ccot` trained. It was
trained from scratch on word problems that `ccot_cli.data.word_problems` generates, on short problems of GSM8K, and on
problems that a language model wrote as people type them. It knows nothing beyond such problems; `ccot ask` warns of
other questions.

θ was trained by `python examples/train_theta.py --people gsm8k.jsonl` from fresh weights, and went on (`--start`), from
run 4 on with `--people examples/written_problems.jsonl` too:

| run | steps | what was different |
|---|---|---|
{runs}

It is a mean of weights (`examples/average_theta.py`): 0.4 of run 6, 0.2 of run 5, 0.2 of run 7 and 0.2 of run 3.

- θ's examples, as the script draws them now: 85 % are fresh problems of the generator's train split; in 15 % of these,
  nouns and names are words that do not exist, 15 % of the questions lack commas, capitals or a question mark, and 10 %
  have small numbers in words. 10 % are sums alone. 5 % (or as many as the table says) are problems of GSM8K's training
  file (MIT; Cobbe et al., 2021) whose steps are whole numbers below 1,000, and of writers; they have other numbers
  where these can be replaced, and one in ten of them is held out.
- The tokenizer makes digits of numbers in words from 21 on. It has done so only since this θ and the methods were
  trained: they read such numbers in words, and knew few of them.
- φ, ψ, `direct` and `decoder`, seed 0, were trained on the θ of run 3, and then went on on this θ
  (`python examples/train_embedded.py --people gsm8k.jsonl --people examples/written_problems.jsonl --generator-seed
  90000000 --start FOLDER`; on two cores, so with fewer steps and examples than the script has). Nearly half of their
  120,000 problems, of 1 to 10 steps, are GSM8K's and writers' and these with other numbers, the others are generated.
  φ took, in steps of 256, 1,960 on the first 50,000 of them and 3,752 on all at a rate of 0.007, and 3,752 more at
  0.005; ψ, with late ends and in steps of 64, 1,564 (the weights after 782 were kept) and 1,875 at 0.004, and 938 on
  the first 60,000 at 0.003 (those after 500 were kept); and `direct` twice 625 of 64 at 0.004 on the first 40,000.
  Then φ and ψ went on from the mean of their last two weights (0.6 of the later ones) on 60,000 problems drawn anew
  (`--generator-seed 91000000`; two thirds are people's and writers'): φ for 1,175 steps of 256 at 0.0015, on its own
  rollouts alone and without its layer above l, and ψ, with that layer, for 938 steps of 64 at 0.002. 0.6 of these and
  0.4 of what they had started from are their mean (`examples/average_methods.py`), with the END and the draft of the
  former. From it they went on, on 41,000 problems: the newest 938 of writers, of kinds that were missed, and these with
  other numbers (13,014 in all), and others of the last drawing. φ took 644 steps of 256 at 0.0015, ψ 641 of 64 at
  0.002. 0.4 of these and 0.6 of that mean is shipped, with the END and the draft of the latter.
- The training before: φ took, at r = 0.3, 901 steps of 512 on 40,000 problems, by a one-off script on a GPU that
  trained as `ccot train-phi` does, but for 193 seconds instead of a number of steps (a single step at a rate of 1e-7
  then made it an artifact of `ccot`); at r = 0.1, 1,564 steps of 64 at a rate of 0.005, 2,814 of 128 at 0.006 and 3,752
  of 256 at 0.007, on up to 120,000. ψ had 1,564, 1,876 and 1,876 steps of 64 (of the last, the weights
  after 1,438 were kept), and `direct` 3,128.
- `decoder` writes out the chain for `ccot ask --explain`. It learned from the problems that the method of then answered
  right: of 40,000 generated ones of 1 to 4 steps (`python examples/train_embedded_decoder.py 0.1`) in 2,844 steps of
  32, of 24,000 in 2,188, of 16,000 in 1,802, and on this θ, each time of 8,000 others, in 824, 890 and 894. It
  has not learned from the last φ and ψ.
- `domain.json`: which words and pairs of words the questions of 23,000 training problems and of 20,292 of
  `examples/written_problems.jsonl` have, and other texts with numbers (`examples/other_texts.jsonl`) have not. `ccot
  ask` warns of such texts.
- `calibration.json`, of each method and of θ's own chain: the map from score to confidence, fitted on 1,000 validation
  problems of the generator, of another seed than those of the table, and 1,000 held-out problems of writers.
- Stored in bfloat16, computed in float32 on a CPU.

{training}

Exact match of one seed, with 95 % Wilson intervals, the mean number of contemplation tokens, and exact match by number
of steps.

{tables}

The problems of people are of MAWPS and ASDiv-A, as gathered by SVAMP's authors (Patel et al., 2021);
`examples/research/people.py` chooses them. None was used in training. They have an odd hash. Some forms were written
after reading those with an even hash, which share their authors and kinds. One file of forms was compared with all of
them, to rewrite what resembled one. The settings were chosen on generated validation problems, on unseen ones of
another seed than those of the table, on people's with an even hash, and on held-out problems of GSM8K and of
writers.
"""


def main(
    people: Annotated[
        list[Path] | None,
        typer.Option(help="Problems that people wrote, to learn from, in GSM8K's format; give any number of files."),
    ] = None,
    only: Annotated[
        Literal["all", "calibration", "domain", "card"],
        typer.Option(help="Which part to make again; all comes with the others."),
    ] = "all",
    start: Annotated[
        Path | None,
        typer.Option(help="Methods, outside the package, whose φ, ψ and direct the new ones go on from.", exists=True),
    ] = None,
    generator_seed: Annotated[int, typer.Option(help="Of the generated problems to learn from.")] = GENERATOR_SEED,
    test_people: Annotated[
        Path | None, typer.Option(help="Test problems that people wrote, as research/people.py chooses them.")
    ] = None,
) -> None:
    """Train the methods of the embedded model, and write its record of questions and its card."""
    if only == "all" and people is None:
        raise typer.BadParameter("training needs the problems of people: --people gsm8k.jsonl")
    if only in ("all", "card") and test_people is None:
        raise typer.BadParameter("the card needs test problems of people: --test-people people.jsonl")
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    if people and only == "all":
        write_problems(people, PROBLEMS_FILE, generator_seed)
        train_methods(start)
    if only in ("all", "calibration"):
        calibrate_methods()
    if only in ("all", "domain"):
        make_domain().save(DOMAIN_FILE)
    if test_people and only in ("all", "card"):
        write_card(test_people)


if __name__ == "__main__":
    typer.run(main)
