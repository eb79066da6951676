"""CCoT, as it is used."""

import pytest
import torch
from conftest import MakeTheta, shaken

from ccot_cli.config import DecodingConfig, EngineName
from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import Contemplation, contemplate
from ccot_cli.models.decoding.thoughts import read_thoughts
from ccot_cli.models.methods import ccot
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


def make_method(theta: Theta, engine: EngineName, *, reads_thoughts: bool) -> CcotMethod:
    width = theta.model.config.hidden_size
    weight = torch.randn(width, generator=torch.Generator().manual_seed(4)) / width
    end = End(Logistic(weight, torch.tensor(-0.5)), Logistic(-weight, torch.tensor(0.0)))
    draft = Draft(Probe(torch.zeros(width + 1, 1), torch.tensor([5])), 0.0)
    decoding = DecodingConfig(max_answer_tokens=3, engine=engine)
    adapters = shaken(theta, PHI, PSI)
    return CcotMethod(adapters, MethodInfo("ccot", "0.02", 2), decoding, end, draft, reads_thoughts=reads_thoughts)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_thoughts_are_those_of_the_one_generation_that_answered(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch, engine: EngineName
) -> None:
    generated: list[Contemplation] = []

    def watched(*arguments: object, **named: object) -> Contemplation:
        generated.append(contemplate(*arguments, **named))  # type: ignore[arg-type]
        return generated[-1]

    monkeypatch.setattr(ccot, "contemplate", watched)
    questions = ["Mia has 12 pens.", "Mia has 12 pens. Ben has 3 cups. How many pens?"]
    method = make_method(make_theta("llama"), engine, reads_thoughts=True)
    replies, _ = method.reply(questions)
    [tokens] = generated
    assert [reply.thoughts for reply in replies] == read_thoughts(method.theta, method.end, tokens)
    assert [len(reply.thoughts or ()) for reply in replies] == [reply.num_contemplation for reply in replies]
    unread, _ = make_method(make_theta("llama"), engine, reads_thoughts=False).reply(questions)
    assert unread == replies
    assert [reply.thoughts for reply in unread] == [None, None]
