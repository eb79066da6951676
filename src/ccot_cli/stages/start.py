"""A trained adapter that a training goes on from, instead of a new one."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ccot_cli.config import TrainPhiConfig, TrainPsiConfig
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.files import sha256_of
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.methods.method import METHOD_FILE, MethodInfo
from ccot_cli.names import ADAPTER_FILE, TRAIN_PHI, parse_ratio, ratio_name
from ccot_cli.workspace.artifact import Artifact
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class Start:
    """An adapter to start from."""

    name: str
    """Of the artifact, or of the adapter's folder."""
    fingerprint: str
    folder: Path
    input_name: str
    """Its name among the inputs of what starts from it; no path, because a folder may be moved."""

    @property
    def phi_of_method(self) -> Path | None:
        """Folder of φ in the trained method whose φ or ψ the adapter is; None if it is that of none."""
        method, is_part = self.folder.parent, self.folder.name in (PHI, PSI)
        return method / PHI if is_part and (method / METHOD_FILE).is_file() and (method / PHI).is_dir() else None

    def layers_of_psi(self, theta: Theta) -> range:
        """Return the decoder layers, counted from 0, of that φ that learned to answer together with ψ: those above l.

        Their states are no longer like gold ones.

        Raises:
            CorruptError: if `method.json` is damaged.
        """
        if self.phi_of_method is None:
            return range(0)
        return range(MethodInfo.load(self.folder.parent).autoregressive_layer, theta.num_layers)


def find_phi(workspace: Workspace, config: TrainPhiConfig, key: str) -> Start | None:
    """Find the φ to start from; None if the settings name none.

    Args:
        key: Of the φ to be trained.

    Raises:
        MissingError: if there is no such φ.
        UsageError: if it is the one to be trained, or was trained from that.
        CorruptError: if its artifact is damaged.
    """
    if config.start is None:
        return None
    if there := _in_folder(config.start, workspace.folder(TRAIN_PHI, key), "train_phi"):
        return there
    start_key = config.start
    with suppress(ValueError):
        start_key = ratio_name(parse_ratio(start_key))
    if start_key == key:
        raise _starts_from_itself(start_key, "train_phi")
    if start_key not in workspace.finished(TRAIN_PHI):
        usable = ", ".join(workspace.keys(TRAIN_PHI)) or "none yet"
        raise MissingError(
            f"{workspace.name} has no φ {config.start!r} to start from",
            fix=f"train it, or name another ({usable}) or an adapter's folder",
        )
    artifact = workspace.require(TRAIN_PHI, start_key)
    if f"{TRAIN_PHI}/{key}" in _starts(workspace, artifact):
        # What is trained now would be stale at once: its start was made from what it replaces.
        raise UsageError(
            f"{artifact.name} was itself trained from {TRAIN_PHI}/{key}, which would be replaced",
            fix="name another start, or none, in train_phi.start",
        )
    artifact.check()
    return Start(artifact.name, artifact.fingerprint, artifact.path(PHI), artifact.name)


def _starts(workspace: Workspace, artifact: Artifact | None) -> Iterator[str]:
    """Yield the name of each φ that an artifact, or what it starts from, was trained from."""
    for name in artifact.manifest.inputs if artifact else ():
        stage, _, key = name.partition("/")
        if stage == TRAIN_PHI:
            yield name
            yield from _starts(workspace, workspace.artifact(stage, key))


def find_psi(config: TrainPsiConfig, target: Path) -> Start | None:
    """Find the adapter that ψ, or what is trained in its place, starts from; None if the settings name none.

    Args:
        target: Folder of the artifact to be trained.

    Raises:
        MissingError: if the folder holds no adapter.
        UsageError: if it is that of the artifact to be trained.
    """
    if config.start is None:
        return None
    if there := _in_folder(config.start, target, "train_psi"):
        return there
    raise MissingError(
        f"{config.start} is no adapter's folder: it has no {ADAPTER_FILE}",
        fix="name another folder, or none, in train_psi.start",
    )


def _in_folder(name: str, target: Path, section: str) -> Start | None:
    weights = Path(name, ADAPTER_FILE)
    if not weights.is_file():
        return None
    if Path(name).resolve().is_relative_to(target.resolve()):
        raise _starts_from_itself(name, section)
    return Start(name, sha256_of(weights), Path(name), "start")


def _starts_from_itself(name: str, section: str) -> UsageError:
    # Its bytes would be another input after every training, so that the same command would train again and again.
    return UsageError(
        f"{name} is what will be trained, and cannot start from itself",
        fix=f"copy it to another folder first, or name another start, or none, in {section}.start",
    )


def start_inputs(start: Start | None) -> dict[str, str]:
    """Return what an artifact names among its inputs because it starts from an adapter."""
    if start is None:
        return {}
    inputs = {start.input_name: start.fingerprint}
    if start.phi_of_method:
        inputs["start's φ"] = sha256_of(start.phi_of_method / ADAPTER_FILE)
    return inputs


def attach(adapters: Adapters, name: str, config: TrainPhiConfig | TrainPsiConfig, start: Start | None) -> None:
    """Attach the adapter to be trained: the one to start from, or a new one.

    Raises:
        CorruptError: if what to start from cannot be read, or does not fit the model.
        UsageError: if its rank or alpha is not that of the settings.
    """
    if start is None:
        adapters.add(name, rank=config.lora_rank, alpha=config.lora_alpha, seed=config.seed)
        return
    adapters.load(name, start.folder)
    section = "train_phi" if name == PHI else "train_psi"
    for setting, trained_with in zip(("lora_rank", "lora_alpha"), adapters.rank_and_alpha(name), strict=True):
        if trained_with != getattr(config, setting):
            raise UsageError(
                f"{start.name} was trained with {setting} {trained_with}, not {getattr(config, setting)}",
                fix=f"set {section}.{setting} to {trained_with}",
            )
