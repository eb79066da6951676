"""Model cards: what trained methods are and how well they answer, in Markdown."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ccot_cli.config import AUTO, Settings
from ccot_cli.names import CCOT, TRAIN_PSI
from ccot_cli.workspace.archive import ArchivedModel, ArchiveIndex
from ccot_cli.workspace.artifact import Artifact

CARD = """---
library_name: peft
{base}tags:
- ccot
- compressed-chain-of-thought
---

# Compressed Chain of Thought: adapters for {theta}

Trained with `ccot` {ccot} on {data}. {where}; the fingerprint of θ is `{fingerprint}`.

{methods}

Exact match on {validation}. {reading}

## Answer

    pip install ccot-cli
    ccot import FILE -w my-run{model}
    ccot ask -w my-run "…"

FILE is the archive, or a folder with these files. Every file is compared with its hash in `archive.json`.

The adapters are LoRA adapters in PEFT's format, for example:

    model = AutoModelForCausalLM.from_pretrained({name})
{merged}    model = PeftModel.from_pretrained(model, "{adapter}")

The question stands in {prompt}; {marker} comes before the answer.
{results}"""

WITH_ADAPTER = "The base model is not in here; θ is that model with the adapter in `adapter/` merged into it"
MERGED = '    model = PeftModel.from_pretrained(model, "adapter").merge_and_unload()\n'
READING = """CCoT reads the question under θ, or under φ where `method.json` has `"query_under": "phi"`. It
generates contemplation tokens under φ until `end.safetensors` says stop, and answers under ψ."""


def card(
    index: ArchiveIndex,
    settings: Settings,
    source: Artifact,
    methods: Sequence[Artifact],
    results: Sequence[Mapping[str, Any]],
) -> str:
    """Write the card of an archive.

    Args:
        settings: Without paths of this machine.
        source: The artifact of `precompute`.
        results: Figures of evaluations, as in `results.json`.
    """
    data, model = settings.data, index.model
    summary = methods[0].manifest.summary
    first = "phi" if methods[0].manifest.stage == TRAIN_PSI else "psi"
    problems = f"{source.manifest.summary['num_train']:,} problems of {_code(data.source)}"
    return CARD.format(
        base="" if model.is_local or "/" not in model.name else f"base_model: {model.name}\n",
        theta=_code(model.name),
        ccot=index.ccot,
        where=WITH_ADAPTER if model.has_adapter else "The base model θ is not in here",
        data=problems + (f", {_code(data.subset)}" if data.subset else ""),
        fingerprint=model.fingerprint[:16],
        methods=_methods_table(methods),
        validation=f"{summary['num_validation']:,} validation problems, which also chose the weights",
        reading=READING if any(each.method == CCOT for each in index.methods) else "",
        model=" --model DIR" if model.is_local else "",
        merged=MERGED if model.has_adapter else "",
        name=json.dumps(_loadable(model), ensure_ascii=False),
        adapter=f"{methods[0].name}/{first}",
        prompt=_prompt(settings.model.prompt),
        marker=_code(json.dumps(settings.model.answer_marker, ensure_ascii=False)),
        results="".join(map(_result, results)),
    )


def _loadable(model: ArchivedModel) -> str:
    return "DIR" if model.is_local or "/" not in model.name else model.name


def _prompt(prompt: str) -> str:
    if prompt == AUTO:
        return "the tokenizer's chat template"
    return f"the prompt {_code(json.dumps(prompt, ensure_ascii=False))}"


def _code(text: str) -> str:
    """Write a text as code, whatever is in it."""
    return f"`{text.replace('`', ' ').replace(chr(10), ' ')}`"


def _methods_table(methods: Sequence[Artifact]) -> str:
    lines = [["method", "r", "folder", "exact match", "tokens before the answer"], ["---"] * 5]
    for each in methods:
        figures = each.manifest.summary
        accuracy, tokens = f"{figures['validation_accuracy']:.3f}", f"{figures['mean_tokens']:.1f}"
        lines.append([figures.get("method", CCOT), f"{figures['ratio']:g}", f"`{each.name}`", accuracy, tokens])
    return _table(lines)


def _result(result: Mapping[str, Any]) -> str:
    rows, steps = result["rows"], result["steps"]
    split = "" if result["split"] is None else f", split {_code(result['split'])}"
    of_steps = "" if steps is None else f", {steps[0]} to {steps[1]} steps"
    return (
        f"\n## {rows[0]['n']:,} problems of {_code(result['data'])}{split}{of_steps}, seed {result['seed']}\n\n"
        f"Exact match with 95 % Wilson intervals, the mean number of contemplation tokens, and exact match by"
        f" number of steps (run {result['run']}).\n\n"
        f"{accuracies(rows)}\n"
    )


def accuracies(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write one set's figures as a table, with those of each number of steps."""
    steps = list(rows[0]["by_steps"])
    lines = [["method", "r", "exact match", "tokens", *(f"{each} st." for each in steps)]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        interval = f"{row['accuracy']:.3f} ({row['low']:.3f} – {row['high']:.3f})"
        by_steps = [f"{row['by_steps'][each]['accuracy']:.2f}" for each in steps]
        lines.append(
            [row["method"], f"{row['ratio']:g}", interval, f"{row['contemplation_tokens_mean']:.1f}", *by_steps]
        )
    return _table(lines)


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
