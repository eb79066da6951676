"""The script that trains θ, on several ranks."""

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from ranks_running import on_ranks
from safetensors.torch import load_file
from torch.nn.utils import parameters_to_vector
from transformers import PreTrainedTokenizerFast

from ccot_cli import ranks
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER
from examples.scripts import script

PEOPLE = [
    (f"Ana has {number} pens. She buys 2.", f"{number} + 2 = {number + 2}\n#### {number + 2}") for number in range(9)
]


@pytest.fixture
def theta(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    theta = script("train_theta.py")
    monkeypatch.setattr(theta, "BUILD_FOLDER", tmp_path)
    monkeypatch.setattr(theta, "POOL_BATCHES", 1)
    monkeypatch.setattr(theta, "CHECKPOINT_STEPS", 2)
    return theta


def test_ranks_learn_what_one_process_does(theta: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(EMBEDDED_FOLDER), Template())

    def train() -> tuple[torch.Tensor, list[dict[str, float]]]:
        model = theta.make_model(encoder.tokenizer, 32)
        theta.train_phase(model, encoder, 0, PEOPLE, phases=(theta.Phase(3, 1, 0.0),), in_bfloat16=False)
        lines = ranks.first(lambda: theta.read_lines(theta.BUILD_FOLDER / "theta-0.jsonl"))
        return parameters_to_vector(model.parameters()).detach(), lines

    first, second = on_ranks(2, train)
    # What is there already is not trained again, whatever the weights were before.
    resumed, lines = train()
    monkeypatch.setattr(theta, "BUILD_FOLDER", tmp_path / "alone")
    monkeypatch.setattr(theta, "CPU_ROWS", theta.BATCH_SIZE)  # a whole batch in one backward pass
    theta.BUILD_FOLDER.mkdir()
    alone, expected = train()
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0], resumed)
    torch.testing.assert_close(first[0], alone, atol=1e-4, rtol=1e-3)
    assert [line["step"] for line in lines] == [line["step"] for line in expected] == [2, 3]
    for name in ("loss", "right"):
        assert [line[name] for line in lines] == pytest.approx([line[name] for line in expected], rel=1e-3)


def test_a_training_goes_on_with_a_tokenizer_that_knows_more_words(theta: ModuleType, tmp_path: Path) -> None:
    old, new = (
        theta.train_tokenizer(["two wi ves and a wi fe", *texts], num_words=300)
        for texts in ([], ["my wife and her wife"] * 9)
    )
    trained = theta.make_model(old, 32)
    trained.model.embed_tokens.parametrizations.weight[0].digits.data.normal_()
    plain = theta.with_plain_vectors(trained)
    plain.save_pretrained(tmp_path)
    old.save_pretrained(tmp_path)

    model = theta.make_model(new, 32)
    theta.load_weights(model, new, tmp_path)
    vectors_VD, old_VD = model.model.embed_tokens.weight, plain.model.embed_tokens.weight
    word = new.convert_tokens_to_ids("Ġwife")
    assert len(pieces := old.encode(" wife", add_special_tokens=False)) > 1
    assert new.encode(" wife", add_special_tokens=False) == [word]
    assert torch.equal(vectors_VD[word], old_VD[pieces].mean(dim=0))
    for known in ("7", "Ġ312", "</s>"):
        assert torch.equal(vectors_VD[new.convert_tokens_to_ids(known)], old_VD[old.convert_tokens_to_ids(known)])
    ids_BT, old_ids_BT = (torch.tensor([each.encode("12 + 30 = 42")]) for each in (new, old))
    with torch.no_grad():
        states_BTD = model.model(input_ids=ids_BT).last_hidden_state
        torch.testing.assert_close(states_BTD, plain.model(input_ids=old_ids_BT).last_hidden_state)


def test_a_training_that_goes_on_has_problems_of_its_own(theta: ModuleType, tmp_path: Path) -> None:
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(EMBEDDED_FOLDER), Template())

    def loss(run: int) -> float:
        model = theta.make_model(encoder.tokenizer, 32)
        phases = (theta.Phase(1, 1, 0.0),)
        theta.train_phase(model, encoder, 0, PEOPLE, phases=phases, in_bfloat16=False, batch_size=4, run=run)
        serial = len(theta.PHASES) * run
        (tmp_path / f"theta-{serial}.safetensors").unlink()
        [line] = theta.read_lines(tmp_path / f"theta-{serial}.jsonl")
        return float(line["loss"])

    assert loss(1) == loss(1) != loss(0)


def test_a_training_that_goes_on_uses_nothing_that_lies_there_of_the_one_before(
    theta: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shipped, people = tmp_path / "shipped", tmp_path / "people.jsonl"
    monkeypatch.setattr(theta, "EMBEDDED_FOLDER", shipped)
    monkeypatch.setattr(theta, "PHASES", (theta.Phase(1, 1, 0.0), theta.Phase(1, 1, 0.0)))
    monkeypatch.setattr(theta, "NUM_TOKENIZER_PROBLEMS", 20)
    weights = []
    for word, start in (("pens", None), ("zithers", shipped)):
        rows = [
            {
                "question": f"Ana has {number} {word}. She buys 2.",
                "answer": f"<<{number}+2={number + 2}>>\n#### {number + 2}",
            }
            for number in range(9)
        ]
        people.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        theta.main([people], device="cpu", batch_size=2, start=start, steps=1)
        assert f"Ġ{word}" in PreTrainedTokenizerFast.from_pretrained(shipped).get_vocab()
        weights.append(load_file(shipped / "model.safetensors")["model.layers.0.mlp.up_proj.weight"])
    assert not torch.equal(*weights)
    assert [run["steps"] for run in json.loads((shipped / "training.json").read_text())] == [2, 1]
    assert sorted(path.name for path in tmp_path.glob("theta-*.jsonl")) == [
        f"theta-{serial}.jsonl" for serial in range(3)
    ]


def test_processes_make_the_same_batches(theta: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(EMBEDDED_FOLDER), Template())
    make_pool = theta.PoolMaker(encoder, 0, theta.Phase(99, 2, 0.0), PEOPLE, [], batch_size=2)
    monkeypatch.setattr(theta, "POOL_BATCHES", 32)  # as in the processes, which import the script anew

    def made(first: int, workers: int) -> list[tuple[list[list[int]], list[list[float]]]]:
        batches = theta.make_batches(make_pool, range(first, 70), workers=workers)
        return [(ids_BT.tolist(), weight_BT.tolist()) for ids_BT, weight_BT in batches]

    whole = made(0, 0)
    assert len(whole) == 70
    assert made(0, 2) == whole
    # A training that resumes goes on within a pool.
    assert made(40, 0) == whole[40:]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_a_compiled_model_learns_the_same(theta: ModuleType) -> None:
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(EMBEDDED_FOLDER), Template())
    make_pool = theta.PoolMaker(encoder, 0, theta.Phase(3, 2, 0.0), PEOPLE, [], batch_size=4)
    batches = list(theta.make_batches(make_pool, range(3)))

    def train(*, compiles: bool) -> tuple[torch.Tensor, list[tuple[float, float]]]:
        model = theta.make_model(encoder.tokenizer, 32)
        model.model.layers = model.model.layers[:2]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(5)  # so that the layers matter
        if compiles:
            theta.compile_layers(model)
        training = theta.ThetaTraining(model, 0, False, [theta.Phase(3, 2, 0.0)])
        figures = [training.train_on(*batch) for batch in batches]
        return parameters_to_vector(model.parameters()).detach(), figures

    plain, expected = train(compiles=False)
    compiled, figures = train(compiles=True)
    torch.testing.assert_close(compiled, plain, atol=1e-5, rtol=1e-4)
    assert figures == [pytest.approx(each, rel=1e-5) for each in expected]
