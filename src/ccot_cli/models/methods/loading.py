"""Load whatever method a folder holds."""

from pathlib import Path

from ccot_cli.config import DecodingConfig
from ccot_cli.errors import CorruptError, anew
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.methods.ccot import TRAITS, CcotReasoner
from ccot_cli.models.methods.method import METHOD_FILE, WRITTEN, Method, Reasoner, Traits
from ccot_cli.models.training.recipes.base import Baseline, Trained
from ccot_cli.models.training.recipes.chain import Cot, ImplicitCot, ShortCot
from ccot_cli.models.training.recipes.coconut import Coconut
from ccot_cli.models.training.recipes.direct import Direct
from ccot_cli.models.training.recipes.gold import Gold
from ccot_cli.models.training.recipes.pause import Filler, Pause

_ALL: tuple[type[Baseline], ...] = (Direct, Cot, Pause, Filler, Coconut, ImplicitCot, ShortCot, Gold)
BASELINES: dict[str, type[Baseline]] = {each.name: each for each in _ALL}


def traits_of(method: str) -> Traits:
    """What the paper's Table 1 says of a method."""
    if method in BASELINES:
        return BASELINES[method].traits
    return TRAITS if method.startswith("ccot") else WRITTEN


def load_reasoner(theta: Theta, adapters: Adapters, folder: Path, *, decoding: DecodingConfig) -> Reasoner:
    """The method that was trained into `folder`; it takes the adapters' place of any loaded before.

    Raises:
        CorruptError: where a file is damaged or made for another model.
    """
    method = Method.load(folder)
    if method.name != "ccot" and method.name not in BASELINES:
        raise CorruptError(f"{folder / METHOD_FILE} names no method that ccot knows", fix=anew(folder))
    adapters.load(PSI, folder / PSI)
    if method.name == "ccot":
        adapters.load(PHI, folder / PHI)
        config, device = theta.model.config, theta.device
        end = End.load(folder, config.hidden_size).to(device)
        draft = Draft.load(folder, config.hidden_size, config.vocab_size).to(device)
        return CcotReasoner(theta, adapters, method, decoding, end, draft)
    return BASELINES[method.name].load(Trained(theta, adapters, method, decoding, folder))
