"""Training losses.

Dimensions: B batch, K contemplation tokens, D model width.
"""

import torch
from torch import Tensor


def scaled_mse(z_hat_BKD: Tensor, z_BKD: Tensor, mask_BK: Tensor) -> Tensor:
    """Squared error in units of the target vector's variance, so that layers compare (paper, LOSS_φ).

    Averaged over an example's tokens, then over the batch.

    Args:
        z_hat_BKD: Generated states.
        z_BKD: Gold states.
        mask_BK: True at tokens that exist; every row needs one.

    Returns:
        Scalar: 0 is perfect, 1 is as good as answering with each target's own mean.
    """
    error_BK = scaled_errors(z_hat_BKD, z_BKD) * mask_BK
    return (error_BK.sum(dim=1) / mask_BK.sum(dim=1)).mean()


def scaled_errors(z_hat_BKD: Tensor, z_BKD: Tensor) -> Tensor:
    """The same error for each token: B, K."""
    z_BKD = z_BKD.float()
    variance_BK = z_BKD.var(dim=-1, correction=0).clamp_min(1e-12)
    return (z_hat_BKD.float() - z_BKD).square().mean(dim=-1) / variance_BK


def huber(errors: Tensor) -> Tensor:
    """Squared errors up to 1 as they are, and beyond in proportion to their roots (Huber, 1964).

    So a token that is worse than its target's own mean pulls no harder than one that is as bad as that.

    Args:
        errors: From `scaled_errors`, of any shape.
    """
    return torch.where(errors <= 1, errors, 2 * errors.clamp_min(1).sqrt() - 1)
