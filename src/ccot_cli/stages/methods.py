"""Which trained methods there are, in a workspace or in the embedded default, and how to load one."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from ccot_cli.config import EMBEDDED, Settings, ratio_name
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.models.adapters import Adapters
from ccot_cli.models.reasoner import ChainReasoner, Method, Reasoner, load_reasoner
from ccot_cli.models.theta import EMBEDDED_FOLDER, Theta, load_theta
from ccot_cli.stages import precompute, score, train_psi
from ccot_cli.workspace import Workspace

METHODS_FOLDER = EMBEDDED_FOLDER / "methods"


@dataclass
class Methods:
    """The methods of one base model; loading one puts the last away."""

    theta: Theta
    folders: dict[Decimal, Path]
    """Where each trained ratio lies."""
    settings: Settings
    place: str
    """For messages: the workspace's path, or `embedded`."""

    def __post_init__(self) -> None:
        self._adapters = Adapters(self.theta)

    @property
    def ratios(self) -> list[Decimal]:
        """What can be asked for; r = 1 always can, θ itself writes the chain where no adapter was trained for it."""
        return sorted({*self.folders, Decimal(1)})

    def load(self, ratio: Decimal) -> Reasoner:
        """The method of that ratio.

        Raises:
            MissingError: where it was not trained, naming those that were.
        """
        max_chain_tokens = self.settings.decoding.max_chain_tokens
        if ratio in self.folders:
            return load_reasoner(self.theta, self._adapters, self.folders[ratio], max_chain_tokens=max_chain_tokens)
        if ratio == 1:
            return ChainReasoner(self.theta, self._adapters, max_chain_tokens)
        trained = ", ".join(f"{known:f}" for known in self.ratios)
        nearest = min(self.ratios, key=lambda known: abs(known - ratio))
        how = "" if self.place == EMBEDDED else f"      or train it: ccot score, train-phi, train-psi --ratio {ratio:f}"
        raise MissingError(
            f"no generator was trained for ratio {ratio:f} in {self.place} (trained: {trained})",
            fix=f"--ratio {nearest:f}{how}",
        )


def find_methods(workspace: Workspace | None, settings: Settings) -> Methods:
    """The methods of a workspace, or the shipped ones where there is none.

    Raises:
        UsageError: where there is no workspace and the model is not the embedded one.
        MissingError: where the workspace has no trained method yet.
    """
    if workspace is None:
        if settings.model.name != EMBEDDED:
            raise UsageError(
                f"there is no workspace here, so nothing was trained for {settings.model.name!r}",
                fix="-w DIR, or leave --model away to use the embedded model",
            )
        folders = {Decimal(Method.load(path).ratio): path for path in sorted(METHODS_FOLDER.glob("r*"))}
        return Methods(load_theta(settings.model), folders, settings, EMBEDDED)
    source = workspace.require(precompute.STAGE)
    keys = workspace.keys(train_psi.STAGE)
    if not keys:
        workspace.require(train_psi.STAGE, ratio_name(settings.ratios[-1]))
    folders = {
        Decimal(artifact.manifest.summary["ratio"]): artifact.folder
        for artifact in (workspace.require(train_psi.STAGE, key) for key in keys)
    }
    return Methods(score.load_matching_theta(settings, source), folders, settings, str(workspace.root))
