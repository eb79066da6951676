"""Names of stages, methods and settings' values.

It imports next to nothing, so that `--help` stays fast.
"""

from decimal import Decimal, InvalidOperation
from typing import Literal

EMBEDDED = "embedded"
"""Name of the model in the package, and of the word problems, generated without end, that it learned from."""
SMOLLM2 = "smollm2"
"""Name of SmolLM2-135M-Instruct, a pretrained model that comes as a Python package."""
MODELS = (EMBEDDED, SMOLLM2)
"""Models with a short name."""

PRESETS = (EMBEDDED, SMOLLM2, "gsm8k-llama2-7b")
"""Settings to start from: those of the model in the package, and the paper's."""

SETTINGS_FILE = "ccot.yaml"
METRICS_FILE, PREDICTIONS_FILE = "metrics.json", "predictions.jsonl"
"""Of a kept evaluation."""
OWN_TASK = "ccot_gsm8k"
"""The task of lm-evaluation-harness that has the test problems of the settings."""
ADAPTER_FILE, ADAPTER_CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
"""An adapter's weights and its configuration, as PEFT saves them."""
ENVIRONMENT_VARIABLE = "CCOT_WORKSPACE"
SERVER_VARIABLE = "CCOT_SERVER"
DEFAULT_PORT = 8000
"""Port of `ccot serve`."""

PRECOMPUTE, SCORE, TRAIN_PHI, TRAIN_PSI = "precompute", "score", "train-phi", "train-psi"
TRAIN_DECODER, TRAIN_BASELINE, EVAL = "train-decoder", "train-baseline", "eval"
STAGES = (PRECOMPUTE, SCORE, TRAIN_PHI, TRAIN_PSI, TRAIN_DECODER, TRAIN_BASELINE, EVAL)
OPTIONAL_STAGES = (TRAIN_DECODER, TRAIN_BASELINE)
"""Stages that answering does without."""
KEYED_STAGES = (SCORE, TRAIN_PHI, TRAIN_PSI, TRAIN_DECODER)
"""Stages with one artifact for each ratio; `train-baseline` has one for each method and, of some, ratio, `eval` one for
each run."""

Schedule = Literal["joint", "layerwise"]
QueryUnder = Literal["theta", "phi"]
Unfreeze = Literal["none", "above"]
Ends = Literal["exact", "late"]
SelectorName = Literal["predictive", "learned", "even", "random", "last"]
"""Which chain tokens are selected: those that announce what is new, those that a trained scorer chooses, evenly spaced
ones, random ones, or the last ones."""
ChainName = Literal["written", "equations"]
PromptingName = Literal["zero-shot", "few-shot"]
OptimiserName = Literal["adamw", "muon"]
EngineName = Literal["fast", "reference"]
TrackerName = Literal["tensorboard", "wandb", "trackio"]
"""Programs that show the figures of training runs."""
BaselineName = Literal["direct", "cot", "pause", "filler", "coconut", "icot", "short-cot", "gold"]
MethodName = Literal["ccot", BaselineName]


CCOT, GOLD = "ccot", "gold"
MOST_PROBLEMS = 10_000_000
"""Highest limit on problems: they are held in memory, about a kilobyte each."""
USUAL_RATIO = Decimal("0.1")
"""Ratio that is asked for by default."""
EMBEDDED_MIN_CONFIDENCE = 0.6
"""Below it the model in the package writes its chain, if neither a ratio nor a method is asked for."""
SMALLEST_RATIO = Decimal("0.000001")


def parse_ratio(value: object) -> Decimal:
    """Read a compression ratio as the decimal that the user wrote.

    Raises:
        ValueError: if it is no number from 0 to 1.
    """
    try:
        ratio = Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError(f"a ratio is a number like 0.1, not {value!r}") from None
    if not ratio.is_finite() or not 0 <= ratio <= 1:
        raise ValueError(f"a ratio lies between 0 and 1, {value} does not")
    if ratio and (ratio < SMALLEST_RATIO or ratio % SMALLEST_RATIO):
        raise ValueError(f"a ratio has at most {-SMALLEST_RATIO.adjusted()} decimals, {value} has more")
    return ratio.normalize() + 0  # Adding 0 turns -0 into 0.


def check_between(ratio: Decimal) -> Decimal:
    """Return a ratio, if it lies strictly between 0 and 1, so that there are tokens to select.

    Raises:
        ValueError: if it is 0 or 1.
    """
    if not 0 < ratio < 1:
        raise ValueError(f"ratio {ratio:f} has no contemplation tokens: r = 0 answers at once, r = 1 writes the chain")
    return ratio


def ratio_name(ratio: Decimal) -> str:
    """Return the name of a ratio's folder, with at least two decimals: `r0.10`."""
    return f"r{ratio:.2f}" if ratio == ratio.quantize(Decimal("0.01")) else f"r{ratio:f}"


def model_name_meant(name: str) -> str:
    """Return the short name of a model that a misspelt name is meant to be; empty if it is none."""
    from difflib import get_close_matches

    return "" if name in MODELS else next(iter(get_close_matches(name.lower(), MODELS, n=1, cutoff=0.8)), "")
