"""Bit flip, truncation, empty file, trailing bytes: each is noticed in every kind of file."""

import random
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pytest
from workspace.making import asked

from ccot_cli.cli.app import run
from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.settings_file import load_settings
from ccot_cli.workspace import upkeep
from ccot_cli.workspace.workspace import Workspace
from faults.conftest import Tally

KINDS = {
    "manifest.json",
    "problems.jsonl",
    "shard-00000.safetensors",
    "selector.json",
    "announcements.safetensors",
    "adapter_model.safetensors",
    "adapter_config.json",
    "training.json",
    "end.safetensors",
    "draft.safetensors",
    "method.json",
    "log.jsonl",
    "queries",
}
"""What a workspace keeps, apart from its settings."""


def flip(content: bytes, generator: random.Random) -> bytes:
    at = generator.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << generator.randrange(8)]) + content[at + 1 :]


def damages(content: bytes, flips: int, generator: random.Random) -> Iterator[bytes]:
    """Yield a content with a flipped bit, several times, then cut, emptied and with a byte too many."""
    for _ in range(flips):
        yield flip(content, generator)
    yield content[: generator.randrange(len(content))]
    yield b""
    yield content + b"\0"


def kept_files(workspace: Workspace) -> list[Path]:
    files = (path for path in workspace.root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(path for path in files if path.name != "ccot.yaml")


def every_damage_is_found(workspace: Workspace, flips: int, tally: Tally) -> None:
    files, generator, tried, unseen = kept_files(workspace), random.Random(0), 0, []
    assert {path.name if path.suffix != ".bin" else "queries" for path in files} == KINDS
    assert upkeep.verify(workspace).damages == []
    for path in files:
        sound = path.read_bytes()
        for damaged in damages(sound, flips, generator):
            path.write_bytes(damaged)
            found = upkeep.verify(workspace).damages
            named = {path, path.parent} if path.name == "manifest.json" else {path}
            tried += 1
            unseen += [path] if len(found) != 1 or found[0].path not in named else []
        path.write_bytes(sound)
    tally("flips and cuts", tried=tried, unseen=len(unseen))
    assert unseen == []
    assert upkeep.verify(workspace).damages == []


def test_one_flip_a_cut_and_a_byte_too_many_are_found_in_every_file(trained: Path, tally: Tally) -> None:
    every_damage_is_found(Workspace.open(trained), 1, tally)


@pytest.mark.slow
def test_many_flips_are_found_in_every_file(trained: Path, tally: Tally) -> None:
    every_damage_is_found(Workspace.open(trained), 100, tally)


def test_what_repair_removes_comes_back_byte_by_byte(trained: Path) -> None:
    lost = [path for path in kept_files(Workspace.open(trained)) if path.parts[-2] in ("precompute", "r0.10")]
    lost = [path for path in lost if "train" not in str(path.relative_to(trained)) and path.name != "manifest.json"]
    before = {path: path.read_bytes() for path in lost}
    assert {path.name for path in lost} >= {"problems.jsonl", "shard-00000.safetensors", "selector.json"}
    for path in lost:
        path.write_bytes(flip(before[path], random.Random(1)))
    assert run(["verify", "--repair"]) == 0
    assert not any(path.exists() for path in lost)
    assert run(["precompute"]) == run(["score"]) == run(["verify"]) == 0
    assert {path: path.read_bytes() for path in lost} == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"name": "ccot", "name": "pause", "ratio": "0.1"}',
        '{"name": "magic", "ratio": "0.1"}',
        '{"name": "ccot", "ratio": "0.1x"}',
        '{"name": "ccot", "ratio": "7"}',
        '{"name": "ccot", "ratio": "0.1", "autoregressive_layer": "3"}',
        '{"name": "ccot", "ratio": "0.1", "num_tokens": NaN}',
        '{"name": "ccot", "ratio": "0.1", "num_tokens": -1}',
        '{"name": "ccot", "ratio": "0.1", "unknown": 1}',
        '{"name": "ccot", "ratio": "0.1", "query_under": "chi"}',
    ],
)
def test_a_description_of_a_method_that_says_nonsense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "method.json").write_text(text)
    with pytest.raises(CorruptError, match=r"method\.json cannot be read"):
        MethodInfo.load(tmp_path)


def test_a_description_that_was_saved_is_read(tmp_path: Path) -> None:
    info = MethodInfo("ccot", f"{Decimal('0.1'):f}", 7, 0, "phi")
    info.save(tmp_path)
    assert MethodInfo.load(tmp_path) == info


def test_a_flip_in_the_settings_is_refused_or_is_another_setting(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "my-run", "embedded")
    path, generator = workspace.root / "ccot.yaml", random.Random(0)
    sound = path.read_bytes()
    for _ in range(40):
        path.write_bytes(flip(sound, generator))
        with suppress(UsageError):  # exit code 2
            load_settings(path)


def test_a_flip_in_a_draft_costs_work_but_changes_no_result(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "my-run", "embedded")
    folder, generator = workspace.folder("precompute"), random.Random(0)

    def make(stops: bool) -> None:
        with workspace.building(asked()) as build:
            build.drop_unknown()
            for name in ("a", "b"):
                if not (build.folder / name).exists():
                    (build.folder / name).write_text(name)
                    build.hash_early(build.folder / name)
            if stops:
                raise KeyboardInterrupt

    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            make(stops=True)
        draft = folder / "building.json"
        draft.write_bytes(flip(draft.read_bytes(), generator))
        make(stops=False)
        made = workspace.require("precompute")
        assert {path.name: path.read_text() for path in made.folder.glob("[ab]")} == {"a": "a", "b": "b"}
        assert not list(made.damaged())
        (folder / "manifest.json").unlink()
        (folder / "a").unlink()
