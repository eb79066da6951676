"""All methods by name, and how a trained folder is loaded."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, Protocol

from ccot_cli.config import DecodingConfig
from ccot_cli.errors import CorruptError, retrain_hint
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.coconut import CoconutMethod
from ccot_cli.models.methods.direct import DirectMethod
from ccot_cli.models.methods.gold import GoldMethod
from ccot_cli.models.methods.method import METHOD_FILE, Method, MethodInfo
from ccot_cli.models.methods.pause import PauseMethod


@dataclass(frozen=True)
class Traits:
    """What a method puts between query and answer (paper, Table 1)."""

    contentful: str
    """Whether its tokens hold content, or were distilled from what does: yes, no, or – if there are none."""
    format: str
    inference: str


class Loader(Protocol):
    """Makes a method of a trained folder whose ψ is loaded."""

    def __call__(self, adapters: Adapters, info: MethodInfo, decoding: DecodingConfig, folder: Path, /) -> Method: ...


class MethodKind(NamedTuple):
    """One method of the table."""

    load: Loader
    ratio: Decimal | None
    """The ratio that is its own; None if it is trained at any ratio that CCoT is."""
    traits: Traits


NO_TOKENS = Traits("–", "–", "none: answers at once")
WRITTEN = Traits("yes", "discrete", "variable length, autoregressive")
PARALLEL = Traits("no", "discrete", "fixed length, in parallel")

METHODS: dict[str, MethodKind] = {
    "ccot": MethodKind(CcotMethod.load, None, Traits("yes", "continuous", "variable length, autoregressive")),
    "direct": MethodKind(DirectMethod.load, Decimal(0), NO_TOKENS),
    "cot": MethodKind(ChainMethod.load, Decimal(1), WRITTEN),
    "pause": MethodKind(PauseMethod.load, None, PARALLEL),
    "filler": MethodKind(PauseMethod.load, None, PARALLEL),
    "coconut": MethodKind(CoconutMethod.load, Decimal(0), Traits("yes", "continuous", "fixed length, autoregressive")),
    "icot": MethodKind(ChainMethod.load, Decimal(0), NO_TOKENS),
    "short-cot": MethodKind(ChainMethod.load, None, WRITTEN),
    "gold": MethodKind(GoldMethod.load, None, Traits("yes", "continuous", "oracle: reads the chain")),
}
"""Trained methods: CCoT, and those that it is compared with."""


def own_ratio(method: str) -> Decimal | None:
    """Return the ratio that a method has by nature: 0 or 1; None if it is trained at any ratio, or is a prompt."""
    return METHODS[method].ratio if method in METHODS else Decimal(1)


def traits_of(method: str) -> Traits:
    """Look up a method's row of the paper's Table 1; controls are CCoT's, prompts write chains."""
    if method in METHODS:
        return METHODS[method].traits
    return METHODS["ccot"].traits if method.startswith("ccot") else WRITTEN


def load_method(adapters: Adapters, folder: Path, decoding: DecodingConfig) -> Method:
    """Load the method that was trained into `folder`; its adapters replace those loaded before.

    Raises:
        CorruptError: if a file is damaged or made for another model.
    """
    info = MethodInfo.load(folder)
    if info.name not in METHODS:
        raise CorruptError(f"{folder / METHOD_FILE} names no method that ccot knows", fix=retrain_hint(folder))
    adapters.load(PSI, folder / PSI)
    return METHODS[info.name].load(adapters, info, decoding, folder)
