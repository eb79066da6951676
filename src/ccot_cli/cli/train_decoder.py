"""`ccot train-decoder`: train the decoder that writes out what contemplation tokens hold."""

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from ccot_cli.cli.console import print_line, print_next, steps_taken
from ccot_cli.cli.each_ratio import run_each
from ccot_cli.cli.options import (
    DeviceOption,
    EpochsOption,
    FormatOption,
    RatioOption,
    SeedOption,
    SetOption,
    StartOption,
    ThreadsOption,
    WorkspaceOption,
    between_zero_and_one,
    psi_settings,
    resolve,
)
from ccot_cli.cli.tracking import TrackOption, progress_for

if TYPE_CHECKING:
    from ccot_cli.stages.train_decoder import TrainDecoderResult


def train_decoder(
    folder: WorkspaceOption = None,
    ratio: RatioOption = None,
    epochs: EpochsOption = None,
    start: StartOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    track: TrackOption = None,
    sets: SetOption = None,
    format: FormatOption = "text",
) -> None:
    """Train a decoder that writes out the reasoning chain from the contemplation tokens, for ask --explain.

    ccot train-decoder --ratio 0.1
    ccot train-decoder --ratio 0.1 --epochs 1 --set data.limit=20000

    It needs the trained method and problems with chains: an imported method will do.
    """
    changes = psi_settings(epochs=epochs, start=start, seed=seed, device=device, threads=threads)
    workspace, settings, overrides = resolve(folder, changes, sets, fixed=("model",))
    ratios = between_zero_and_one(ratio, settings)
    from ccot_cli.stages.train_decoder import run

    progress = progress_for(track, workspace)
    stage = partial(run, workspace, settings, overrides=overrides, progress=progress)
    run_each(ratios, stage, _show, format=format, progress=progress)
    print_next(workspace.command("ask", "--explain", "…"))


def _show(ratio: Decimal, result: "TrainDecoderResult") -> None:
    steps = steps_taken(result.num_steps, result.kept_step)
    print_line(f"r = {ratio:f}: {result.num_validation:,} validation problems after {steps}")
    for line in explanation_lines(result.explanations):
        print_line(f"  {line}")


def explanation_lines(figures: dict[str, Any]) -> list[str]:
    """Say how well explanations fit, with 95 % Wilson intervals.

    Args:
        figures: The fields of `Explanations`.
    """
    lines = []
    for kind in ("right", "wrong"):
        recovery = figures[kind]
        lines += [
            f"answered {kind}: {recovery['num_problems']:,} problems",
            _share("  results of the chain that the explanation has", recovery["results"]),
            _share("  the same without the last result", recovery["results_before_last"]),
            f"  token F1: {'–' if recovery['token_f1'] is None else format(recovery['token_f1'], '.3f')}",
            _share("  explanations that end in the answer given", recovery["agreement"]),
        ]
    exchange = figures["exchange"]
    return [
        *lines,
        f"with another problem's tokens: {exchange['num_pairs']:,} pairs with different answers",
        _share("  the answer becomes the other's", exchange["answer"]),
        _share("  the explanation's last number does", exchange["explanation"]),
        _share("  both do", exchange["both"]),
        _share("  explanation and answer agree", exchange["agreement"]),
        _share("  results of the problem's own chain that the explanation has", exchange["own_results"]),
    ]


def _share(label: str, proportion: dict[str, Any] | None) -> str:
    if proportion is None:
        return f"{label}: –"
    share, low, high, n = (proportion[name] for name in ("accuracy", "low", "high", "n"))
    return f"{label}: {share:.3f} ({low:.3f} – {high:.3f}, n = {n:,})"
