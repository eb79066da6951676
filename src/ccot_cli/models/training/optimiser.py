"""One optimiser for all training: warm-up and linear decay, clipping, a guard against numbers gone wrong.

`adamw` is what such models are tuned with as a rule. `muon` turns every matrix's momentum into the nearest orthogonal
matrix before stepping (Jordan et al., 2024), so that weak directions of a gradient learn as fast as strong ones.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ccot_cli.config import TrainPhiConfig, TrainPsiConfig
from ccot_cli.errors import DivergedError
from ccot_cli.models.base.memory import does_not_fit, is_out_of_memory, release
from ccot_cli.names import OptimiserName

PartLoss = Callable[[Sequence[int], Sequence[int]], Tensor]
"""(a part of a batch, the whole batch) -> what the part's examples add to the batch's loss."""

WARM_UP = 0.05
MAX_BAD_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Muon for matrices; those of one shape are orthogonalised together, which is what makes it cheap for adapters.

    The update has AdamW's usual size (0.2 a number), so that learning rates mean the same.
    """

    MOMENTUM = 0.95
    POLYNOMIAL = (3.4445, -4.7750, 2.0315)
    ROUNDS = 5

    def __init__(self, parameters: list[nn.Parameter], *, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step down every parameter's orthogonalised momentum."""
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
        """Nesterov momentum, wide rather than tall."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum = state["momentum"].lerp_(parameter.grad, 1 - self.MOMENTUM)
        direction = parameter.grad.lerp(momentum, self.MOMENTUM)
        return direction.T if direction.shape[0] > direction.shape[1] else direction


def orthogonalise(matrices_NRC: Tensor, polynomial: tuple[float, float, float], rounds: int) -> Tensor:
    """Push all singular values towards 1 by Newton-Schulz iteration; they end between about 0.7 and 1.2.

    Args:
        matrices_NRC: N matrices of R rows and C columns, R <= C.
        polynomial: Coefficients of x, x^3, x^5.
    """
    first, third, fifth = polynomial
    x_NRC: Tensor = matrices_NRC / matrices_NRC.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(rounds):
        gram_NRR = x_NRC @ x_NRC.mT
        x_NRC = torch.baddbmm(x_NRC, third * gram_NRR + fifth * gram_NRR @ gram_NRR, x_NRC, beta=first)
    return x_NRC


class Optimiser:
    """Steps over a fixed set of parameters for a known number of steps.

    Args:
        parameters: What learns, by name.
        learning_rate: Its peak, reached after 5 % of the steps; from there, or from the last restart, it falls to zero.
        num_steps: Steps in all.
        kind: `muon` takes matrices only.
        restarts: Steps before which all moments are forgotten and the rate rises anew, as at a curriculum's stages.
        micro_batch_size: Most examples whose gradients are computed at once; a whole batch's by default.
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
        self._num_bad = 0
        every = list(parameters.values())
        self._inner: torch.optim.Optimizer = (
            Muon(every, lr=learning_rate)
            if kind == "muon"
            else torch.optim.AdamW(every, lr=learning_rate, weight_decay=0.0)
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
        """Take kind, rate and micro-batch size from a stage's settings."""
        return cls(
            parameters,
            learning_rate=config.learning_rate,
            num_steps=num_steps,
            kind=config.optimiser,
            restarts=restarts,
            micro_batch_size=config.micro_batch_size,
        )

    def _rate(self) -> float:
        warm_up = max(1, round(WARM_UP * self.num_steps / len(self.restarts)))
        begun = max(start for start in self.restarts if start <= self.step_count)
        rise = min(1.0, (self.step_count - begun + 1) / warm_up)
        last = self.restarts[-1]
        fall = max(0, self.step_count - last) / (self.num_steps - last)
        return self.learning_rate * rise * (1 - fall)

    def step_on(self, batch: Sequence[int], part_loss: PartLoss) -> float:
        """Go down one step of a batch's loss, in micro-batches whose gradients are added up.

        A loss or gradient that is not finite changes nothing. Where a micro-batch does not fit into memory, they are
        half as large from then on.

        Raises:
            DivergedError: after several bad steps in a row, or a bad last one.
            ResourceError: where a single example does not fit.
        """
        loss = self._add_up(batch, part_loss)
        while loss is None:
            loss = self._add_up(batch, part_loss)
        return self._descend(loss)

    def _descend(self, loss: float) -> float:
        """Go down the gradients that a loss has left in the parameters."""
        if self.step_count in self.restarts:
            self._inner.state.clear()
        is_good = isfinite(loss)
        if is_good:
            norm = nn.utils.clip_grad_norm_(list(self.parameters.values()), 1.0)
            is_good = bool(norm.isfinite())
        for group in self._inner.param_groups:
            group["lr"] = self._rate()
        if is_good:
            self._inner.step()
        self._num_bad = 0 if is_good else self._num_bad + 1
        is_last = self.step_count + 1 == self.num_steps
        if self._num_bad >= MAX_BAD_STEPS or (is_last and not is_good):
            steps = "the last step" if is_last else f"{MAX_BAD_STEPS} steps in a row"
            raise DivergedError(
                f"{steps} had a loss or gradient that is not finite",
                fix="lower this stage's learning_rate in ccot.yaml and run it again, from its start",
            )
        self.step_count += 1
        return loss

    def _add_up(self, batch: Sequence[int], part_loss: PartLoss) -> float | None:
        """A batch's loss, its gradient left in the parameters; None where memory did not suffice for a part."""
        self._inner.zero_grad(set_to_none=True)
        size = min(self.micro_batch_size or len(batch), len(batch))
        total = 0.0
        try:
            for start in range(0, len(batch), size):
                loss = part_loss(batch[start : start + size], batch)
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
        # Outside the handler, whose traceback would hold on to the part's tensors.
        release()
        self.micro_batch_size = -(-size // 2)
        return None

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on: parameters, moments and the step, as named tensors."""
        tensors = {"step": torch.tensor(self.step_count)}
        for name, parameter in self.parameters.items():
            tensors[f"parameter/{name}"] = parameter.detach().cpu().contiguous()
            for key, value in self._inner.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
        return tensors

    def resume(self, path: Path) -> None:
        """Go on from a saved state, bit for bit on a CPU."""
        tensors = load_file(path)
        self.step_count = int(tensors.pop("step"))
        for name, parameter in self.parameters.items():
            with torch.no_grad():
                parameter.copy_(tensors.pop(f"parameter/{name}"))
        for key, tensor in tensors.items():
            kind, _, name = key.partition("/")
            parameter = self.parameters[name]
            # AdamW keeps its count of steps on the CPU.
            device = tensor.device if tensor.ndim == 0 else parameter.device
            self._inner.state[parameter][kind] = tensor.to(device)
