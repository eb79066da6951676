"""All trained methods by name, and how to load one from its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from ccot_cli.config import DecodingConfig
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.methods.calibration import Calibration
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.coconut import CoconutMethod
from ccot_cli.models.methods.direct import DirectMethod
from ccot_cli.models.methods.gold import GoldMethod
from ccot_cli.models.methods.method import Method, MethodInfo
from ccot_cli.models.methods.pause import PauseMethod


@dataclass(frozen=True)
class Traits:
    """What a method puts between query and answer (paper, Table 1)."""

    contentful: str
    """Whether its tokens hold content, or were distilled from tokens that do: yes, no, or – if there are none."""
    format: str
    inference: str


Loader = Callable[[Adapters, MethodInfo, DecodingConfig, Path], Method]
"""Loads a method from a trained folder whose ψ is loaded already."""


class MethodKind(NamedTuple):
    """One method of the table."""

    load: Loader
    ratio: Decimal | None
    """Its fixed ratio; None if it is trained at any ratio, as CCoT is."""
    traits: Traits
    why_no_model: str = ""
    """Why the method is no single model, whose weights a plain folder could hold; empty if it is one, under ψ."""


NO_TOKENS = Traits("–", "–", "none: answers at once")
WRITTEN = Traits("yes", "discrete", "variable length, autoregressive")
PARALLEL = Traits("no", "discrete", "fixed length, in parallel")
READS_NO_TOKEN = "before the answer it reads an embedding that is no token's"

METHODS: dict[str, MethodKind] = {
    "ccot": MethodKind(
        CcotMethod.load,
        None,
        Traits("yes", "continuous", "variable length, autoregressive"),
        "three sets of weights take turns: θ reads the question, φ generates contemplation tokens, ψ answers",
    ),
    "direct": MethodKind(DirectMethod.load, Decimal(0), NO_TOKENS),
    "cot": MethodKind(ChainMethod.load, Decimal(1), WRITTEN),
    "pause": MethodKind(PauseMethod.load, None, PARALLEL, READS_NO_TOKEN),
    "filler": MethodKind(PauseMethod.load, None, PARALLEL, READS_NO_TOKEN),
    "coconut": MethodKind(
        CoconutMethod.load,
        Decimal(0),
        Traits("yes", "continuous", "fixed length, autoregressive"),
        "it feeds hidden states back as inputs, which a plain model never does",
    ),
    "icot": MethodKind(ChainMethod.load, Decimal(0), NO_TOKENS),
    "short-cot": MethodKind(ChainMethod.load, None, WRITTEN),
    "gold": MethodKind(
        GoldMethod.load,
        None,
        Traits("yes", "continuous", "oracle: reads the chain"),
        "it reads the hidden states of a solution that is given to it",
    ),
}
"""CCoT, and the trained methods that it is compared with."""


def fixed_ratio(method: str) -> Decimal | None:
    """Return a method's fixed ratio, 1 for prompted methods; None if the method is trained at any ratio."""
    return METHODS[method].ratio if method in METHODS else Decimal(1)


def traits_of(method: str) -> Traits:
    """Return a method's traits; controls have CCoT's, prompted methods those of a written chain."""
    if method in METHODS:
        return METHODS[method].traits
    return METHODS["ccot"].traits if method.startswith("ccot") else WRITTEN


def load_method(adapters: Adapters, folder: Path, decoding: DecodingConfig) -> Method:
    """Load the method that was trained into `folder`. Its adapters replace those that were loaded before.

    Raises:
        CorruptError: if a file is damaged or made for another model.
    """
    info = MethodInfo.load(folder)
    adapters.load(PSI, folder / PSI)
    method = METHODS[info.name].load(adapters, info, decoding, folder)
    method.calibration = Calibration.load(folder)
    return method
