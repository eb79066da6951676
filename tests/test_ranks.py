"""Several ranks do what one process does: training up to rounding, everything else in the same bits."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MakeTheta, shaken
from ranks_running import on_ranks
from torch import Tensor, nn
from trainers import joint_training, phi_examples, psi_examples, psi_training

from ccot_cli import ranks
from ccot_cli.errors import DivergedError, MissingError, UsageError
from ccot_cli.models.base.adapters import PHI
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.loop import Training, read_lines, train
from ccot_cli.models.training.optimiser import Optimiser
from ccot_cli.models.training.psi import HeldOut
from ccot_cli.progress import Progress
from ccot_cli.signals import catch_signals

WIDTH = 5
COUNTS = (2, 3)
"""Numbers of ranks."""


class Regression(Training):
    """Least squares in float64, with a matrix that one example in five reads, and one that none does."""

    def __init__(self, num_examples: int, batch_size: int, *, epochs: int = 2, **changes: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs_BD, self.matrix_DD, self.rare_DD, self.unused_DD = (
            torch.randn(rows, WIDTH, dtype=torch.float64, generator=generator)
            for rows in (num_examples, WIDTH, WIDTH, WIDTH)
        )
        self.lengths, self.batch_size, self.seed = [1] * num_examples, batch_size, 0
        parameters = {name: nn.Parameter(getattr(self, f"{name}_DD").clone()) for name in ("matrix", "rare", "unused")}
        steps = epochs * self.steps_per_epoch
        settings = {"learning_rate": 0.05, "kind": "adamw", **changes}
        self.optimiser = Optimiser(parameters, num_steps=steps, **settings)

    def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
        parameters = self.optimiser.parameters
        outputs_BD = self.inputs_BD[list(part)] @ parameters["matrix"]
        rare = [row for row, number in enumerate(part) if number % 5 == 0]
        loss = (outputs_BD**2).sum()
        if rare:
            loss = loss + ((outputs_BD[rare] @ parameters["rare"]) ** 2).sum()
        return loss / len(whole)


def trained(training: Regression) -> tuple[list[float], dict[str, Tensor]]:
    """Take all steps; return the losses, and the optimiser's state."""
    return [*training.steps()], training.optimiser.state()


def assert_close(one: tuple[list[float], dict[str, Tensor]], other: tuple[list[float], dict[str, Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-12)
    assert one[1].keys() == other[1].keys()  # No moments of a parameter that nothing reads.
    for name, tensor in one[1].items():
        torch.testing.assert_close(tensor, other[1][name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", COUNTS)
def test_a_training_is_that_of_one_process(count: int) -> None:
    shapes = [(1, 1), (7, 7), (13, 5), (64, 64), (6, 2)]

    def train_all() -> list[tuple[list[float], dict[str, Tensor]]]:
        return [
            trained(Regression(*shape, kind=kind, micro_batch_size=micro_batch_size))
            for shape in shapes
            for kind in ("adamw", "muon")
            for micro_batch_size in (None, 2)
        ]

    alone = train_all()
    assert not any("unused" in name for name in alone[0][1] if not name.startswith("parameter/"))
    first, *others = on_ranks(count, train_all)
    for one, together in zip(alone, first, strict=True):
        assert_close(one, together)
    for other in others:
        for (losses, state), (same_losses, same_state) in zip(first, other, strict=True):
            assert losses == same_losses
            assert all(torch.equal(tensor, same_state[name]) for name, tensor in state.items())


def test_a_rank_without_enough_memory_halves_its_own_micro_batches() -> None:
    class Tight(Regression):
        def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
            if ranks.rank() == 1 and len(part) > 2:
                raise MemoryError
            return super().part_loss(part, whole)

    def train_it() -> tuple[tuple[list[float], dict[str, Tensor]], int | None]:
        training = Tight(13, 13)
        return trained(training), training.optimiser.micro_batch_size

    (roomy, whole), (tight, halved) = on_ranks(2, train_it)
    assert (whole, halved) == (None, 2)
    assert roomy[0] == tight[0]
    assert_close(trained(Regression(13, 13)), tight)


def test_a_loss_that_is_not_finite_on_one_rank_moves_no_rank() -> None:
    class Broken(Regression):
        def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
            return super().part_loss(part, whole) * (float("nan") if ranks.rank() == 1 else 1.0)

    def train_it() -> bool:
        training = Broken(8, 8, epochs=9)
        before = [parameter.detach().clone() for parameter in training.optimiser.parameters.values()]
        with pytest.raises(DivergedError):
            trained(training)
        return all(map(torch.equal, before, training.optimiser.parameters.values()))

    assert on_ranks(2, train_it) == [True, True]


def run_loop(training: Training, folder: Path) -> Any:
    return train(
        training,
        log=folder / "log.jsonl",
        checkpoint=folder / "checkpoint.safetensors",
        label="",
        checkpoint_steps=100,
        progress=Progress(),
    )


class Stopped(Regression):
    """Is stopped on rank 1 in its third step."""

    def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
        if self.optimiser.step_count == 2 and ranks.rank() == 1:
            signal.raise_signal(signal.SIGTERM)
        return super().part_loss(part, whole)


def stop_in(folder: Path) -> Callable[[], tuple[int, list[int], list[str]]]:
    def work() -> tuple[int, list[int], list[str]]:
        own = folder / str(ranks.rank())
        own.mkdir(exist_ok=True)
        signals = catch_signals()
        training = Stopped(8, 2)
        with pytest.raises(KeyboardInterrupt):
            run_loop(training, own)
        return training.optimiser.step_count, signals, sorted(path.name for path in own.iterdir())

    return work


def test_a_stop_of_one_rank_stops_all_after_the_same_step_and_resumes(tmp_path: Path) -> None:
    files = ["checkpoint.safetensors", "log.jsonl"]
    stopped = on_ranks(2, stop_in(tmp_path))
    assert stopped == [(3, [signal.SIGTERM], files), (3, [signal.SIGTERM], [])]

    def resume() -> dict[str, Tensor]:
        training = Regression(8, 2)
        run_loop(training, tmp_path / str(ranks.rank()))
        return training.optimiser.state()

    def uninterrupted() -> dict[str, Tensor]:
        training = Regression(8, 2)
        trained(training)
        return training.optimiser.state()

    resumed, whole = on_ranks(2, resume), on_ranks(2, uninterrupted)
    for state, expected in zip(resumed, whole, strict=True):
        assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert [line["step"] for line in read_lines(tmp_path / "0" / "log.jsonl")] == [*range(1, 9)]


def test_a_training_of_other_ranks_is_not_resumed(tmp_path: Path) -> None:
    on_ranks(2, stop_in(tmp_path))
    with pytest.raises(UsageError, match="begun with 2 ranks, not 1"):
        run_loop(Regression(8, 2), tmp_path / "0")


def test_every_item_is_worked_on_once_and_all_ranks_have_all_results() -> None:
    def work() -> tuple[list[list[tuple[int, int]]], list[int]]:
        done: list[int] = []

        def square(item: int) -> tuple[int, int]:
            done.append(item)
            return item, item**2

        return [[*ranks.share(range(count), square)] for count in (0, 1, 2, 7)], done

    results = on_ranks(3, work)
    for shared, _ in results:
        assert shared == [[(item, item**2) for item in range(count)] for count in (0, 1, 2, 7)]
    assert sorted(item for _, done in results for item in done) == sorted([0, 0, 1, *range(7)])


def test_what_the_first_rank_raises_all_raise() -> None:
    def refuse() -> None:
        assert ranks.rank() == 0
        raise MissingError("nothing is here", fix="make it")

    def work() -> tuple[str, str]:
        with pytest.raises(MissingError) as raised:
            ranks.first(refuse)
        return raised.value.message, raised.value.fix

    assert on_ranks(2, work) == [("nothing is here", "make it")] * 2


@pytest.mark.usefixtures("muon_in_float32")
def test_phi_and_psi_learn_as_in_one_process(make_theta: MakeTheta) -> None:
    def losses() -> tuple[list[float], list[float], tuple[float, float], list[Tensor]]:
        phi_adapters = shaken(make_theta("llama"), PHI)
        phi = joint_training(phi_adapters, phi_examples(phi_adapters.theta, 7), batch_size=5)
        psi_adapters = shaken(make_theta("llama"), PHI)
        examples: list[PsiExample] = psi_examples(psi_adapters.theta)
        psi = psi_training(psi_adapters, examples, epochs=2, learning_rate=1e-3)
        context = psi.context
        return [*phi.steps()], [*psi.steps()], psi.judge(HeldOut(examples, context)), context.rollouts

    phi, psi, judgement, rollouts = losses()
    first, second = on_ranks(2, losses)
    for together in (first, second):
        assert together[0] == pytest.approx(phi, rel=1e-5)
        assert together[1] == pytest.approx(psi, rel=1e-5)
        assert together[2] == pytest.approx(judgement, rel=1e-5)
        assert all(map(torch.equal, rollouts, together[3]))
    assert first[:3] == second[:3]
