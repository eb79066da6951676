"""What stages, methods and settings are called.

Nothing is imported for it, so that a command that is asked for help knows its words at once.
"""

from decimal import Decimal, InvalidOperation
from typing import Literal

EMBEDDED = "embedded"
"""The name of the model and of the data set that are shipped with the package."""

PRESETS = (EMBEDDED, "gsm8k-llama2-7b")
"""Settings to start from: those of the model shipped with the package, and the paper's."""

SETTINGS_FILE = "ccot.yaml"
ENVIRONMENT_VARIABLE = "CCOT_WORKSPACE"

PRECOMPUTE, SCORE, TRAIN_PHI, TRAIN_PSI = "precompute", "score", "train-phi", "train-psi"
TRAIN_BASELINE, EVAL = "train-baseline", "eval"
STAGES = (PRECOMPUTE, SCORE, TRAIN_PHI, TRAIN_PSI, TRAIN_BASELINE, EVAL)
KEYED_STAGES = (SCORE, TRAIN_PHI, TRAIN_PSI)
"""Stages with one artifact for each ratio; `train-baseline` has one for each method, `eval` one for each run."""

Schedule = Literal["joint", "layerwise"]
Unfreeze = Literal["none", "above"]
Ends = Literal["exact", "late"]
SelectorName = Literal["predictive", "learned", "even", "random", "last"]
PromptingName = Literal["zero-shot", "few-shot"]
OptimiserName = Literal["adamw", "muon"]
EngineName = Literal["fast", "reference"]
BaselineName = Literal["direct", "cot", "pause", "filler", "coconut", "icot", "short-cot", "gold"]
MethodName = Literal["ccot", BaselineName]


def parse_ratio(value: object) -> Decimal:
    """Read a compression ratio as the decimal that the user wrote.

    Raises:
        ValueError: where it is no number in 0..1.
    """
    try:
        ratio = Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError(f"a ratio is a number like 0.1, not {value!r}") from None
    if not ratio.is_finite() or not 0 <= ratio <= 1:
        raise ValueError(f"a ratio lies between 0 and 1, {value} does not")
    return ratio.normalize() + 0


def check_between(ratio: Decimal) -> Decimal:
    """Return a ratio at which tokens are selected.

    Raises:
        ValueError: for 0 and 1.
    """
    if not 0 < ratio < 1:
        raise ValueError(f"ratio {ratio:f} has no contemplation tokens: r = 0 answers at once, r = 1 writes the chain")
    return ratio


def ratio_name(ratio: Decimal) -> str:
    """The name of a ratio's folder, with two decimals at least: `r0.10`."""
    return f"r{ratio:.2f}" if ratio == ratio.quantize(Decimal("0.01")) else f"r{ratio:f}"
