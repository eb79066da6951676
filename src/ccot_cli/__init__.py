"""Compressed Chain of Thought: reason in a few continuous tokens, answer in text.

from ccot_cli import load

model = load("my-run", ratio=0.1)
print(model.ask("Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?").answer)
"""

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from ccot_cli.version import __version__

if TYPE_CHECKING:
    from ccot_cli.stages.ask import Asker

__all__ = ["__version__", "load"]


def load(
    folder: str | Path | None = None,
    *,
    ratio: float | str | Decimal | None = None,
    method: str | None = None,
    device: str | None = None,
) -> "Asker":
    """Load a trained method, as `ccot ask` does. Load once, ask often.

    Args:
        folder: A workspace; the model in the package by default.
        ratio: Compression ratio r: 0 answers at once, 1 writes the chain. By default 0.1, or the trained
            ratio that is nearest to it.
        method: `ccot`, the default, or a baseline such as `direct` or `pause`. If neither ratio nor method is given,
            the model in the package writes its chain where its confidence is below 0.6.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.

    Returns:
        An object with `ask(question)` and `ask_all(questions)`.

    Raises:
        ValueError: if the ratio is no number from 0 to 1.
        CcotError: if the folder is no workspace, or the method was not trained there.
    """
    from ccot_cli.config import Settings
    from ccot_cli.names import parse_ratio
    from ccot_cli.overrides import override
    from ccot_cli.stages.ask import Asker
    from ccot_cli.workspace.workspace import Workspace

    workspace = None if folder is None else Workspace.open(Path(folder))
    settings = workspace.settings if workspace else Settings()
    settings = settings if device is None else override(settings, {"model.device": device})
    return Asker(workspace, settings, None if ratio is None else parse_ratio(ratio), method)
