"""What θ of a width learns: its loss and its solutions, against the model's own loss and its own writing."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.models.base.pretrained import EMBEDDED_FOLDER
from examples.scripts import script

SOLVED = [
    (f"Ana has {first} pens. She buys {second} more. How many pens does she have?", f"{first} + {second} = {total}")
    for first, second, total in ((1, 2, 3), (40, 6, 46), (7, 7, 14), (12, 30, 42), (5, 5, 10))
]
PROBLEMS = [(question, f"{line}.\n#### {line.split()[-1]}") for question, line in SOLVED]


@pytest.fixture(scope="module")
def size() -> ModuleType:
    return script("theta_size.py")


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(PreTrainedTokenizerFast.from_pretrained(EMBEDDED_FOLDER), Template())


def test_loss_and_solutions_are_those_of_the_saved_model(size: ModuleType, encoder: Encoder) -> None:
    from train_theta import Phase, ThetaTraining, make_model, with_plain_vectors

    model = make_model(encoder.tokenizer, 32)
    training = ThetaTraining(model, 0, in_bfloat16=False, phases=(Phase(400, 1, 0.0),))
    [batch] = size.batches(encoder, PROBLEMS[:3])
    for _ in range(300):  # Until some solutions are known by heart, and others are not.
        training.train_on(*batch)
    measured = size.measure(model, size.batches(encoder, PROBLEMS))
    plain, loss, tokens, right = with_plain_vectors(model), 0.0, 0, []
    for told in PROBLEMS:
        ids, weights = size.encode(encoder, told, question_weight=0.0)
        start = int(len(weights) - sum(weights))
        labels = torch.tensor([[-100] * start + ids[start:]])
        with torch.no_grad():
            loss += plain(input_ids=torch.tensor([ids]), labels=labels).loss.item() * (len(ids) - start)
            tokens += len(ids) - start
            written = plain.generate(
                torch.tensor([ids[:start]]), do_sample=False, max_new_tokens=len(ids) - start, pad_token_id=0
            )
        right.append(written[0].tolist() == ids)
    assert right[:3] == [True] * 3
    assert not all(right)
    assert measured["loss"] == pytest.approx(loss / tokens, rel=1e-4)
    assert measured["right"] == sum(right) / len(right)


def test_a_stopped_run_comes_to_the_same_figures(
    size: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"question": f"Ana has {number} pens and buys 2.", "answer": f"<<{number}+2={number + 2}>>\n#### {number + 2}"}
        for number in range(60)
    ]
    people = tmp_path / "people.jsonl"
    people.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setattr(size, "MOST_STEPS", 1)

    def run(folder: str) -> list[dict[str, object]]:
        monkeypatch.setattr(size, "BUILD_FOLDER", tmp_path / folder)
        (tmp_path / folder).mkdir(exist_ok=True)
        size.main(people, width=[32], steps=4, every=2, limit=3, output=tmp_path / folder)
        found = json.loads((tmp_path / folder / "theta-size.json").read_text())
        names = [column["name"] for column in found["columns"]]
        rows = [dict(zip(names, row, strict=True)) for row in found["rows"]]
        return [{name: value for name, value in row.items() if name != "minutes"} for row in rows]

    whole = run("whole")
    assert [row["steps"] for row in whole] == [2, 4]
    measure, calls = size.measure, iter(range(99))

    def stopping(*arguments: object) -> object:
        if next(calls) == 3:  # after three kinds of problems at step 2
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(size, "measure", stopping)
    with pytest.raises(KeyboardInterrupt):
        run("half")
    assert run("half") == whole
