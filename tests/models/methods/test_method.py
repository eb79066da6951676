"""All methods answer in parts if memory is short, and read the same answer from the same words."""

from dataclasses import replace
from decimal import Decimal

import pytest
import torch
from conftest import MakeTheta, shaken

from ccot_cli.config import DecodingConfig, Settings
from ccot_cli.data.answers import is_correct
from ccot_cli.data.problems import Problem
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.errors import ResourceError
from ccot_cli.models.base.adapters import Adapters
from ccot_cli.models.decoding.psi import Text
from ccot_cli.models.methods import chain, method
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.direct import DirectMethod
from ccot_cli.models.methods.method import Method, MethodInfo, Reply, Seconds, confidence, reply_in_parts
from ccot_cli.models.methods.prompting import prompted
from ccot_cli.stages.methods import find_methods


@pytest.mark.parametrize(
    "fault", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: not enough memory")]
)
def test_where_memory_is_short_batches_are_halved_and_answers_stay(
    monkeypatch: pytest.MonkeyPatch, fault: RuntimeError
) -> None:
    direct = find_methods(None, Settings()).load(Decimal(0))
    questions = ["Mia buys 2 more pens. " * number + "How many pens does Mia have?" for number in range(7)]
    expected, _ = direct.reply(questions)
    sizes, whole = [], type(direct).reply

    def reply(self: Method, batch: list[str]) -> tuple[list[Reply], Seconds]:
        sizes.append(len(batch))
        if len(batch) > room:
            raise fault
        return whole(self, batch)

    monkeypatch.setattr(type(direct), "reply", reply)
    room = 2
    found, seconds = reply_in_parts(direct, questions)
    assert found == expected
    assert len({reply.answer for reply in found}) > 1
    assert sizes == [7, 3, 1, 2, 4, 2, 2]
    assert seconds.total > 0
    room = 0
    with pytest.raises(ResourceError, match="single question"):
        reply_in_parts(direct, questions)
    monkeypatch.setattr(type(direct), "reply", lambda self, batch: (_ for _ in ()).throw(RuntimeError("another")))
    with pytest.raises(RuntimeError, match="another"):
        reply_in_parts(direct, questions)


def test_a_written_answer_stands_behind_the_model_s_own_marker(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_theta("llama")
    theta = replace(made, encoder=Encoder(made.encoder.tokenizer, Template(answer_marker="\n= :")))
    writer = ChainMethod(Adapters(theta), 99)

    def read(text: str, *, is_capped: bool = False) -> str:
        """The answer of a method that decodes this text."""
        ids = theta.encoder.tokenizer(text, add_special_tokens=False).input_ids
        monkeypatch.setattr(chain, "decode", lambda *_, **__: Text([ids], [is_capped], [[0.5] * len(ids)]))
        [reply], _ = writer.reply(["How many pens?"])
        assert (reply.text, reply.is_truncated) == (theta.encoder.decode(ids), is_capped)
        return reply.answer

    assert read("12 + 7 = 19\n= : more pens than 8", is_capped=True) == "more pens than 8"
    assert read("12 + 7 = 19\n= : 19 pens\nin all") == "19 pens"
    assert read("12 + 7 = 19\n#### 19") == "19"
    assert read("12 + 7 = 19") == "19"
    assert read("12 + 7 = 19", is_capped=True) == ""


def test_the_confidence_is_the_least_chance_of_a_token_with_a_digit(make_theta: MakeTheta) -> None:
    theta = make_theta("llama")
    ids = theta.encoder.tokenizer(" 12 + 7 = 19.", add_special_tokens=False).input_ids
    chances = [0.9, 0.2, 0.6, 0.3, 0.8, 0.1]
    assert confidence(theta, ids, chances) == 0.6
    assert confidence(theta, ids[1:2], chances[1:2]) == 0.0


@pytest.mark.parametrize("text", [" 18", " 18 pens", " 1,800\n7", " $18.00", " blue whale", "\n18", ""])
def test_every_method_reads_the_same_answer_from_the_same_words(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    theta = make_theta("llama")
    adapters = shaken(theta)
    marker, said = theta.encoder.answer_marker, theta.encoder.tokenizer(text, add_special_tokens=False).input_ids
    direct = DirectMethod(adapters, MethodInfo("direct", "0"), DecodingConfig())
    answers = []
    for way, module, ids in ((direct, method, said), (ChainMethod(adapters, 99), chain, [*marker, *said])):
        monkeypatch.setattr(module, "decode", lambda *_, ids=ids, **__: Text([ids], [True], [[0.5] * len(ids)]))
        [reply], _ = way.reply(["How many pens?"])
        answers.append(reply.answer)
    assert answers[0] == answers[1]
    assert is_correct(answers[0], "18") == (text in {" 18", " 18 pens", " $18.00"})


def test_a_prompt_that_fills_the_positions_is_answered_with_nothing(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    shots, most = [Problem("1", "Who?", "3 + 4 = 7", "7")], theta.blocks.num_positions
    assert most is not None
    method = prompted(ChainMethod(Adapters(theta), 5), "few-shot", shots)

    def length(question: str) -> int:
        return len(theta.encoder.query(method.phrase(question)))

    # The prompt's last token is fed with the text.
    full = next(question for count in range(most) if length(question := "pens " * count) == most + 1)
    [reply, other], _ = method.reply([full, "Why?"])
    assert (reply.text, reply.is_truncated) == ("", True)
    assert other.text
