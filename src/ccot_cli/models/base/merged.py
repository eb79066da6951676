"""A LoRA adapter that becomes a part of θ when θ is loaded, so that one file of a few MB makes another model of it."""

import hashlib
import warnings
from pathlib import Path
from typing import Literal, cast

from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.files import remembered_sha256
from ccot_cli.names import ADAPTER_CONFIG_FILE, ADAPTER_FILE


def adapter_files(folder: str | Path) -> list[Path]:
    """Return the two files of an adapter's folder.

    Raises:
        UsageError: if one is missing.
    """
    files = [Path(folder, ADAPTER_CONFIG_FILE), Path(folder, ADAPTER_FILE)]
    for file in files:
        if not file.is_file():
            raise UsageError(
                f"{folder} is no adapter's folder: it has no {file.name}",
                fix=f"name a folder with {ADAPTER_CONFIG_FILE} and {ADAPTER_FILE}, as PEFT saves them",
            )
    return files


def adapter_hash(folder: str | Path) -> str:
    """Hash every byte of an adapter.

    Raises:
        UsageError: if the folder holds none.
    """
    return hashlib.sha256("".join(map(remembered_sha256, adapter_files(folder))).encode()).hexdigest()


def merge_adapter(model: PreTrainedModel, folder: str | Path) -> PreTrainedModel:
    """Add a PEFT adapter to a model's weights and return that model, which has no adapter any more.

    Raises:
        UsageError: if the folder holds no adapter, or one of a kind that cannot be merged.
        CorruptError: if it is damaged, or does not fit the model.
    """
    _, weights = adapter_files(folder)
    fix = "name an adapter that was trained on this model, or fetch it again"
    try:
        with safe_open(weights, "pt") as file:
            saved = {*file.keys()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A warning of tensors that are missing is an error below.
            merged = PeftModel.from_pretrained(model, str(folder))
    except RuntimeError as error:  # torch lists every tensor
        raise CorruptError(
            f"adapter {folder} does not fit this model: its tensors have other shapes", fix=fix
        ) from error
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorruptError(f"adapter {folder} cannot be put into the model: {first_line}", fix=fix) from error
    if not hasattr(merged.base_model, "merge_and_unload"):
        kind = merged.active_peft_config.peft_type.value
        raise UsageError(f"adapter {folder} is of the kind {kind}, which cannot be merged", fix="name a LoRA adapter")
    # PEFT would ask the hub about the vocabulary, which an adapter of LoRA's matrices alone does not change.
    embeddings: Literal["auto", False] = "auto" if any(".lora_" not in name for name in saved) else False
    if wrong := sorted(saved ^ get_peft_model_state_dict(merged, save_embedding_layers=embeddings).keys()):
        raise CorruptError(
            f"adapter {folder} does not fit this model: {len(wrong)} tensors differ, the first is {wrong[0]}", fix=fix
        )
    try:
        return cast(PreTrainedModel, merged.merge_and_unload(safe_merge=True))
    except ValueError as error:
        raise CorruptError(f"adapter {folder} holds numbers that are not finite", fix=fix) from error
