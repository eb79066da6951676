"""One optimiser for all training: AdamW, warm-up and linear decay, clipping, a guard against numbers gone wrong."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ccot_cli.errors import DivergedError

WARM_UP_SHARE = 0.05
MAX_BAD_STEPS = 5


class Optimiser:
    """Steps over a fixed set of parameters for a known number of steps.

    Args:
        parameters: What learns, by name.
        learning_rate: Its peak, reached after 5 % of the steps; falls to zero at the last.
        num_steps: Steps in all.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], *, learning_rate: float, num_steps: int) -> None:
        self.parameters = parameters
        self.learning_rate = learning_rate
        self.num_steps = num_steps
        self.step_count = 0
        self._num_bad = 0
        self._adam = torch.optim.AdamW(list(parameters.values()), lr=learning_rate, weight_decay=0.0)

    def _rate(self) -> float:
        warm_up = max(1, round(WARM_UP_SHARE * self.num_steps))
        rise = min(1.0, (self.step_count + 1) / warm_up)
        return self.learning_rate * rise * (1 - self.step_count / self.num_steps)

    def step(self, loss: Tensor) -> float:
        """Go down one step; a loss or gradient that is not finite changes nothing.

        Raises:
            DivergedError: after several such steps in a row.
        """
        self._adam.zero_grad(set_to_none=True)
        is_good = bool(loss.isfinite())
        if is_good:
            loss.backward()  # type: ignore[no-untyped-call]
            norm = nn.utils.clip_grad_norm_(list(self.parameters.values()), 1.0)
            is_good = bool(norm.isfinite())
        for group in self._adam.param_groups:
            group["lr"] = self._rate()
        if is_good:
            self._adam.step()
        self._num_bad = 0 if is_good else self._num_bad + 1
        if self._num_bad >= MAX_BAD_STEPS:
            raise DivergedError(
                f"{MAX_BAD_STEPS} steps in a row had a loss or gradient that is not finite",
                fix="a lower learning rate; the last checkpoint is kept",
            )
        self.step_count += 1
        return float(loss.detach())

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on: parameters, moments and the step, as named tensors."""
        tensors = {"step": torch.tensor(self.step_count)}
        for name, parameter in self.parameters.items():
            tensors[f"parameter/{name}"] = parameter.detach().cpu().contiguous()
            for key, value in self._adam.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
        return tensors

    def resume(self, path: Path) -> None:
        """Go on from a saved state, bit for bit on a CPU."""
        tensors = load_file(path)
        self.step_count = int(tensors["step"])
        for name, parameter in self.parameters.items():
            with torch.no_grad():
                parameter.copy_(tensors[f"parameter/{name}"])
            if f"exp_avg/{name}" in tensors:
                self._adam.state[parameter] = {
                    "step": tensors[f"step/{name}"],
                    "exp_avg": tensors[f"exp_avg/{name}"].to(parameter.device),
                    "exp_avg_sq": tensors[f"exp_avg_sq/{name}"].to(parameter.device),
                }
