"""`ccot doctor`: check whether this machine can do the work."""

import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import typer

from ccot_cli.cli.console import print_json, print_table
from ccot_cli.cli.options import FormatOption, ModelOption, announce_model, find_workspace_if_any
from ccot_cli.errors import CcotError
from ccot_cli.files import free_bytes, human_bytes

DISTRIBUTION = "ccot-cli"


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    name: str
    value: str
    is_fine: bool = True


def doctor(model: ModelOption = None, format: FormatOption = "text") -> None:
    """Check Python, libraries, devices and disk, and with --model whether a base model works.

    ccot doctor
    ccot doctor --model Qwen/Qwen3-0.6B
    """
    findings = [Finding("python", platform.python_version()), *_libraries(), *_machine(), *_hub(), _workspace()]
    if model is not None:
        findings += _model(model)
    if format == "json":
        print_json([asdict(finding) for finding in findings])
    else:
        marks = {True: "ok", False: "!!"}
        print_table([[marks[finding.is_fine], finding.name, finding.value] for finding in findings], align="<<<")
    if not all(finding.is_fine for finding in findings):
        raise typer.Exit(1)


def _libraries() -> list[Finding]:
    """List the libraries that this package requires, with their installed versions."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        return [Finding("libraries", "ccot is not installed, so its requirements are not known")]
    # Those with a marker belong to an extra, such as `plot`.
    return [_library(each.name, str(each.specifier)) for each in requirements if each.marker is None]


def _library(name: str, wanted: str) -> Finding:
    from packaging.specifiers import SpecifierSet

    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, f"missing (requires {wanted})", is_fine=False)
    return Finding(name, f"{version} (requires {wanted})", SpecifierSet(wanted).contains(version, prereleases=True))


def _machine() -> list[Finding]:
    import torch

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    devices = [f"{gpu.name}, {human_bytes(gpu.total_memory)}" for gpu in gpus] or ["cpu"]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return [
        Finding("devices", "; ".join(devices)),
        Finding("threads", _threads()),
        Finding("memory", human_bytes(memory)),
        Finding("free disk", f"{human_bytes(free_bytes(Path.cwd()))} here"),
    ]


def _threads() -> str:
    """Say how many threads compute, and whether others keep the cores busy."""
    from ccot_cli.models.base.threads import VARIABLE, busy_cores, free_threads

    chosen = f" ({VARIABLE})" if os.environ.get(VARIABLE) else ""
    busy, cores = busy_cores(), os.cpu_count() or 1
    others = f"; other processes keep {min(busy, cores)} of {cores} cores busy" if busy else ""
    return f"{free_threads()}{chosen}{others}"


def _hub() -> list[Finding]:
    from huggingface_hub import constants

    from ccot_cli.hub import hub_answers, is_offline

    if is_offline():
        state = "offline (HF_HUB_OFFLINE)"
    else:
        state = "online" if hub_answers() else f"{constants.ENDPOINT} does not answer"
    cache = Path(constants.HF_HUB_CACHE)
    return [Finding("hub", state), Finding("hub cache", f"{cache}, {human_bytes(free_bytes(cache))} free")]


def _workspace() -> Finding:
    try:
        workspace = find_workspace_if_any(None)
    except CcotError as error:
        return Finding("workspace", error.message, is_fine=False)
    return Finding("workspace", "none here" if workspace is None else str(workspace.root))


def _model(name: str) -> list[Finding]:
    from ccot_cli.models.base.theta import diagnose
    from ccot_cli.overrides import with_absolute_paths

    found = str(with_absolute_paths({"model.name": name}, Path.cwd())["model.name"])
    try:
        announce_model(found)
        return [Finding("model", line) for line in diagnose(found)]
    except CcotError as error:
        return [Finding("model", "; ".join(filter(None, (error.message, error.fix))), is_fine=False)]
