"""The theorem's experiment: its functions, its cells, and its transformers."""

import math
from types import ModuleType

import pytest
import torch

from examples.scripts import script


@pytest.fixture(scope="module")
def theory() -> ModuleType:
    return script("research/width_and_depth.py")


def test_the_operation_is_not_associative_and_loses_nothing(theory: ModuleType) -> None:
    for seed in range(20):
        table = theory.latin_square(torch.Generator().manual_seed(seed))
        values = list(range(theory.NUM_VALUES))
        assert all(sorted(row.tolist()) == values for row in (*table, *table.T))
        assert any(table[table[a, b], c] != table[a, table[b, c]] for a in values for b in values for c in values)
        # What the second arguments do to the first, one after another, is any permutation: a chain is no sum.
        steps = reached = {tuple(column) for column in table.T.tolist()}
        while more := {tuple(step[value] for value in each) for each in reached for step in steps} - reached:
            reached = reached | more
        assert len(reached) == math.factorial(theory.NUM_VALUES)


def test_answers_are_votes_over_compositions_from_the_left(theory: ModuleType) -> None:
    task = theory.Task(theory.Cell(4, 3, "none", 0), seed=1)
    inputs = task.draw(50, torch.Generator().manual_seed(2))
    answers, _ = task.answers(inputs)
    for values, answer in zip(inputs.tolist(), answers.tolist(), strict=True):
        results = [int(task.table_VV[task.table_VV[values[a], values[b]], values[c]]) for a, b, c in task.subsets_MK]
        assert answer == max(range(theory.NUM_VALUES), key=lambda value: (results.count(value), -value))


def test_what_is_held_out_is_never_drawn(theory: ModuleType) -> None:
    task = theory.Task(theory.Cell(3, 2, "none", 0), seed=1)
    drawn = {tuple(row) for row in task.draw(20_000, torch.Generator().manual_seed(2)).tolist()}
    held_out = {tuple(row) for row in task.held_out_BN.tolist()}
    assert len(held_out) == theory.HELD_OUT
    assert drawn.isdisjoint(held_out)
    assert len(drawn) > 2000


def test_the_cells_are_those_of_the_theorem(theory: ModuleType) -> None:
    says = {(cell.subsets, cell.depth, cell.kind): cell.is_possible for cell in theory.all_cells()}
    assert says[6, 2, "none"]
    assert not says[9, 2, "none"]
    assert says[9, 2, "parallel"]
    assert not says[1, 3, "parallel"]
    assert says[3, 3, "fed back"]


@pytest.mark.parametrize(("depth", "tokens"), [(2, 1), (3, 6)])
def test_the_asked_indices_are_taught_one_result_each_in_the_order_in_which_they_can_be_made(
    theory: ModuleType, depth: int, tokens: int
) -> None:
    subsets = 3 if depth == 3 else 8
    cell = theory.Cell(subsets, depth, "fed back", tokens, True)
    task = theory.Task(cell, seed=1)
    inputs = task.draw(20, torch.Generator().manual_seed(2))
    _, partial = task.answers(inputs)
    # Seven indices for eight operations of depth 2; the last one's result has no place.
    assert list(cell.asked) == (list(range(7)) if depth == 2 else list(range(6, 12)))
    for values, found in zip(inputs.tolist(), partial.tolist(), strict=True):
        expected = []
        for places in task.subsets_MK.tolist():
            result = values[places[0]]
            for place in places[1:]:
                result = int(task.table_VV[result, values[place]])
                expected.append(result)
        assert found == expected[: len(cell.asked)]
    _, results = theory.TwoLayers(cell)(inputs)
    assert results.shape == (20, len(cell.asked), theory.NUM_VALUES)


@pytest.mark.parametrize("is_taught", [False, True])
def test_only_a_taught_cell_learns_results(
    theory: ModuleType, monkeypatch: pytest.MonkeyPatch, is_taught: bool
) -> None:
    made: list[torch.nn.Module] = []

    class Watched(theory.TwoLayers):  # type: ignore[name-defined, misc]
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            made.append(self)
            self.before = self.result[1].weight.detach().clone()

    monkeypatch.setattr(theory, "TwoLayers", Watched)
    theory.train(theory.Cell(1, 4, "fed back", 3, is_taught), 0, 3)
    assert torch.equal(made[0].before, made[0].result[1].weight) != is_taught


@pytest.mark.parametrize("kind", ["parallel", "fed back"])
def test_a_token_sees_what_came_before_it_and_nothing_later(theory: ModuleType, kind: str) -> None:
    torch.manual_seed(0)
    model = theory.TwoLayers(theory.Cell(1, 4, kind, 3))
    values = torch.tensor([[0, 1, 2, 3, 0, 1]])
    seen: list[torch.Tensor] = []
    model.second.register_forward_hook(lambda module, given, result: seen.append(given[1]))
    model(values)
    with torch.no_grad():
        model.place_TD[theory.NUM_INPUTS + 1] += 1.0
    model(values)
    changed = [not torch.equal(one, other) for one, other in zip(seen[0][0], seen[1][0], strict=True)]
    assert changed == [False] * (theory.NUM_INPUTS + 1) + [True, True]
