"""Records on disk: what was added comes back, while memory is used again."""

import shutil
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ccot_cli.data import shards
from ccot_cli.data.shards import Record, ShardWriter, missing_shards, read_records, shard_paths
from ccot_cli.errors import CorruptError

ROW_BYTES = 3 * 8 * 2


def _record(number: int, num_rows: int) -> Record:
    states_JID = torch.randn(num_rows, 3, 8, generator=torch.Generator().manual_seed(number)).bfloat16()
    return Record(number, states_JID, torch.arange(num_rows) + number, torch.arange(num_rows))


def _written(folder: Path, rows: list[int], max_rows: int) -> list[Record]:
    with ShardWriter(folder, max_rows * ROW_BYTES) as writer:
        for number, num_rows in enumerate(rows):
            record = _record(number, num_rows)
            writer.add(record)
            record.states_JID.zero_()  # the caller's memory is its own again
    return list(read_records(folder))


def test_one_index_is_read_alone(tmp_path: Path) -> None:
    _written(tmp_path, [4, 3, 5], max_rows=8)
    for record, one in zip(read_records(tmp_path), read_records(tmp_path, indices=slice(2, 3)), strict=True):
        assert one.number == record.number
        assert torch.equal(one.states_JID, record.states_JID[:, 2:3])


def test_records_come_back_while_writing_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = shards.save_file

    def slowly(tensors: dict[str, Tensor], path: Path) -> None:
        time.sleep(0.02)
        save(tensors, path)

    monkeypatch.setattr(shards, "save_file", slowly)
    rows = [4, 3, 5, 2, 6, 1, 7, 3, 4]
    found = _written(tmp_path, rows, max_rows=8)
    assert [record.number for record in found] == list(range(len(rows)))
    for record, num_rows in zip(found, rows, strict=True):
        expected = _record(record.number, num_rows)
        assert torch.equal(record.states_JID, expected.states_JID)
        assert torch.equal(record.token_ids_J.long(), expected.token_ids_J)
        assert torch.equal(record.positions_J.long(), expected.positions_J)


def test_a_shard_holds_no_more_than_was_allowed_but_for_a_larger_record(tmp_path: Path) -> None:
    _written(tmp_path, [4, 3, 2, 20, 2, 6, 7, 5], max_rows=8)
    sizes = []
    for path in shard_paths(tmp_path):
        with shards.safe_open(path, framework="pt") as shard:
            sizes.append(len(shard.get_tensor("positions")))
    assert sizes == [7, 2, 20, 8, 7, 5]


@pytest.mark.parametrize("name", ["shard-00000 (copy)", "shard-0", "shard-old", "my-shard-00000"])
def test_a_foreign_file_is_no_shard(tmp_path: Path, name: str) -> None:
    written = _written(tmp_path, [4, 3], max_rows=8)
    shutil.copy(tmp_path / "shard-00000.safetensors", tmp_path / f"{name}.safetensors")
    assert [record.number for record in read_records(tmp_path)] == [record.number for record in written]
    assert missing_shards(tmp_path, [[0, 1]], num_indices=3) == []
    assert (tmp_path / f"{name}.safetensors").exists()


def test_a_problem_that_comes_twice_is_damage(tmp_path: Path) -> None:
    _written(tmp_path, [4, 3], max_rows=8)
    shutil.copy(tmp_path / "shard-00000.safetensors", tmp_path / "shard-00001.safetensors")
    for wanted in (None, {1}):
        with pytest.raises(CorruptError, match=r"shard-00001\.safetensors holds problem [01] a second time"):
            list(read_records(tmp_path, wanted=wanted))


@pytest.mark.parametrize("tensor", ["states", "token_ids", "positions", "numbers", "offsets"])
def test_a_shard_without_one_of_its_tensors_is_damage(tmp_path: Path, tensor: str) -> None:
    _written(tmp_path, [4, 3], max_rows=8)
    path = tmp_path / "shard-00000.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(f'"{tensor}"'.encode(), f'"{tensor[:-1]}x"'.encode()))
    with pytest.raises(CorruptError, match=rf"shard-00000\.safetensors is damaged: .*{tensor}"):
        list(read_records(tmp_path))
