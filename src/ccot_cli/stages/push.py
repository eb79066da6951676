"""Upload trained methods to the Hugging Face hub as a model repository, and fetch them from there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ccot_cli.errors import ResourceError, UsageError
from ccot_cli.files import is_full
from ccot_cli.hub import is_offline
from ccot_cli.names import SETTINGS_FILE, TRAIN_BASELINE, TRAIN_DECODER, TRAIN_PSI
from ccot_cli.stages import export
from ccot_cli.workspace.archive import ADAPTER_FOLDER, INDEX_FILE, RESULTS_FILE, unpack
from ccot_cli.workspace.workspace import Workspace

HUB_PREFIX = "hf://"
"""Begins the name of a repository where a file could be named too."""
FOLDERS = (TRAIN_PSI, TRAIN_DECODER, TRAIN_BASELINE, ADAPTER_FOLDER)
"""Of an archive, those that another one may lack."""


@dataclass(frozen=True)
class PushResult:
    """What was uploaded."""

    url: str
    methods: list[str]
    """Stage and key of each."""
    asked_private: bool
    """Whether the repository was to be private; one that existed before stays as it was."""
    is_model_local: bool
    """Whether θ is a folder or a file, which whoever imports the methods has to have."""


def run(source: Path, repository: str, keys: Sequence[str] = (), *, is_public: bool = False) -> PushResult:
    """Upload the files of an archive, with its card as the page of the repository.

    What the repository held of other methods goes.

    Args:
        source: A workspace, or an archive of `ccot export`.
        repository: `user/name`; it is made if it does not exist.
        keys: Of methods of the workspace, as for `export.run`.
        is_public: Make a repository that everybody can see.

    Raises:
        UsageError: if there is no such workspace or archive.
        MissingError: if a method was not trained.
        CorruptError: if a file is damaged.
        ResourceError: if the hub is out of reach, or refuses.
    """
    from huggingface_hub import HfApi, get_token

    if is_offline():
        raise ResourceError("the hub is switched off by HF_HUB_OFFLINE", fix="unset HF_HUB_OFFLINE")
    if not get_token():
        raise ResourceError(
            "uploading needs a token of the Hugging Face hub that may write", fix="hf auth login, or set HF_TOKEN"
        )
    with TemporaryDirectory() as temporary:
        folder = Path(temporary, "files")
        folder.mkdir()
        if (source / SETTINGS_FILE).is_file() and not (source / INDEX_FILE).is_file():
            archive = Path(temporary, "archive.zip")
            export.run(Workspace.open(source), archive, keys)
        elif keys:
            raise UsageError("methods are chosen from a workspace, not from an archive", fix="leave out --method")
        else:
            archive = source
        index = unpack(archive, folder)
        with _explaining(repository):
            api = HfApi()
            url = api.create_repo(repository, private=not is_public, exist_ok=True)
            api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                commit_message=f"Methods trained with ccot {index.ccot}",
                delete_patterns=[*(f"{each}/*" for each in FOLDERS), RESULTS_FILE],
            )
    methods = [f"{each.stage}/{each.key}" for each in index.methods]
    return PushResult(str(url), methods, not is_public, index.model.is_local)


def fetch(repository: str, folder: Path) -> None:
    """Download a repository's files into a folder.

    Raises:
        ResourceError: if the hub is out of reach, or refuses.
    """
    from huggingface_hub import HfApi

    with _explaining(repository):
        HfApi().snapshot_download(repository, local_dir=folder)


@contextmanager
def _explaining(repository: str) -> Iterator[None]:
    """Turn errors of the hub, and of the way to it, into one that says what to do.

    Raises:
        UsageError: if the hub cannot have a repository of this name.
        ResourceError: else.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        yield
    except HFValidationError as error:
        raise UsageError(f"no repository is called {repository!r}: {error}", fix="name it as user/name") from None
    # The hub's library has changed what it connects with, and each has errors of its own.
    except Exception as error:
        if is_full(error):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fix = "check the name and the network; hf auth whoami tells whose token is used"
        raise ResourceError(f"the hub did not do it for {repository}: {reason}", fix=fix) from error
