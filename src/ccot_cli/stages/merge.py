"""Merge the adapter of a method that is a single model into θ, and save that model as transformers does."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

import torch

from ccot_cli.config import Settings
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.files import check_new, check_space, commit_folder
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.direct import DirectMethod
from ccot_cli.models.methods.loading import METHODS
from ccot_cli.stages.methods import find_methods
from ccot_cli.workspace.workspace import Workspace

MERGEABLE = tuple(name for name, kind in METHODS.items() if not kind.why_no_model)


@dataclass(frozen=True)
class MergeResult:
    """A merged model on the disk."""

    folder: str
    method: str
    ratio: float
    model: str
    """Name of θ."""
    dtype: str
    num_bytes: int
    """Size of the folder."""
    prompt: str
    """Text around the question that the method was trained with."""
    answer_marker: str
    """Text that the method was trained to put before the answer; `direct` is given it with the question."""


def run(
    workspace: Workspace | None,
    settings: Settings,
    folder: Path,
    *,
    method: str,
    ratio: Decimal | None = None,
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
) -> MergeResult:
    """Save θ with a method's ψ merged into its weights: safetensors, configuration and tokenizer.

    Args:
        workspace: None takes a method of the package.
        folder: The folder to make.
        method: A trained method that is a single model: `cot`, `direct`, `icot` or `short-cot`.
        ratio: Of `short-cot`, as for `Methods.find`.
        dtype: Precision of the saved weights; `auto` is the one that θ computes in here.

    Raises:
        UsageError: if the method is no single model, or the folder exists.
        MissingError: if the method was not trained.
        ResourceError: if there is no room for the folder.
    """
    if method not in MERGEABLE:
        fix = f"--method {', or '.join(MERGEABLE)}"
        if method not in METHODS:
            raise UsageError(f"no method that is trained is called {method!r}", fix=fix)
        raise UsageError(f"{method} is no single model: {METHODS[method].why_no_model}", fix=fix)
    check_new(folder)
    methods = find_methods(workspace, settings, may_have_none=True)
    loaded, theta = methods.find(method, ratio).load(), methods.theta
    assert isinstance(loaded, DirectMethod | ChainMethod)
    if isinstance(loaded, ChainMethod) and loaded.adapter is None:
        train = workspace.command("train-baseline", "cot") if workspace else "name a workspace with -w"
        raise MissingError(f"no {method} was trained in {methods.location}: there it is θ alone", fix=train)
    precision = theta.dtype if dtype == "auto" else getattr(torch, dtype)
    num_parameters = sum(each.numel() for name, each in theta.model.named_parameters() if "lora_" not in name)
    check_space(folder, num_parameters * precision.itemsize)
    model = loaded.adapters.merge(PSI, precision)
    with commit_folder(folder) as part:
        model.save_pretrained(part)
        theta.encoder.tokenizer.save_pretrained(part)
        num_bytes = sum(path.stat().st_size for path in part.iterdir())
    return MergeResult(
        folder=str(folder),
        method=loaded.name,
        ratio=float(loaded.ratio),
        model=theta.name,
        dtype=str(precision).removeprefix("torch."),
        num_bytes=num_bytes,
        prompt=theta.encoder.template.prompt,
        answer_marker=theta.encoder.template.answer_marker,
    )
