"""Artifacts of a few short files, finished or interrupted."""

from collections.abc import Mapping
from typing import Any

import pytest

from ccot_cli.config import Settings, stage_config
from ccot_cli.workspace.artifact import Artifact, ArtifactSpec, Manifest, write_manifest
from ccot_cli.workspace.workspace import Workspace

CONFIG = stage_config(Settings(), "precompute")


def asked(stage: str = "precompute", key: str | None = None, **changes: Any) -> ArtifactSpec:
    """Ask for an artifact with the default settings of `precompute`, made from nothing."""
    return ArtifactSpec(stage, key, **{"config": CONFIG, "inputs": {}, **changes})


def make(
    workspace: Workspace,
    stage: str = "precompute",
    key: str | None = None,
    *,
    files: Mapping[str, str] = {"a.txt": "A", "sub/b.txt": "B"},
    settings: Settings | None = None,
    **changes: Any,
) -> Artifact:
    """Make an artifact of these files."""
    config = stage_config(settings or workspace.settings, stage)
    with workspace.building(asked(stage, key, config=config, **changes)) as build:
        for name, text in files.items():
            (build.folder / name).parent.mkdir(exist_ok=True)
            (build.folder / name).write_text(text)
        build.summary["files"] = len(files)
    artifact = workspace.artifact(stage, key)
    assert artifact is not None
    return artifact


def interrupt(workspace: Workspace, text: str = "half", **changes: Any) -> bool:
    """Write `text` to a.txt and stop; return whether an earlier attempt's was there."""
    resumed = []

    def attempt() -> None:
        with workspace.building(asked(**changes)) as build:
            resumed.append((build.folder / "a.txt").exists())
            (build.folder / "a.txt").write_text(text)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt()
    return resumed[0]


def edit_manifest(artifact: Artifact, **changes: object) -> None:
    """Change what a finished artifact says of itself."""
    path = artifact.folder / "manifest.json"
    write_manifest(path, Manifest.model_validate_json(path.read_bytes()).model_copy(update=changes))
