"""Which trained methods there are, in a workspace or in the embedded default, and how to load one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

from ccot_cli.config import DataConfig, Settings
from ccot_cli.data.problems import Problem, load_training
from ccot_cli.errors import CcotError, MissingError, UsageError
from ccot_cli.models.base.adapters import Adapters, have_room_to_merge
from ccot_cli.models.base.theta import EMBEDDED_FOLDER, Theta, load_theta
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.loading import METHODS, load_method, own_ratio
from ccot_cli.models.methods.method import Method, MethodInfo
from ccot_cli.models.methods.prompting import prompted
from ccot_cli.names import EMBEDDED, PRECOMPUTE, TRAIN_BASELINE, TRAIN_PSI, PromptingName, ratio_name
from ccot_cli.stages.inputs import load_matching_theta
from ccot_cli.workspace.artifact import Artifact
from ccot_cli.workspace.workspace import Workspace

METHODS_FOLDER = EMBEDDED_FOLDER / "methods"
CCOT, ALL = "ccot", "all"
USUAL_RATIO = Decimal("0.1")
"""What is asked for where nothing is said."""
PROMPTING: tuple[PromptingName, ...] = get_args(PromptingName)


class LoadableMethod(NamedTuple):
    """A method that can be evaluated."""

    ratio: Decimal
    name: str
    load: Callable[[], Method]


def _place(entry: LoadableMethod) -> tuple[Decimal, bool]:
    """Sorts by falling compression, CCoT first at its ratios."""
    return entry.ratio, entry.name != CCOT


@dataclass
class Methods:
    """The methods of one base model; loading one puts the last away."""

    theta: Theta
    folders: dict[Decimal, Path]
    """Where CCoT of each trained ratio lies."""
    settings: Settings
    data: DataConfig
    """Where test problems come from: the training data's description, the test source and split of the settings."""
    workspace: Workspace | None = None
    """None for the shipped ones."""
    baselines: dict[str, Path] = field(default_factory=dict)
    """Where each trained baseline lies, by its key: `direct`, `pause-r0.10`."""
    unusable: dict[str, CcotError] = field(default_factory=dict)
    """What is wrong with those that are there and stale or damaged, by key."""

    def __post_init__(self) -> None:
        is_reference = self.settings.decoding.engine == "reference"
        self._adapters = Adapters(self.theta, merges=have_room_to_merge(self.theta) and not is_reference)

    @property
    def place(self) -> str:
        """For messages."""
        return EMBEDDED if self.workspace is None else str(self.workspace.root)

    def _command(self, *words: str) -> str:
        return self.workspace.command(*words) if self.workspace else " ".join(("ccot", *words))

    @property
    def ratios(self) -> list[Decimal]:
        """What can be asked for; r = 1 always can, θ itself writes the chain where no adapter was trained for it."""
        return sorted({*self.folders, Decimal(1), *([Decimal(0)] if "direct" in self.baselines else [])})

    def choose(self, names: Sequence[str] = (), ratios: Sequence[Decimal] = ()) -> list[LoadableMethod]:
        """What to evaluate, by falling compression.

        Args:
            names: Methods; all that are trained, and the chain, by default. `all` has prompting too.
            ratios: All by default.

        Raises:
            UsageError: for a name that is no method's.
            MissingError: where one that was asked for was not trained.
        """
        for name in names:
            if name not in (ALL, *METHODS, *PROMPTING):
                known = ", ".join((*METHODS, *PROMPTING))
                raise UsageError(f"there is no method {name!r}", fix=f"{ALL}, or some of {known}")
        is_all = ALL in names
        entries = sorted(self._entries(PROMPTING if is_all else names), key=_place)
        for ratio in ratios:
            if all(entry.ratio != ratio for entry in entries) and (not names or is_all or CCOT in names):
                raise self._missing(ratio)
        chosen = [
            each
            for each in entries
            if (not names or is_all or each.name in names)
            # A ratio chooses among those of a method; one that was named and has its own is meant nonetheless.
            and (not ratios or each.ratio in ratios or (each.name in names and own_ratio(each.name) is not None))
        ]
        for name in names if not is_all else ():
            if all(each.name != name for each in chosen):
                for key, error in self.unusable.items():
                    if key == name or key.startswith(f"{name}-r"):
                        raise error
                trained = ", ".join(sorted({f"{each.name} {each.ratio:f}" for each in entries}))
                train = self._command(*(["train-psi"] if name == CCOT else ["train-baseline", name]))
                asked = " or ".join(f"{ratio:f}" for ratio in ratios)
                raise MissingError(
                    f"no {name}{f' at ratio {asked}' if asked else ''} in {self.place} (trained: {trained})",
                    fix="choose among these" if self.place == EMBEDDED else train,
                )
        return chosen

    def _entries(self, names: Sequence[str]) -> Iterator[LoadableMethod]:
        for ratio in self.folders:
            yield LoadableMethod(ratio, CCOT, partial(self.load, ratio))
        for folder in self.baselines.values():
            method = MethodInfo.load(folder)
            yield LoadableMethod(Decimal(method.ratio), method.name, partial(self.load_folder, folder))
        if "cot" not in self.baselines:
            yield LoadableMethod(Decimal(1), "cot", self._chain)
        for name in PROMPTING:
            if name in names:
                yield LoadableMethod(Decimal(1), name, partial(self._prompted, name))

    def load(self, ratio: Decimal) -> Method:
        """CCoT at that ratio; at 0 and 1, answering at once and writing the chain.

        Raises:
            MissingError: where it was not trained, naming those that were.
        """
        named = {Decimal(0): "direct", Decimal(1): "cot"}.get(ratio)
        if named in self.baselines:
            return self.load_folder(self.baselines[named])
        if ratio == 1:
            return self._chain()
        if ratio not in self.folders:
            raise self._missing(ratio)
        return self.load_folder(self.folders[ratio])

    def named(self, name: str, ratio: Decimal | None) -> Method:
        """A method by its name; one that has a ratio of its own does not read the other.

        Args:
            ratio: By default 0.1, or what was trained nearest to it.

        Raises:
            UsageError: for a name that is no method's.
            MissingError: where it was not trained, or not at that ratio.
        """
        if ratio is None:
            trained = [entry.ratio for entry in self._entries(()) if entry.name == name]
            ratio = min(trained, key=lambda known: abs(known - USUAL_RATIO), default=USUAL_RATIO)
        if name == CCOT:
            return self.load(ratio)
        if name == ALL:
            raise UsageError("one method answers a question", fix=f"--method {CCOT}, or another's name")
        entries = self.choose((name,))
        fitting = [entry for entry in entries if own_ratio(name) is not None or entry.ratio == ratio]
        if not fitting:
            there = ", ".join(f"{entry.ratio:f}" for entry in entries)
            raise MissingError(
                f"no {name} was trained for ratio {ratio:f} in {self.place} (trained: {there})",
                fix=f"--ratio {entries[0].ratio:f}",
            )
        return fitting[0].load()

    def load_folder(self, folder: Path) -> Method:
        """The method that was trained into it."""
        method = load_method(self._adapters, folder, self.settings.decoding)
        self._adapters.prepare()
        return method

    def _chain(self) -> ChainMethod:
        return ChainMethod(self._adapters, self.settings.decoding.max_chain_tokens)

    def _prompted(self, name: PromptingName) -> Method:
        return prompted(self._chain(), name, self._shots() if name == "few-shot" else ())

    def _shots(self) -> list[Problem]:
        shots = self.settings.eval.shots
        return load_training(self.data).train[:shots]

    def _missing(self, ratio: Decimal) -> CcotError:
        if ratio_name(ratio) in self.unusable:
            return self.unusable[ratio_name(ratio)]
        trained = ", ".join(f"{known:f}" for known in self.ratios)
        nearest = min(self.ratios, key=lambda known: abs(known - ratio))
        stages = ["score", "train-phi", "train-psi"]
        commands = [[stage, "--ratio", f"{ratio:f}"] for stage in stages] if ratio else [["train-baseline", "direct"]]
        train = " && ".join(self._command(*words) for words in commands)
        how = "" if self.place == EMBEDDED else f", or train it: {train}"
        return MissingError(
            f"no generator was trained for ratio {ratio:f} in {self.place} (trained: {trained})",
            fix=f"--ratio {nearest:f}{how}",
        )


def baseline_key(method: str, ratio: Decimal) -> str:
    """Name a baseline's artifact: `direct`, or `pause-r0.10` if the method comes in ratios."""
    return f"{method}-{ratio_name(ratio)}" if own_ratio(method) is None else method


def own_methods(workspace: Workspace) -> tuple[list[Artifact], dict[str, CcotError]]:
    """What was trained with the workspace's own settings, and what is wrong, by key, with what of it cannot be used.

    A sweep's variants are measured there.
    """
    usable, unusable = [], {}
    for stage in (TRAIN_PSI, TRAIN_BASELINE):
        for key in filter(None, workspace.finished(stage)):
            try:
                found = workspace.artifact(stage, key)
                if found is not None and _is_own(found):
                    usable.append(workspace.require(stage, key))
            except CcotError as error:
                unusable[key] = error
    return usable, unusable


def _is_own(artifact: Artifact) -> bool:
    """Whether its key is that of the workspace's own settings."""
    manifest, ratio = artifact.manifest, Decimal(str(artifact.manifest.summary["ratio"]))
    if manifest.stage == TRAIN_PSI:
        return manifest.key == ratio_name(ratio)
    return manifest.key == baseline_key(manifest.summary["method"], ratio)


def find_methods(workspace: Workspace | None, settings: Settings, *, may_have_none: bool = False) -> Methods:
    """The methods of a workspace, or the shipped ones where there is none.

    Args:
        may_have_none: Whether a workspace without a method of its own settings will do, as for a sweep's variants.

    Raises:
        MissingError: where the workspace has no trained method yet.
    """
    if workspace is None:
        shipped = {path: MethodInfo.load(path) for path in sorted(METHODS_FOLDER.iterdir()) if path.is_dir()}
        folders = {Decimal(method.ratio): path for path, method in shipped.items() if method.name == CCOT}
        baselines = {path.name: path for path, method in shipped.items() if method.name != CCOT}
        return Methods(load_theta(settings.model), folders, settings, settings.data, baselines=baselines)
    # Its manifest says which model and data; the hidden states have served.
    source = workspace.artifact(PRECOMPUTE) or workspace.require(PRECOMPUTE)
    own, unusable = own_methods(workspace)
    if not own and not may_have_none:
        workspace.require(TRAIN_PSI, ratio_name(settings.ratios[-1]))
    folders = {
        Decimal(str(each.manifest.summary["ratio"])): each.folder for each in own if each.manifest.stage == TRAIN_PSI
    }
    theta = load_matching_theta(settings, source)
    tested = {name: getattr(settings.data, name) for name in ("test_source", "test_split")}
    data = DataConfig(**source.manifest.config["data"], **tested)
    baselines = {str(each.manifest.key): each.folder for each in own if each.manifest.stage == TRAIN_BASELINE}
    return Methods(theta, folders, settings, data, workspace, baselines, unusable)
