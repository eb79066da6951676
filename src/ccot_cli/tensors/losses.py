"""Training losses.

Dimensions: B batch, K contemplation tokens, D model width.
"""

import torch
from torch import Tensor


def scaled_mse(z_hat_BKD: Tensor, z_BKD: Tensor, mask_BK: Tensor) -> Tensor:
    """Compute the mean squared error in units of the targets' variance, so that layers are comparable (paper, LOSS_φ).

    It is averaged over an example's tokens, then over the batch.

    Args:
        z_hat_BKD: Generated states.
        z_BKD: Gold states, the targets.
        mask_BK: True at tokens that exist; every row needs one.

    Returns:
        A scalar: 0 is perfect, 1 is as good as predicting each target's own mean.
    """
    error_BK = scaled_errors(z_hat_BKD, z_BKD) * mask_BK
    return (error_BK.sum(dim=1) / mask_BK.sum(dim=1)).mean()


def scaled_errors(z_hat_BKD: Tensor, z_BKD: Tensor) -> Tensor:
    """Compute each token's mean squared error in units of its target's variance: B, K.

    Args:
        z_hat_BKD: Generated states.
        z_BKD: Gold states, the targets.
    """
    z_BKD = z_BKD.float()
    variance_BK = z_BKD.var(dim=-1, correction=0).clamp_min(1e-12)
    return (z_hat_BKD.float() - z_BKD).square().mean(dim=-1) / variance_BK


def huber(errors: Tensor) -> Tensor:
    """Keep squared errors up to 1, and let larger ones grow with their square roots only (Huber, 1964).

    So a token that is predicted worse than by its target's own mean pulls no harder than one at that error.

    Args:
        errors: From `scaled_errors`, of any shape.

    Returns:
        A tensor of the same shape.
    """
    return torch.where(errors <= 1, errors, 2 * errors.clamp_min(1).sqrt() - 1)
