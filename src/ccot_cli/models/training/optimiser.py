"""One optimiser for all training: warm-up, linear decay, clipping, and a guard against values that are not finite.

`adamw` is the usual choice. `muon` turns every matrix's momentum into the nearest orthogonal matrix before the step
(Jordan et al., 2024), so that weak directions of a gradient learn as fast as strong ones.

Dimensions: N matrices of R rows and C columns, R <= C.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from ccot_cli import ranks
from ccot_cli.config import TrainPhiConfig, TrainPsiConfig
from ccot_cli.data.batches import cut
from ccot_cli.errors import DivergedError
from ccot_cli.models.base.memory import does_not_fit, is_out_of_memory, release
from ccot_cli.models.training.checkpoints import load_checkpoint
from ccot_cli.names import OptimiserName

PartLoss = Callable[[Sequence[int], Sequence[int]], Tensor]
"""(a part of a batch, the whole batch) -> what the part's examples add to the batch's loss."""

WARM_UP = 0.05
"""Proportion of the steps in which the learning rate rises."""
_KEPT = "kept"
"""Prefix, in a saved state, of the parameters that are kept."""
MAX_BAD_STEPS = 5
"""Steps in a row without a finite loss and gradient, or with a loss that has exploded, that end training."""


def diverged(what: str) -> DivergedError:
    """Return the error for training that does not come back by itself."""
    return DivergedError(what, fix="lower this stage's learning_rate in ccot.yaml and run it again, from its start")


class Muon(torch.optim.Optimizer):
    """Muon for matrices. Those of the same shape are orthogonalised together, which makes it cheap for adapters.

    An update has the root mean square that AdamW's usually has (0.2), so that learning rates mean the same.

    Args:
        parameters: Matrices.
        lr: Learning rate.
    """

    MOMENTUM = 0.95
    POLYNOMIAL = (3.4445, -4.7750, 2.0315)
    """Coefficients of x, x^3 and x^5 in `orthogonalise`."""
    ROUNDS = 5
    """Iterations of `orthogonalise`."""

    def __init__(self, parameters: list[nn.Parameter], *, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter against its orthogonalised momentum."""
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    rows, columns = parameter.shape
                    alike.setdefault((min(rows, columns), max(rows, columns)), []).append(parameter)
            for parameters in alike.values():
                stacked = torch.stack([self._direction(parameter) for parameter in parameters])
                updates = orthogonalise(stacked, self.POLYNOMIAL, self.ROUNDS)
                for parameter, update in zip(parameters, updates, strict=True):
                    size = 0.2 * max(parameter.shape) ** 0.5
                    step = update.T if parameter.shape[0] > parameter.shape[1] else update
                    parameter.sub_(step, alpha=group["lr"] * size)

    def _direction(self, parameter: nn.Parameter) -> Tensor:
        """Update the momentum and return Nesterov's, transposed if it has more rows than columns."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum = state["momentum"].lerp_(parameter.grad, 1 - self.MOMENTUM)
        direction = parameter.grad.lerp(momentum, self.MOMENTUM)
        return direction.T if direction.shape[0] > direction.shape[1] else direction


def orthogonalise(matrices_NRC: Tensor, polynomial: tuple[float, float, float], rounds: int) -> Tensor:
    """Push all singular values towards 1 by Newton-Schulz iteration; they end between about 0.7 and 1.2.

    In bfloat16 where a device multiplies that, as Muon's authors do: singular values need not be near 1, only alike.

    Args:
        polynomial: Coefficients of x, x^3, x^5.
        rounds: Number of iterations.

    Returns:
        Matrices of the same shape: N, R, C.
    """
    first, third, fifth = polynomial
    x_NRC: Tensor = matrices_NRC / matrices_NRC.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    if multiplies_bfloat16(x_NRC.device):
        x_NRC = x_NRC.bfloat16()
    for _ in range(rounds):
        gram_NRR = x_NRC @ x_NRC.mT
        x_NRC = torch.baddbmm(x_NRC, third * gram_NRR + fifth * gram_NRR @ gram_NRR, x_NRC, beta=first)
    return x_NRC.to(matrices_NRC.dtype)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Tell whether a device has instructions that multiply matrices of bfloat16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def sum_of_ranks(parameters: Sequence[nn.Parameter], figures: list[float]) -> list[float]:
    """Replace this rank's gradients by the sum of all ranks'; return the sums of their figures, such as losses."""
    if ranks.size() == 1:
        return figures
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    # A gradient that no rank has stays none, so that the optimiser leaves its parameter out as one process does.
    others = gradients[0].new_tensor([*figures, *(float(each.grad is not None) for each in parameters)])
    flat = torch.cat([*(each.flatten() for each in gradients), others])
    ranks.add_up(flat)
    *sums, others = torch.split(flat, [*(each.numel() for each in parameters), len(others)])
    totals = others.tolist()
    for parameter, total, count in zip(parameters, sums, totals[len(figures) :], strict=True):
        parameter.grad = total.view_as(parameter).to(parameter.dtype) if count else None
    return totals[: len(figures)]


class Optimiser:
    """Takes a known number of steps over a fixed set of parameters.

    Args:
        parameters: What learns, by name.
        learning_rate: The peak. The rate rises to it within 5 % of the steps (divided among the restarts), and falls
            linearly to zero from the start, or from the last restart if there are any.
        num_steps: Number of all steps.
        kind: `muon` takes matrices only.
        restarts: Steps before which all moments are forgotten and the rate rises again, as at a curriculum's stages.
        micro_batch_size: Most examples whose gradients are computed at once; the whole batch by default.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        *,
        learning_rate: float,
        num_steps: int,
        kind: OptimiserName = "adamw",
        restarts: Sequence[int] = (),
        micro_batch_size: int | None = None,
    ) -> None:
        self.parameters = parameters
        self.micro_batch_size = micro_batch_size
        self.restarts = sorted({0, *restarts})
        self.learning_rate = learning_rate
        self.num_steps = num_steps
        self.step_count = 0
        self.norm: float | None = None
        """Of the last step's gradient, before clipping; None if it was not finite."""
        self.kept: dict[str, Tensor] = {}
        """Copies of the parameters that `keep` made last, by name."""
        self._num_bad = 0
        trained = list(parameters.values())
        self._inner: torch.optim.Optimizer = (
            Muon(trained, lr=learning_rate)
            if kind == "muon"
            else torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0)
        )

    @classmethod
    def from_config(
        cls,
        parameters: dict[str, nn.Parameter],
        config: TrainPhiConfig | TrainPsiConfig,
        *,
        num_steps: int,
        restarts: Sequence[int] = (),
    ) -> Self:
        """Make an optimiser with the kind, rate and micro-batch size of a stage's settings."""
        return cls(
            parameters,
            learning_rate=config.learning_rate,
            num_steps=num_steps,
            kind=config.optimiser,
            restarts=restarts,
            micro_batch_size=config.micro_batch_size,
        )

    @property
    def rate(self) -> float:
        """The learning rate of the last step."""
        return float(self._inner.param_groups[0]["lr"])

    def _next_rate(self) -> float:
        """Compute the learning rate of the step that comes next."""
        warm_up = max(1, round(WARM_UP * self.num_steps / len(self.restarts)))
        restart = max(start for start in self.restarts if start <= self.step_count)
        rise = min(1.0, (self.step_count - restart + 1) / warm_up)
        decay_start = self.restarts[-1]
        fall = max(0, self.step_count - decay_start) / (self.num_steps - decay_start)
        return self.learning_rate * rise * (1 - fall)

    def step_on(self, batch: Sequence[int], part_loss: PartLoss) -> float:
        """Take one step down a batch's loss, adding up the gradients of its micro-batches.

        With several ranks each takes its part of the batch, and all take the same step. If the loss or its gradient is
        not finite, the parameters stay as they are. If a micro-batch does not fit into memory, micro-batches are half
        as large from then on, on this rank alone: the ranks meet once in a step, after their last micro-batch.

        Args:
            batch: Numbers of the batch's examples.
            part_loss: Computes what a micro-batch adds to the batch's loss.

        Returns:
            The batch's loss.

        Raises:
            DivergedError: if several steps in a row, or the last one, are not finite.
            ResourceError: if a single example does not fit into memory.
        """
        here = batch[ranks.rank() :: ranks.size()]
        while (loss := self._add_up(here, batch, part_loss)) is None:
            pass
        [loss] = sum_of_ranks(list(self.parameters.values()), [loss])
        return self._descend(loss)

    def _descend(self, loss: float) -> float:
        """Take a step with the gradients that are in the parameters; return their loss."""
        if self.step_count in self.restarts:
            self._inner.state.clear()
        is_good, self.norm = isfinite(loss), None
        if is_good:
            norm = float(nn.utils.clip_grad_norm_(list(self.parameters.values()), 1.0))
            is_good = isfinite(norm)
            self.norm = norm if is_good else None
        for group in self._inner.param_groups:
            group["lr"] = self._next_rate()
        if is_good:
            self._inner.step()
        self._num_bad = 0 if is_good else self._num_bad + 1
        is_last = self.step_count + 1 == self.num_steps
        if self._num_bad >= MAX_BAD_STEPS or (is_last and not is_good):
            steps = "the last step" if is_last else f"{MAX_BAD_STEPS} steps in a row"
            raise diverged(f"{steps} had a loss or gradient that is not finite")
        self.step_count += 1
        return loss

    def _add_up(self, here: Sequence[int], batch: Sequence[int], part_loss: PartLoss) -> float | None:
        """Compute what some examples add to a batch's loss, and leave its gradient in the parameters.

        If a micro-batch does not fit into memory, halve their size and return None.
        """
        self._inner.zero_grad(set_to_none=True)
        # A batch of fewer examples than ranks leaves some ranks without any.
        size = max(1, min(self.micro_batch_size or len(here), len(here)))
        total = 0.0
        try:
            for part in cut(here, size):
                loss = part_loss(part, batch)
                total += float(loss.detach())
                if not isfinite(total):
                    return total
                loss.backward()  # type: ignore[no-untyped-call]
            return total
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if size == 1:
                raise does_not_fit() from error
        # Outside the handler, whose traceback would keep the micro-batch's tensors in memory.
        release()
        self.micro_batch_size = -(-size // 2)
        return None

    def keep(self) -> None:
        """Copy the parameters, so that `restore` can bring them back."""
        self.kept = {name: parameter.detach().cpu().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Give the parameters the values that were kept last, if any were."""
        for name, tensor in self.kept.items():
            self.parameters[name].copy_(tensor)

    def state(self) -> dict[str, Tensor]:
        """Return what `resume` needs, as named tensors: parameters, those kept, moments and number of steps taken."""
        tensors = {"step": torch.tensor(self.step_count)}
        tensors |= {f"{_KEPT}/{name}": tensor for name, tensor in self.kept.items()}
        for name, parameter in self.parameters.items():
            tensors[f"parameter/{name}"] = parameter.detach().cpu().contiguous()
            for key, value in self._inner.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
        return tensors

    def resume(self, path: Path) -> None:
        """Restore a saved state; on a CPU, training then continues bit for bit.

        Raises:
            CorruptError: if the file is damaged.
            UsageError: if another number of ranks saved it.
        """
        tensors = load_checkpoint(path)
        self.step_count = int(tensors.pop("step"))
        for name, parameter in self.parameters.items():
            with torch.no_grad():
                parameter.copy_(tensors.pop(f"parameter/{name}"))
        for key, tensor in tensors.items():
            kind, _, name = key.partition("/")
            if kind == _KEPT:
                self.kept[name] = tensor
                continue
            parameter = self.parameters[name]
            # AdamW keeps its count of steps on the CPU.
            device = tensor.device if tensor.ndim == 0 else parameter.device
            self._inner.state[parameter][kind] = tensor.to(device)
