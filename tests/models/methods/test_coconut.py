"""Latent thoughts, as they are used."""

from dataclasses import replace

import torch
from conftest import MakeTheta, shaken

from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.coconut import CoconutMethod


@torch.no_grad()
def test_gpt2_is_given_no_thought_beyond_its_last_position(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    adapters, most = shaken(theta, PSI), theta.blocks.num_positions
    assert most is not None
    reserved = len(theta.encoder.answer_marker) + 3
    method = CoconutMethod(adapters, 9, adapter=PSI, num_thoughts=8, reserved=reserved)
    queries = [[5] * (most - reserved - 2), [6] * 4]
    sequence, last = encode_query(adapters, queries, layer=theta.num_layers, adapter=PSI)
    assert method.think(sequence, last) == [2, 8]
    asked = next(text for count in range(most, 0, -1) if len(theta.encoder.query(text := "pens " * count)) <= most - 4)
    replies, _ = method.reply([asked])
    assert replies[0].num_contemplation >= 1
    # Fewer thoughts than were asked for are a cut, whether the text came to its end or not.
    cut = replace(method, num_thoughts=2 * most, is_done=lambda ids: True)
    assert cut.reply(["Who?"])[0][0].is_truncated
    assert not replace(cut, num_thoughts=2).reply(["Who?"])[0][0].is_truncated
