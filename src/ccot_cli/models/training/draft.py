"""Fit the draft of the answer's first token (ours).

Dimensions: M problems, D width.
"""

from torch import Tensor

from ccot_cli.models.decoding.draft import Draft
from ccot_cli.tensors.probes import fit_probe


def fit_draft(last_MD: Tensor, first_M: Tensor, *, validation: tuple[Tensor, Tensor]) -> Draft:
    """Fit a probe on training problems and measure its accuracy on validation problems.

    Args:
        last_MD: Raw state at index L of each problem's last contemplation token.
        first_M: First token of each problem's answer.
        validation: The same two tensors of validation problems.
    """
    probe = fit_probe(last_MD.cpu(), first_M.cpu())
    is_right_M = probe.is_right(*(each.cpu() for each in validation))
    return Draft(probe, float(is_right_M.float().mean())).to(last_MD.device)
