"""Measure what θ of more or fewer parameters learns from the same problems, from fresh weights.

    python examples/theta_size.py --people gsm8k.jsonl --output docs/data

Every width is trained as `train_theta.py` trains the embedded θ, on the same batches of problems of 1 to 5 steps, at
rates that fall to zero over `--steps`. Each time it is measured on problems that it has not seen: generated ones in
forms of training, in forms that training never sees, and those of `--people` that are held out. The loss is that of a
solution's token, in nats; a solution is right if every token is θ's likeliest one after the tokens before it, which is
when θ writes it word for word. A stopped run goes on by the same command; the models stay in build/theta-size.

Dimensions: B batch, T tokens, V vocabulary.
"""

import json
import shlex
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from train_theta import (
    PHASES,
    Phase,
    PoolMaker,
    ThetaTraining,
    encode,
    make_batches,
    make_model,
    padded,
    with_plain_vectors,
)
from training_texts import Solved, read_people, replaceable_stems
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ccot_cli.data.batches import cut
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.data.word_problems import generate
from ccot_cli.files import write_json
from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER

BUILD_FOLDER = Path("build/theta-size")
MOST_STEPS = PHASES[0].most_steps
BATCH_SIZE = 32
COLUMNS = {"parameters": "{:,}", "steps": "{:,}", "minutes": "{:.0f}"}


def batches(encoder: Encoder, problems: list[Solved]) -> list[tuple[Tensor, Tensor]]:
    """Return ids and weights of all problems (B, T each), those of like length together."""
    examples = sorted(
        (encode(encoder, told, question_weight=0.0) for told in problems), key=lambda example: len(example[0])
    )
    return [padded(encoder, batch) for batch in cut(examples, BATCH_SIZE)]


@torch.no_grad()
def measure(model: LlamaForCausalLM, problems: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return the mean loss of a solution's token, and the share of solutions that are right word for word."""
    loss = tokens = right = count = 0.0
    vectors_VD = model.model.embed_tokens.weight
    for ids_BT, weight_BT in problems:
        logits_BTV = F.linear(model.model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1], vectors_VD)
        target_BT, asked_BT = ids_BT[:, 1:], weight_BT[:, 1:] > 0
        loss += F.cross_entropy(logits_BTV[asked_BT], target_BT[asked_BT], reduction="sum").item()
        right += ((logits_BTV.argmax(-1) == target_BT) | ~asked_BT).all(dim=1).sum().item()
        tokens, count = tokens + asked_BT.sum().item(), count + len(ids_BT)
    return {"loss": loss / tokens, "right": right / count}


def main(
    people: Annotated[Path, typer.Option(help="Problems that people wrote: the training file of GSM8K.")],
    width: Annotated[list[int] | None, typer.Option(help="Widths, multiples of 32.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each.")] = 1000,
    every: Annotated[int, typer.Option(min=1, help="Steps between measurements.")] = 250,
    limit: Annotated[int, typer.Option(min=1, help="Problems of each kind to measure on.")] = 400,
    output: Annotated[Path | None, typer.Option(help="Folder for theta-size.json.")] = None,
) -> None:
    """Train and measure every width, and print a line for each measurement."""
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(EMBEDDED_FOLDER)
    encoder, phases = Encoder(tokenizer, Template()), (Phase(steps, MOST_STEPS, long_probability=0.0),)
    generated = {
        name: [(each.question, each.solution) for each in islice(generate(name, seed=0, steps=(1, MOST_STEPS)), limit)]
        for name in ("validation", "unseen")
    }
    held_out = {**generated, "people": read_people(people, held_out=True)[:limit]}
    kinds = {name: batches(encoder, problems) for name, problems in held_out.items()}
    make_pool = PoolMaker(encoder, 0, phases[0], read_people(people), replaceable_stems(), BATCH_SIZE)
    rows: list[dict[str, Any]] = []
    for each in width or [96, 192, 320]:
        model = make_model(tokenizer, each)
        training = ThetaTraining(model, 0, in_bfloat16=False, phases=phases)
        checkpoint, log = BUILD_FOLDER / f"{each}-{steps}.safetensors", BUILD_FOLDER / f"{each}-{steps}.json"
        measured = json.loads(log.read_text()) if log.exists() else []
        if checkpoint.exists():
            training.resume(checkpoint)
        # The log is written first, so it may have more steps than the checkpoint.
        measured = [row for row in measured if row["steps"] <= training.step]
        seconds, started = (measured[-1]["seconds"] if measured else 0.0), time.perf_counter()
        for batch in make_batches(make_pool, range(training.step, steps)):
            training.train_on(*batch)
            if training.step % every == 0 or training.step == steps:
                seconds += time.perf_counter() - started
                row = {"width": each, "steps": training.step, "seconds": seconds}
                measured.append(row | {name: measure(model, problems) for name, problems in kinds.items()})
                write_json(log, measured)
                training.save(checkpoint)
                typer.echo(json.dumps(measured[-1]))
                started = time.perf_counter()
        folder, plain = BUILD_FOLDER / f"theta-{each}", with_plain_vectors(model)
        rows += [row | {"parameters": plain.num_parameters()} for row in measured]
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    if output:
        figures = [(kind, figure) for kind in kinds for figure in ("loss", "right")]
        forms = COLUMNS | {f"{kind}: {figure}": "{:.3f}" for kind, figure in figures}
        table = [
            [row["parameters"], row["steps"], row["seconds"] / 60, *(row[kind][figure] for kind, figure in figures)]
            for row in rows
        ]
        columns = [{"name": name, "format": form} for name, form in forms.items()]
        command = shlex.join(["python", *sys.argv])
        source = {"command": [command], "seeds": [0], "n": limit, "note": "one thread", "recorded": "this script"}
        write_json(output / "theta-size.json", {"columns": columns, "rows": table, "source": source})


if __name__ == "__main__":
    typer.run(main)
