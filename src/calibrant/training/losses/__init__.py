"""Losses that keep a network calibrated while it is trained, one signature for all.

Examples:
    >>> import torch
    >>> from calibrant.training import losses
    >>> logits, target = torch.tensor([[4.0, 0.0]]), torch.tensor([0])
    >>> for loss in (losses.CrossEntropy(), losses.LabelSmoothing(), losses.MbLS(margin=2)):
    ...     print(type(loss).__name__, f"{float(loss(logits, target)):.3f}")
    CrossEntropy 0.018
    LabelSmoothing 0.118
    MbLS 0.118
"""

from calibrant.training.losses.base import CalibrationLoss
from calibrant.training.losses.fedlas import FeDLaS, GateEpoch, GateRecorder, GateState
from calibrant.training.losses.likelihood import (
    FLSD,
    AdaFocal,
    BrierLoss,
    ConfidencePenalty,
    CrossEntropy,
    DualFocal,
    Focal,
    LabelSmoothing,
    focal_gamma,
)
from calibrant.training.losses.margins import ACLS, CPC, MbLS
from calibrant.training.losses.penalised import MDCA, MMCE, SoftAvUC, SoftECE
from calibrant.training.losses.ranking import CRL, RankMixup
from calibrant.training.losses.registry import LOSSES, make_loss

__all__ = [
    "ACLS",
    "CPC",
    "CRL",
    "FLSD",
    "LOSSES",
    "MDCA",
    "MMCE",
    "AdaFocal",
    "BrierLoss",
    "CalibrationLoss",
    "ConfidencePenalty",
    "CrossEntropy",
    "DualFocal",
    "FeDLaS",
    "Focal",
    "GateEpoch",
    "GateRecorder",
    "GateState",
    "LabelSmoothing",
    "MbLS",
    "RankMixup",
    "SoftAvUC",
    "SoftECE",
    "focal_gamma",
    "make_loss",
]
