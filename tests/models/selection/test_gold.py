"""Gold states against the model's own forward pass over whole solutions."""

import pytest
import torch
from conftest import MakeTheta, encoded_problems

from ccot_cli.data.problems import Problem
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.selection.gold import gold_states


def test_gold_states_are_those_of_the_whole_solution_at_every_index(theta: Theta) -> None:
    problems = encoded_problems(theta, 3)
    found = dict(
        gold_states(theta, problems, indices=range(theta.num_layers + 1), batch_tokens=300, dtype=torch.float32)
    )
    for number, problem in enumerate(problems):
        ids = [*problem.query, *problem.chain, *theta.encoder.answer_marker, *problem.answer]
        hidden = theta.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
        start = len(problem.query) - 1
        for index in range(theta.num_layers):  # transformers' last index is after the norm
            expected = hidden[index][0, start : start + 1 + len(problem.chain)]
            torch.testing.assert_close(found[number][:, index], expected)


def test_two_passes_over_gold_states_give_the_same_bits(llama: Theta) -> None:
    problems = encoded_problems(llama, 5)
    every = dict(gold_states(llama, problems, indices=range(5), batch_tokens=400, dtype=torch.bfloat16))
    one = dict(gold_states(llama, problems, indices=[3], batch_tokens=400, dtype=torch.bfloat16))
    rest = dict(
        gold_states(llama, problems, indices=range(5), batch_tokens=400, dtype=torch.bfloat16, wanted={2, 3, 4})
    )
    assert all(torch.equal(every[number][:, 3:4], one[number]) for number in range(5))
    assert sorted(rest) == [2, 3, 4]
    assert all(torch.equal(every[number], rest[number]) for number in rest)


def test_no_layer_runs_above_the_indices_that_are_asked_for(llama: Theta, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, run = [], llama.blocks.run

    def counted(hidden_BTD: torch.Tensor, first: int, last: int, sequence: CachedSequence) -> torch.Tensor:
        ran.extend(range(first, last))
        return run(hidden_BTD, first, last, sequence)

    monkeypatch.setattr(llama.blocks, "run", counted)
    list(gold_states(llama, encoded_problems(llama, 1), indices=[0, 2], batch_tokens=400, dtype=torch.bfloat16))
    assert ran == [0, 1]


def test_where_memory_is_short_hidden_states_come_from_smaller_batches(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch
) -> None:
    theta = make_theta("llama")
    told = [Problem("", "Mia has 3 pens. " * count, "3 + 4 = 7", "7") for count in range(1, 6)]
    problems = [theta.encoder.problem(each) for each in told]
    options = {"indices": range(theta.num_layers + 1), "batch_tokens": 4096, "dtype": torch.float32}
    expected = dict(gold_states(theta, problems, **options))  # type: ignore[arg-type]
    sizes, enter = [], theta.blocks.enter

    def short(inputs_BTD: torch.Tensor, sequence: CachedSequence) -> torch.Tensor:
        sizes.append(len(inputs_BTD))
        if len(inputs_BTD) > 2:
            raise MemoryError
        return enter(inputs_BTD, sequence)

    monkeypatch.setattr(theta.blocks, "enter", short)
    found = dict(gold_states(theta, problems, **options))  # type: ignore[arg-type]
    assert sizes == [5, 2, 3, 1, 2]
    assert found.keys() == expected.keys()
    for number, states in expected.items():
        torch.testing.assert_close(found[number], states, atol=1e-5, rtol=1e-4)
