"""Pause tokens, as they are used."""

from pathlib import Path

import pytest
import torch
from conftest import MakeTheta, shaken

from ccot_cli.config import DecodingConfig
from ccot_cli.errors import CorruptError
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.models.methods.pause import PauseMethod, add_pauses, load_pause, save_pause

PAUSE = torch.randn(1, 32, generator=torch.Generator().manual_seed(0))


def test_rows_may_have_different_numbers_of_pause_tokens(llama: Theta) -> None:
    adapters = shaken(llama, PSI)
    queries = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    sequence, _ = encode_query(adapters, queries, layer=llama.num_layers, adapter=PSI)
    add_pauses(llama, sequence, PAUSE, [2, 0, 1])
    assert sequence.mask_BS.sum(dim=1).tolist() == [6, 2, 4]


@torch.no_grad()
def test_gpt2_is_given_no_pause_token_beyond_its_last_position(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    adapters, most = shaken(theta, PSI), theta.blocks.num_positions
    assert most is not None
    reserved = len(theta.encoder.answer_marker) + 3
    method = PauseMethod(adapters, MethodInfo("pause", "0.1", num_tokens=8), DecodingConfig(max_answer_tokens=3), PAUSE)
    prepared = method.prepare([[5] * (most - reserved - 2), [6] * 4])
    assert prepared.num_tokens == [2, 8]
    assert prepared.is_capped == [True, False]


def test_a_pause_token_survives_saving_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    save_pause(PAUSE, tmp_path)
    assert torch.equal(load_pause(tmp_path, 32), PAUSE)
    with pytest.raises(CorruptError, match="width 64"):
        load_pause(tmp_path, 64)
    (tmp_path / "pause.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(CorruptError, match="cannot be read"):
        load_pause(tmp_path, 32)
