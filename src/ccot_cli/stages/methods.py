"""Find the trained methods of a workspace, or those of the embedded model, and load them."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

from ccot_cli.config import DataConfig, Settings
from ccot_cli.data.problems import Problem, load_training
from ccot_cli.errors import BusyError, CcotError, MissingError, UsageError
from ccot_cli.models.base.adapters import DECODER, Adapters, have_room_to_merge
from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER
from ccot_cli.models.base.theta import Theta, load_theta
from ccot_cli.models.methods.calibration import Calibration
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.loading import METHODS, fixed_ratio, load_method
from ccot_cli.models.methods.method import Method, MethodInfo
from ccot_cli.models.methods.prompting import prompted
from ccot_cli.names import (
    CCOT,
    PRECOMPUTE,
    TRAIN_BASELINE,
    TRAIN_DECODER,
    TRAIN_PSI,
    USUAL_RATIO,
    PromptingName,
    parse_ratio,
    ratio_name,
)
from ccot_cli.stages.inputs import load_matching_theta
from ccot_cli.stages.problems import recorded_data
from ccot_cli.workspace.artifact import Artifact, read_whole
from ccot_cli.workspace.workspace import Workspace

METHODS_FOLDER = EMBEDDED_FOLDER / "methods"
ALL = "all"
COT = "cot"
_BASELINE_AT = {Decimal(0): "direct", Decimal(1): COT}
"""The baseline that a ratio stands for."""
_RATIO_KEY = re.compile(r"r(\d+\.\d+)")
"""Key of CCoT at a ratio, as `ratio_name` writes it."""
Read = TypeVar("Read")
PROMPTING: tuple[PromptingName, ...] = get_args(PromptingName)


class LoadableMethod(NamedTuple):
    """A method that can be loaded."""

    ratio: Decimal
    name: str
    load: Callable[[], Method]


def _sort_key(entry: LoadableMethod) -> tuple[Decimal, bool]:
    """Order by rising ratio; at equal ratios CCoT comes first."""
    return entry.ratio, entry.name != CCOT


@dataclass
class Methods:
    """The methods of one base model. Loading a method unloads the one before."""

    theta: Theta
    folders: dict[Decimal, Path]
    """Folders of CCoT, by trained ratio."""
    settings: Settings
    data: DataConfig
    """Where test problems come from: as the training data, but with the test source and split of the settings."""
    workspace: Workspace | None = None
    """None for the embedded methods."""
    baselines: dict[str, Path] = field(default_factory=dict)
    """Folders of trained baselines, by key: `direct`, `pause-r0.10`."""
    unusable: dict[str, CcotError] = field(default_factory=dict)
    """Why an artifact is stale or damaged, by key."""
    model_fingerprint: str = ""
    """Of the θ that the workspace was filled from when it was read; empty if there was none."""

    def __post_init__(self) -> None:
        is_reference = self.settings.decoding.engine == "reference"
        self._adapters = Adapters(self.theta, merges=have_room_to_merge(self.theta) and not is_reference)

    @property
    def are_shipped(self) -> bool:
        """Whether they are those of the model in the package."""
        return self.workspace is None and self.settings.model.is_embedded

    @property
    def location(self) -> str:
        """Where the methods are, for messages."""
        return str(self.workspace.root) if self.workspace else self.settings.model.name

    def _command(self, *words: str) -> str:
        return self.workspace.command(*words) if self.workspace else " ".join(("ccot", *words))

    @property
    def ratios(self) -> list[Decimal]:
        """Ratios that `load` accepts. r = 1 is among them if no adapter was trained to write the chain: θ does."""
        fixed = [Decimal(0)] if "direct" in self.baselines else []
        return sorted({*self.folders, *fixed, *([] if COT in self.unusable else [Decimal(1)])})

    def choose(self, names: Sequence[str] = (), ratios: Sequence[Decimal] = ()) -> list[LoadableMethod]:
        """Choose methods to evaluate, by rising ratio.

        Args:
            names: Names of methods; by default all trained ones and the chain. `all` adds prompting to these.
            ratios: All by default.

        Raises:
            UsageError: if a name is no method's.
            MissingError: if a method or a ratio was asked for but not trained.
        """
        for name in names:
            if name not in (ALL, *METHODS, *PROMPTING):
                raise UsageError(f"there is no method {name!r}", fix=f"there are {', '.join((*METHODS, *PROMPTING))}")
        is_all = ALL in names
        entries = sorted(self._entries(PROMPTING if is_all else names), key=_sort_key)
        chosen = [
            each
            for each in entries
            if (not names or is_all or each.name in names)
            # A ratio does not rule out a method that was named and has a fixed ratio, such as `direct`.
            and (not ratios or each.ratio in ratios or (each.name in names and fixed_ratio(each.name) is not None))
        ]
        unmet = [ratio for ratio in ratios if all(each.ratio != ratio for each in chosen)]
        in_ratios = [CCOT] if not names or is_all else [name for name in names if fixed_ratio(name) is None]
        if unmet and in_ratios:
            # At 0 and 1 there is another method than CCoT.
            if CCOT in in_ratios and unmet[0] not in self.ratios:
                raise self._untrained_ratio(unmet[0])
            raise self._untrained_name(in_ratios[0], unmet, entries)
        for name in names if not is_all else ():
            if all(each.name != name for each in chosen):
                raise self._untrained_name(name, ratios, entries)
        return chosen

    def _entries(self, names: Sequence[str]) -> Iterator[LoadableMethod]:
        """Yield all trained methods, the chain, and those of the prompting methods that are named."""
        for ratio in self.folders:
            yield LoadableMethod(ratio, CCOT, partial(self.load, ratio))
        for folder in self.baselines.values():
            method = _read(folder, MethodInfo.load)
            yield LoadableMethod(Decimal(method.ratio), method.name, partial(self.load_folder, folder))
        if COT not in (*self.baselines, *self.unusable):
            yield LoadableMethod(Decimal(1), COT, self._chain)
        for name in PROMPTING:
            if name in names:
                yield LoadableMethod(Decimal(1), name, partial(self._prompted, name))

    def load(self, ratio: Decimal) -> Method:
        """Load CCoT at a ratio; at 0 the method that answers at once, and at 1 the one that writes the chain.

        Raises:
            MissingError: if it was not trained; names the ratios that were.
            CcotError: if it was trained, but is stale or damaged now.
        """
        return self._at(ratio).load()

    def _at(self, ratio: Decimal) -> LoadableMethod:
        baseline = _BASELINE_AT.get(ratio)
        if baseline in self.baselines:
            return LoadableMethod(ratio, baseline, partial(self.load_folder, self.baselines[baseline]))
        # θ's own chain must not pass for that of an adapter which is stale or damaged.
        if ratio == 1 and COT not in self.unusable:
            return LoadableMethod(ratio, COT, self._chain)
        if ratio not in self.folders:
            raise self._untrained_ratio(ratio)
        return LoadableMethod(ratio, CCOT, partial(self.load_folder, self.folders[ratio]))

    def find(self, name: str, ratio: Decimal | None) -> LoadableMethod:
        """Find a method by its name.

        Args:
            ratio: By default 0.1, or the trained ratio nearest to it. A method with a fixed ratio ignores it.

        Raises:
            UsageError: if there is no method of that name.
            MissingError: if it was not trained, or not at that ratio.
            CcotError: if it was trained, but is stale or damaged now.
        """
        if ratio is None:
            trained = [entry.ratio for entry in self._entries(()) if entry.name == name]
            if name == CCOT and not trained and self._unusable_ratios:
                trained = self._unusable_ratios
            ratio = min(trained, key=lambda known: abs(known - USUAL_RATIO), default=USUAL_RATIO)
        if name == CCOT:
            return self._at(ratio)
        if name == ALL:
            raise UsageError("only one method can answer a question", fix=f"--method {CCOT}, or another method's name")
        entries = self.choose((name,))
        fitting = [entry for entry in entries if fixed_ratio(name) is not None or entry.ratio == ratio]
        if not fitting:
            trained_ratios = ", ".join(f"{entry.ratio:f}" for entry in entries)
            raise MissingError(
                f"no {name} was trained for ratio {ratio:f} in {self.location} (trained: {trained_ratios})",
                fix=f"--ratio {entries[0].ratio:f}",
            )
        return fitting[0]

    def load_folder(self, folder: Path) -> Method:
        """Load the method of a folder, with its adapters prepared, so that the first answer does not wait for them.

        Raises:
            CorruptError: if a file is damaged; those of the package have no manifest to be checked against.
            BusyError: if the workspace was filled from another model meanwhile.
        """
        method = _read(folder, self._load_sound)
        self._refuse_other_model()
        self._adapters.prepare()
        return method

    def explaining(self, method: Method) -> CcotMethod:
        """Load the decoder beside a loaded method, and let the method explain its answers.

        Raises:
            UsageError: if the method has no contemplation tokens.
            MissingError: if no decoder was trained for it, or for an earlier ψ.
            CorruptError: if a file is damaged.
        """
        if not isinstance(method, CcotMethod):
            raise no_tokens("--explain", method)
        _read(self._decoder_folder(method.ratio), self._load_decoder)
        self._adapters.prepare()
        return replace(method, explains=True)

    def _load_decoder(self, folder: Path) -> None:
        if artifact := Artifact.open(folder):
            artifact.check()
        self._adapters.load(DECODER, folder / DECODER)

    def _decoder_folder(self, ratio: Decimal) -> Path:
        key = ratio_name(ratio)
        if self.workspace:
            self.workspace.require(TRAIN_DECODER, key)
            return self.workspace.folder(TRAIN_DECODER, key)
        if (METHODS_FOLDER / key / DECODER).exists():
            return METHODS_FOLDER / key
        trained = [known for known in self.folders if (METHODS_FOLDER / ratio_name(known) / DECODER).exists()]
        raise MissingError(
            f"no decoder for ratio {ratio:f} is in the package",
            fix="".join(f"--ratio {known:f}, or " for known in trained)
            + f"in a workspace: ccot train-decoder --ratio {ratio:f}",
        )

    def _load_sound(self, folder: Path) -> Method:
        if artifact := Artifact.open(folder):
            artifact.check()
        return load_method(self._adapters, folder, self.settings.decoding)

    def _refuse_other_model(self) -> None:
        """Refuse a method that was loaded after θ, if both were replaced between."""
        source = self.workspace.artifact(PRECOMPUTE) if self.workspace else None
        if source and self.model_fingerprint not in ("", source.manifest.inputs["model"]):
            raise BusyError(
                f"{self.location} was filled from another model meanwhile", fix="run the same command again"
            )

    def fallback(self) -> Method:
        """Load the written chain for a `Cascade`, so that loading another method does not unload it.

        Call it before one is loaded: it runs on a twin of θ, which would have that method's adapters attached.
        """
        return replace(self, theta=self.theta.twin()).load(Decimal(1))

    def _chain(self) -> ChainMethod:
        # θ's own chain belongs to no trained folder; in the package, its calibration lies beside them.
        calibration = Calibration.load(METHODS_FOLDER) if self.are_shipped else None
        return ChainMethod(self._adapters, self.settings.decoding.max_chain_tokens, calibration=calibration)

    def _prompted(self, name: PromptingName) -> Method:
        return prompted(self._chain(), name, self._shots() if name == "few-shot" else ())

    def _shots(self) -> list[Problem]:
        shots = self.settings.eval.shots
        return load_training(self.data).train[:shots]

    @property
    def _unusable_ratios(self) -> list[Decimal]:
        """Ratios of CCoT that were trained, but are stale or damaged now."""
        return [parse_ratio(found[1]) for key in self.unusable if (found := _RATIO_KEY.fullmatch(key))]

    def _untrained_name(self, name: str, ratios: Sequence[Decimal], entries: Sequence[LoadableMethod]) -> CcotError:
        for key, error in self.unusable.items():
            if key == name or key.startswith(f"{name}-r") or (name == CCOT and _RATIO_KEY.fullmatch(key)):
                return error
        trained = ", ".join(sorted({f"{each.name} {each.ratio:f}" for each in entries}))
        train = self._command(*(["train-psi"] if name == CCOT else ["train-baseline", name]))
        asked = " or ".join(f"{ratio:f}" for ratio in ratios)
        return MissingError(
            f"no {name}{f' at ratio {asked}' if asked else ''} in {self.location} (trained: {trained})",
            fix=train if self.workspace else "choose one of these",
        )

    def _untrained_ratio(self, ratio: Decimal) -> CcotError:
        for key in (_BASELINE_AT.get(ratio), ratio_name(ratio)):
            if key in self.unusable:
                return self.unusable[key]
        trained = ", ".join(f"{known:f}" for known in self.ratios)
        stages = ["score", "train-phi", "train-psi"]
        commands = [[stage, "--ratio", f"{ratio:f}"] for stage in stages] if ratio else [["train-baseline", "direct"]]
        train = " && ".join(self._command(*words) for words in commands)
        fixes = [f"--ratio {min(self.ratios, key=lambda known: abs(known - ratio)):f}"] if self.ratios else []
        if self.workspace:
            fixes.append(f"train it: {train}")
        return MissingError(
            f"no generator was trained for ratio {ratio:f} in {self.location} (trained: {trained or 'none'})",
            fix=", or ".join(fixes),
        )


def no_tokens(option: str, method: Method) -> UsageError:
    """Return the error for an option that reads contemplation tokens, if the method generates none."""
    return UsageError(
        f"{option} reads contemplation tokens, and {method.name} generates none",
        fix=f"--method {CCOT}, at a ratio between 0 and 1",
    )


def _read(folder: Path, read: Callable[[Path], Read]) -> Read:
    """Read from a method's folder, or from where its artifact is, should another one be taking its place."""
    return read_whole(folder, lambda artifact: read(artifact.folder if artifact else folder))


def baseline_key(method: str, ratio: Decimal) -> str:
    """Name a baseline's artifact: `direct`, or `pause-r0.10` if the method comes in ratios."""
    return f"{method}-{ratio_name(ratio)}" if fixed_ratio(method) is None else method


def own_methods(workspace: Workspace) -> tuple[list[Artifact], dict[str, CcotError]]:
    """Find the methods that were trained with the workspace's own settings; the variants of a sweep are skipped.

    Returns:
        The usable artifacts, and by key the errors of those that are stale or damaged.
    """
    usable, unusable = [], {}
    for stage in (TRAIN_PSI, TRAIN_BASELINE):
        for key in filter(None, workspace.finished(stage)):
            try:
                artifact = workspace.artifact(stage, key)
                if artifact is not None and _is_own(artifact):
                    usable.append(workspace.require(stage, key))
            except CcotError as error:
                unusable[key] = error
    return usable, unusable


def _is_own(artifact: Artifact) -> bool:
    """Tell by its key whether an artifact was trained with the workspace's own settings."""
    manifest, ratio = artifact.manifest, Decimal(str(artifact.manifest.summary["ratio"]))
    if manifest.stage == TRAIN_PSI:
        return manifest.key == ratio_name(ratio)
    return manifest.key == baseline_key(manifest.summary["method"], ratio)


def needs_theta_alone(names: Collection[str], ratios: Collection[Decimal]) -> bool:
    """Tell whether θ can do what is asked for without any training: write the chain, or be prompted."""
    return {"cot", *PROMPTING}.issuperset(names) if names else {*ratios} == {Decimal(1)}


def find_methods(workspace: Workspace | None, settings: Settings, *, may_have_none: bool = False) -> Methods:
    """Find the methods of a workspace, or the embedded ones if no workspace is given, and load θ.

    Without a workspace, another model than the embedded one is θ alone.

    Args:
        may_have_none: Accept a workspace without a method of its own settings, as for the variants of a sweep.

    Raises:
        MissingError: if the workspace has no trained method yet.
    """
    if workspace is None and not settings.model.is_embedded:
        return Methods(load_theta(settings.model), {}, settings, settings.data)
    if workspace is None:
        infos = {path: MethodInfo.load(path) for path in sorted(METHODS_FOLDER.iterdir()) if path.is_dir()}
        folders = {Decimal(info.ratio): path for path, info in infos.items() if info.name == CCOT}
        baselines = {path.name: path for path, info in infos.items() if info.name != CCOT}
        return Methods(load_theta(settings.model), folders, settings, settings.data, baselines=baselines)
    # Only its manifest is needed, for the model and the data: the hidden states may be deleted after training.
    source = workspace.artifact(PRECOMPUTE)
    if source is None and may_have_none:
        return Methods(load_theta(settings.model), {}, settings, settings.data, workspace)
    source = source or workspace.require(PRECOMPUTE)
    own, unusable = own_methods(workspace)
    if not own and not may_have_none:
        workspace.require(TRAIN_PSI, ratio_name(settings.ratios[-1]))
    places = [(each.manifest, workspace.folder(each.manifest.stage, each.manifest.key)) for each in own]
    folders = {Decimal(str(each.summary["ratio"])): place for each, place in places if each.stage == TRAIN_PSI}
    theta = load_matching_theta(settings, source)
    data = recorded_data(settings, source)
    baselines = {str(each.key): place for each, place in places if each.stage == TRAIN_BASELINE}
    return Methods(
        theta,
        folders,
        settings,
        data,
        workspace,
        baselines,
        unusable,
        model_fingerprint=source.manifest.inputs["model"],
    )
