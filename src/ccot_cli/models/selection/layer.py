"""Choose l, the autoregressive layer, from gold states (ours; the paper takes about L/2).

φ feeds its state at index l back, so that state must hold what the chain writes next. A linear probe tells how much of
it gold states hold at every index. The lowest index that holds nearly as much as L is the fastest one that suffices.

Dimensions: M selected tokens, D width.
"""

from collections.abc import Sequence

from torch import Tensor

from ccot_cli.tensors.probes import fit_probe

NEARLY = 0.95
"""Proportion of the accuracy at L that is nearly as much."""


def probe_accuracy(train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor]) -> float:
    """Fit a probe on the states of one index, and return its accuracy on held-out ones.

    Args:
        train: Gold states (M, D), and the id of the token that follows each in its chain (M).
        held_out: The same of other problems; at least one.
    """
    return float(fit_probe(*train).is_right(*held_out).float().mean())


def lowest_sufficient(accuracies: Sequence[float]) -> int | None:
    """Return the lowest index from 1 to L-1 that holds nearly as much as L; L-1 if none does.

    Args:
        accuracies: Of the probes at the indices 0 to L; may be empty.

    Returns:
        l; None if the probes do not tell: because there are none, there is one layer only, or L holds hardly more than
        index 0.
    """
    top = len(accuracies) - 2
    if top < 1 or accuracies[0] >= (enough := NEARLY * accuracies[-1]):
        return None
    return next((index for index in range(1, top) if accuracies[index] >= enough), top)
