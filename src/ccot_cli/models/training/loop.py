"""The training loop: epochs, batches, steps, log, checkpoints, and a stop that loses no step."""

import json
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from math import inf, isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from torch import Tensor

from ccot_cli import ranks
from ccot_cli.data.batches import bucketed
from ccot_cli.files import commit, strict_json
from ccot_cli.models.training.checkpoints import damaged_checkpoint, save_checkpoint
from ccot_cli.models.training.optimiser import MAX_BAD_STEPS, Optimiser, diverged
from ccot_cli.progress import Progress
from ccot_cli.signals import delayed_stop

LOG_FILE = "log.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"
SPEED_STEPS = 100
"""The latest steps, at most, over which the speed is averaged."""
EXPLODED = 100.0
"""A loss that is so many times the first one, or so large if the first one is below 1, means that training diverges."""
LONGEST_UNJUDGED = 500
"""Steps between two judgements, at most, if an epoch is longer."""


class Judgement(NamedTuple):
    """How well the weights of a moment do on validation problems."""

    right: float
    """Proportion of the problems of which the likeliest token is the right one everywhere, given those before it."""
    loss: float
    """Mean cross-entropy of a token."""


class Trained(NamedTuple):
    """What a training came to."""

    loss: float
    """Mean loss of the last epoch."""
    kept_step: int
    """The step after which the weights were best; the last one if none was judged."""


class Training(ABC):
    """Something to train. A subclass computes what a part of a batch adds to its loss; the loop does the rest."""

    optimiser: Optimiser
    lengths: Sequence[int]
    """Of every example, in tokens: examples of similar length share a batch."""
    batch_size: int
    seed: int
    """Seed of the examples' order."""
    num_tokens = 0
    """Tokens in the last step's batch, without padding."""
    tokens_per_second = 0.0
    """Mean over the latest steps, of their time alone: what happens between two steps does not count."""

    @abstractmethod
    def part_loss(self, part: Sequence[int], whole: Sequence[int]) -> Tensor:
        """Compute what a part of a batch adds to the batch's loss.

        Args:
            part: Numbers of the part's examples.
            whole: Numbers of the batch's examples.

        Returns:
            A scalar; the parts of a batch sum up to its loss.
        """

    def count_tokens(self, batch: Sequence[int]) -> int:
        """Count the tokens that the next step computes for these examples, without padding."""
        return sum(self.lengths[number] for number in batch)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return -(-len(self.lengths) // self.batch_size)

    def steps(self) -> Iterator[float]:
        """Take the steps that are left after those that the optimiser has taken; yield each one's loss."""
        latest = deque[tuple[int, float]](maxlen=SPEED_STEPS)
        while self.optimiser.step_count < self.optimiser.num_steps:
            epoch, num_done = divmod(self.optimiser.step_count, self.steps_per_epoch)
            # An epoch's order depends on its number alone, so a resumed epoch continues with its next batch.
            shuffler = random.Random(f"{self.seed}/{epoch}")
            for batch in bucketed(self.lengths, batch_size=self.batch_size, shuffler=shuffler)[num_done:]:
                self.num_tokens, started = self.count_tokens(batch), time.perf_counter()
                loss = self.optimiser.step_on(batch, self.part_loss)
                latest.append((self.num_tokens, time.perf_counter() - started))
                tokens, seconds = map(sum, zip(*latest, strict=True))
                self.tokens_per_second = tokens / seconds
                yield loss


def train(
    training: Training,
    *,
    log: Path,
    checkpoint: Path,
    label: str,
    checkpoint_steps: int,
    progress: Progress,
    figures: Callable[[float], dict[str, str]] = lambda loss: {"loss": f"{loss:.4f}"},
    on_epoch: Callable[[float], dict[str, Any]] = lambda loss: {},
    judge: Callable[[], Judgement] | None = None,
) -> Trained:
    """Take all steps that are left, with a log and checkpoints, and end with the best weights.

    If the user asks for a stop, the current step is finished and saved. An interrupted run continues from its last
    checkpoint and, on a CPU, ends in the same bits as an uninterrupted one. With several ranks the first one writes
    log and checkpoints, and a stop of one rank stops all after the same step.

    Args:
        log: File with a JSON line for every step: loss, learning rate, norm of the gradient before clipping, and number
            of tokens; null stands for a number that is not finite. There is no time in it: the log is a part of the
            artifact, and two runs make the same bytes.
        checkpoint: File with the optimiser's state; training resumes from it if it exists.
        label: Text of the progress bar.
        checkpoint_steps: Steps between two checkpoints.
        figures: A step's loss -> what the progress bar shows beside the label.
        on_epoch: Called with an epoch's mean loss; what it returns is added to the log.
        judge: Called after every epoch, or more often if epochs are long. The weights with which most problems were
            right come back in the end; of as many, those with the lower loss. Without it, the last weights stay.

    Raises:
        DivergedError: if several steps in a row, or the last one, are not finite, or have a loss that has exploded. The
            checkpoint before them is kept.
        ResourceError: if a single example does not fit into memory.
        CorruptError: if the checkpoint or the log of an interrupted run is damaged.
        UsageError: if the interrupted run had another number of ranks.
    """
    optimiser, epoch = training.optimiser, training.steps_per_epoch
    lines: list[dict[str, Any]] = []
    if ranks.first(checkpoint.exists):
        optimiser.resume(checkpoint)
        lines = ranks.first(lambda: read_lines(log, at_least=optimiser.step_count))[: optimiser.step_count]
        progress.say(f"resumed after step {optimiser.step_count:,}")
    with (
        progress.task(label, total=optimiser.num_steps, unit="steps", done=optimiser.step_count) as advance,
        delayed_stop(ranks.is_any) as is_stop_asked,
    ):
        for loss in training.steps():
            step, shown = optimiser.step_count, {"tokens/s": f"{training.tokens_per_second:,.0f}"}
            lines.append({"step": step, "loss": loss, "rate": optimiser.rate, "norm": optimiser.norm})
            lines[-1]["tokens"] = training.num_tokens
            num_exploded = _num_exploded(lines)
            _stop_if_exploded(lines, num_exploded, is_last=step == optimiser.num_steps)
            if step % epoch == 0:
                lines[-1].update(on_epoch(mean_loss(line["loss"] for line in lines[-epoch:])))
            if judge and (step % epoch % LONGEST_UNJUDGED == 0 or step == optimiser.num_steps):
                judgement = judge()
                shown["validation"] = f"{judgement.right:.3f}"
                lines[-1].update({"validation_right": judgement.right, "validation_loss": judgement.loss})
                if _best_step(lines) == step:
                    optimiser.keep()
            progress.measure(step, {**lines[-1], "tokens_per_second": training.tokens_per_second})
            advance(1, **figures(loss), **shown)
            is_stopping = is_stop_asked()
            if is_stopping or (step % checkpoint_steps == 0 and not num_exploded) or step == optimiser.num_steps:
                ranks.first(partial(write_lines, log, lines))
                save_checkpoint(checkpoint, optimiser.state())
            if is_stopping:
                break
    optimiser.restore()
    return Trained(mean_loss(line["loss"] for line in lines[-epoch:]), _best_step(lines))


def _num_exploded(lines: list[dict[str, Any]]) -> int:
    """Count the latest steps, up to the last one, whose loss has exploded."""
    limit = EXPLODED * max(_first_loss(lines), 1.0)
    return sum(1 for _ in takewhile(lambda line: (line["loss"] or 0.0) > limit, reversed(lines)))


def _stop_if_exploded(lines: list[dict[str, Any]], num_exploded: int, *, is_last: bool) -> None:
    if num_exploded >= MAX_BAD_STEPS or (num_exploded and is_last):
        steps = "the last step" if is_last else f"{MAX_BAD_STEPS} steps in a row"
        last, first = lines[-1]["loss"], _first_loss(lines)
        raise diverged(f"{steps} had a loss that has exploded, to {last:.3g}, where it was {first:.3g} at first")


def _first_loss(lines: list[dict[str, Any]]) -> float:
    """Return the first loss that is finite; infinity if none is."""
    losses = (line["loss"] for line in lines)
    return next((loss for loss in losses if loss is not None and isfinite(loss)), inf)


def _best_step(lines: list[dict[str, Any]]) -> int:
    """Return the first step with the best judgement; the last step if none was judged.

    A loss that is not finite, null in a log that was read, is the worst.
    """

    def goodness(line: dict[str, Any]) -> tuple[float, float]:
        loss = line["validation_loss"]
        return line["validation_right"], -loss if loss is not None and isfinite(loss) else -inf

    judged = [line for line in lines if "validation_right" in line]
    return int(max(judged, key=goodness, default=lines[-1])["step"])


def mean_loss(losses: Iterable[float | None]) -> float:
    """Average the losses of the steps that had a finite one; NaN if none had."""
    finite = [loss for loss in losses if loss is not None and isfinite(loss)]
    return fmean(finite) if finite else nan


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write JSON lines, with null for numbers that are not finite; an interrupted call leaves the file as it was."""
    with commit(path) as part:
        part.write_text("".join(json.dumps(_writable(line), allow_nan=False) + "\n" for line in lines))


def _writable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _writable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_writable(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def read_lines(path: Path, *, at_least: int = 0) -> list[dict[str, Any]]:
    """Read the JSON lines of a log.

    Args:
        at_least: Lines that it must have. It may have more than its checkpoint, because it is written first.

    Raises:
        CorruptError: if they are not such as `write_lines` writes, or too few.
    """
    try:
        lines = [dict(strict_json(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError):
        raise damaged_checkpoint(path) from None
    if len(lines) < at_least:
        raise damaged_checkpoint(path)
    return lines
