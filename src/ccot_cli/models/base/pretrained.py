"""Load a model and its tokenizer by the name that the user gave, always from safetensors and never with remote code.

Some names are short: `embedded`, the model in the package, and `smollm2`. A file in GGUF format is unpacked first. Any
other name is a folder, or a model on the Hugging Face hub.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from ccot_cli.config import ModelConfig
from ccot_cli.errors import CcotError, CorruptError, ResourceError, UsageError
from ccot_cli.files import expanded
from ccot_cli.hub import hub_answers
from ccot_cli.models.base.gguf import SUFFIX, gguf_file, unpack
from ccot_cli.models.base.memory import is_out_of_memory
from ccot_cli.names import EMBEDDED, model_name_meant

EMBEDDED_FOLDER = Path(__file__).parents[2] / "embedded"
_FETCH_AGAIN = "fetch the model again, with its own config.json"


def load_pretrained(config: ModelConfig, device: torch.device) -> tuple[Any, PreTrainedModel]:
    """Load tokenizer and model into main memory, in the precision that suits the device.

    Raises:
        UsageError: if the name is not a model's.
        CorruptError: if its weights are damaged, or not those that its configuration asks for.
        ResourceError: if files cannot be fetched.
    """
    file = gguf_file(config.name)
    source: str | Path = EMBEDDED_FOLDER if config.name == EMBEDDED else config.name
    options: dict[str, Any] = {"trust_remote_code": False, "revision": config.revision, "local_files_only": True}
    if file is None and isinstance(source, str) and not Path(source).exists():
        if meant := model_name_meant(source):
            raise UsageError(f"there is no model {source!r}", fix=f"did you mean {meant}?")
        options["local_files_only"] = not hub_answers()  # Then only what was downloaded before is looked for.
    dtype: Any = config.dtype
    if dtype == "auto":
        dtype = torch.float32 if device.type == "cpu" else "auto"
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would report every attempt
    transformers.logging.disable_progress_bar()  # it would draw on stderr while only an answer is asked for
    unpacked: Path | None = None
    try:
        unpacked = unpack(file) if file else None
        source = unpacked or source
        _refuse_foreign_shards(source, options)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        # The report tells what does not fit; transformers itself would go on, or raise an error that names nothing.
        options |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
        options["adapter_kwargs"] = {"local_files_only": options["local_files_only"]}
        load: Any = partial(AutoModelForCausalLM.from_pretrained, source, **options)
        model: PreTrainedModel
        model, report = load(dtype=dtype)
        _refuse_other_tensors(config.name, report)
        if getattr(model, "_hf_peft_config_loaded", False):
            raise UsageError(
                f"{config.name} holds a LoRA adapter",
                fix="give its base model as model.name, and a folder with the adapter as model.adapter",
            )
        if config.dtype == "auto" and model.dtype == torch.float16:
            # Gradients of states would be too small for float16. Loaded again rather than cast, because a cast would
            # round the frequencies of the positions too.
            model, _ = load(dtype=torch.bfloat16)
        if tokenizer.eos_token_id is None:
            raise CorruptError(
                f"the tokenizer of {config.name} names no token that ends a text",
                fix="set eos_token in its tokenizer_config.json",
            )
    except SafetensorError as error:
        fix = _unpack_again(unpacked) if unpacked else _FETCH_AGAIN
        raise CorruptError(f"the weights of {config.name} cannot be read: {error}", fix=fix) from error
    except CcotError:
        raise
    except Exception as error:  # Files that are damaged, or not what their names say, may raise anything.
        if is_out_of_memory(error):
            raise
        raise _explain(config.name, error, unpacked) from error
    return tokenizer, model


def weight_files(config: ModelConfig) -> list[Path]:
    """Return the files with the weights of a model that was loaded before."""
    if file := gguf_file(config.name):
        return [file]
    source = str(EMBEDDED_FOLDER if config.name == EMBEDDED else config.name)
    options: dict[str, Any] = {"revision": config.revision, "local_files_only": True}
    options["_raise_exceptions_for_missing_entries"] = False
    if single := cached_file(source, SAFE_WEIGHTS_NAME, **options):
        return [Path(single)]
    if not (index := cached_file(source, SAFE_WEIGHTS_INDEX_NAME, **options)):
        return []  # The weights are those of another branch, to which the hub converts pickled ones.
    names = {*json.loads(Path(index).read_bytes())["weight_map"].values()}
    return [Path(index).with_name(name) for name in sorted(names)]


def _refuse_foreign_shards(source: str | Path, options: Mapping[str, Any]) -> None:
    """Refuse an index that names anything but safetensors files of its own folder: others may run code when read."""
    found = cached_file(
        str(source),
        SAFE_WEIGHTS_INDEX_NAME,
        revision=options["revision"],
        local_files_only=options["local_files_only"],
        _raise_exceptions_for_missing_entries=False,
    )
    if found is None:
        return
    index = Path(found)
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CorruptError(f"{index} cannot be read: it maps no tensors to files", fix=_FETCH_AGAIN) from None
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CorruptError(f"{index} names {name!r}, which is no safetensors file beside it", fix=_FETCH_AGAIN)


def _refuse_other_tensors(name: str, report: Mapping[str, Any]) -> None:
    """Refuse weights that transformers would fill up with random numbers, or leave out."""
    kinds = {
        "missing_keys": "lack",
        "unexpected_keys": "have, beyond what its configuration asks for,",
        "mismatched_keys": "have, in another shape than its configuration asks for,",
    }
    for key, what in kinds.items():
        tensors = sorted(each if isinstance(each, str) else each[0] for each in report[key])
        if tensors:
            more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
            raise CorruptError(f"the weights of {name} {what} {tensors[0]}{more}", fix=_FETCH_AGAIN)


def _unpack_again(folder: Path) -> str:
    return f"remove {folder}, where it was unpacked, and run the same command again"


def _explain(name: str, error: Exception, unpacked: Path | None) -> CcotError:
    """Turn an error of transformers into one that says what to do.

    Args:
        unpacked: Where a GGUF file was unpacked, if it was.
    """
    text = str(error)
    first_line = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if unpacked:
        return CorruptError(f"{name} cannot be read: {first_line}", fix=_unpack_again(unpacked))
    if expanded(name).exists():
        fix = "name a folder with config.json, model.safetensors and a tokenizer, as save_pretrained writes them"
        if Path(name).suffix == SUFFIX:
            fix = "download the file again, or another one of a family that transformers reads from GGUF"
        return UsageError(f"{name} holds no model that can be loaded: {first_line}", fix=fix)
    if name.startswith((".", "/", "~")):
        return UsageError(f"there is no folder {name}", fix=f"check the path; a relative one starts at {Path.cwd()}")
    if any(word in text.lower() for word in ("gated", "401 client error", "403 client error")):
        return ResourceError(
            f"you have no access to model {name!r}: {first_line}",
            fix=f"request it on https://huggingface.co/{name}, then: hf auth login",
        )
    if "offline" in text.lower() or "connect" in text.lower() or "couldn't" in text.lower():
        return ResourceError(
            f"model {name!r} is not on this machine and cannot be downloaded: {first_line}",
            fix=f"on a machine with a network: hf download {name} --local-dir DIR; then give DIR as the model",
        )
    return UsageError(
        f"model {name!r} cannot be loaded: {first_line}", fix="name a folder, a .gguf file, or OWNER/NAME of the hub"
    )
