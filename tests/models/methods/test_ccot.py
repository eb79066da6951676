"""CCoT, as it is used."""

import torch
from conftest import MakeTheta, shaken

from ccot_cli.config import DecodingConfig
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.tensors.probes import Logistic, Probe


@torch.no_grad()
def test_gpt2_is_given_no_contemplation_token_beyond_its_last_position(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    adapters, most, width = shaken(theta, PSI), theta.blocks.num_positions, theta.model.config.hidden_size
    assert most is not None
    reserved = len(theta.encoder.answer_marker) + 3
    never = Logistic(torch.zeros(width), torch.tensor(-1.0))
    draft = Draft(Probe(torch.zeros(width + 1, 1), torch.tensor([5])), 1.0)
    info, decoding = MethodInfo("ccot", "0.1", 2), DecodingConfig(max_answer_tokens=3)
    method = CcotMethod(adapters, info, decoding, End(never, never), draft)
    prepared = method.prepare([[5] * (most - reserved - 2), [6] * 4])
    assert prepared.num_tokens == [2, 20]
