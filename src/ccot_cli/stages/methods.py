"""Which trained methods there are, in a workspace or in the embedded default, and how to load one."""

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from ccot_cli.config import EMBEDDED, DataConfig, Settings, ratio_name
from ccot_cli.errors import MissingError
from ccot_cli.models.adapters import Adapters
from ccot_cli.models.loading import load_reasoner
from ccot_cli.models.reasoner import ChainReasoner, Method, Reasoner
from ccot_cli.models.theta import EMBEDDED_FOLDER, Theta, load_theta
from ccot_cli.stages import precompute, score, train_baseline, train_psi
from ccot_cli.workspace import Workspace

METHODS_FOLDER = EMBEDDED_FOLDER / "methods"


@dataclass
class Methods:
    """The methods of one base model; loading one puts the last away."""

    theta: Theta
    folders: dict[Decimal, Path]
    """Where CCoT of each trained ratio lies."""
    settings: Settings
    data: DataConfig
    """Where test problems come from: the training data's description, the test source and split of the settings."""
    place: str
    """For messages: the workspace's path, or `embedded`."""
    baselines: dict[str, Path] = field(default_factory=dict)
    """Where each trained baseline lies, by its key: `direct`, `pause-r0.10`."""

    def __post_init__(self) -> None:
        self._adapters = Adapters(self.theta)

    @property
    def ratios(self) -> list[Decimal]:
        """What can be asked for; r = 1 always can, θ itself writes the chain where no adapter was trained for it."""
        return sorted({*self.folders, Decimal(1), *([Decimal(0)] if "direct" in self.baselines else [])})

    def load_baseline(self, key: str) -> Reasoner:
        """A trained baseline.

        Raises:
            MissingError: where it was not trained, naming those that were.
        """
        if key not in self.baselines:
            trained = ", ".join(self.baselines) or "none"
            raise MissingError(f"no baseline {key} in {self.place} (trained: {trained})", fix="ccot train-baseline")
        return load_reasoner(self.theta, self._adapters, self.baselines[key], decoding=self.settings.decoding)

    def load(self, ratio: Decimal) -> Reasoner:
        """CCoT at that ratio; at 0 and 1, answering at once and writing the chain.

        Raises:
            MissingError: where it was not trained, naming those that were.
        """
        decoding = self.settings.decoding
        if ratio in self.folders:
            return load_reasoner(self.theta, self._adapters, self.folders[ratio], decoding=decoding)
        named = {Decimal(0): "direct", Decimal(1): "cot"}.get(ratio)
        if named in self.baselines:
            return self.load_baseline(named)
        if ratio == 1:
            return ChainReasoner(self.theta, self._adapters, decoding.max_chain_tokens)
        trained = ", ".join(f"{known:f}" for known in self.ratios)
        nearest = min(self.ratios, key=lambda known: abs(known - ratio))
        train = "train-baseline direct" if not ratio else f"score, train-phi, train-psi --ratio {ratio:f}"
        how = "" if self.place == EMBEDDED else f"      or train it: ccot {train}"
        raise MissingError(
            f"no generator was trained for ratio {ratio:f} in {self.place} (trained: {trained})",
            fix=f"--ratio {nearest:f}{how}",
        )


def find_methods(workspace: Workspace | None, settings: Settings) -> Methods:
    """The methods of a workspace, or the shipped ones where there is none.

    Raises:
        MissingError: where the workspace has no trained method yet.
    """
    if workspace is None:
        shipped = {path: Method.load(path) for path in sorted(METHODS_FOLDER.iterdir()) if path.is_dir()}
        folders = {Decimal(method.ratio): path for path, method in shipped.items() if method.name == "ccot"}
        baselines = {path.name: path for path, method in shipped.items() if method.name != "ccot"}
        return Methods(load_theta(settings.model), folders, settings, settings.data, EMBEDDED, baselines)
    source = workspace.require(precompute.STAGE)
    keys, compared = workspace.keys(train_psi.STAGE), workspace.keys(train_baseline.STAGE)
    if not keys and not compared:
        workspace.require(train_psi.STAGE, ratio_name(settings.ratios[-1]))
    folders = {
        Decimal(artifact.manifest.summary["ratio"]): artifact.folder
        for artifact in (workspace.require(train_psi.STAGE, key) for key in keys)
    }
    theta = score.load_matching_theta(settings, source)
    tested = {name: getattr(settings.data, name) for name in ("test_source", "test_split")}
    data = DataConfig(**source.manifest.config["data"], **tested)
    baselines = {key: workspace.require(train_baseline.STAGE, key).folder for key in compared}
    return Methods(theta, folders, settings, data, str(workspace.root), baselines)
