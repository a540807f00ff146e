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

from calibrant.training.losses.base import CalibrationLoss as CalibrationLoss
from calibrant.training.losses.fedlas import FeDLaS as FeDLaS
from calibrant.training.losses.fedlas import GateEpoch as GateEpoch
from calibrant.training.losses.fedlas import GateRecorder as GateRecorder
from calibrant.training.losses.fedlas import GateState as GateState
from calibrant.training.losses.likelihood import FLSD as FLSD
from calibrant.training.losses.likelihood import AdaFocal as AdaFocal
from calibrant.training.losses.likelihood import BrierLoss as BrierLoss
from calibrant.training.losses.likelihood import ConfidencePenalty as ConfidencePenalty
from calibrant.training.losses.likelihood import CrossEntropy as CrossEntropy
from calibrant.training.losses.likelihood import DualFocal as DualFocal
from calibrant.training.losses.likelihood import Focal as Focal
from calibrant.training.losses.likelihood import LabelSmoothing as LabelSmoothing
from calibrant.training.losses.likelihood import ManyLabels as ManyLabels
from calibrant.training.losses.likelihood import focal_gamma as focal_gamma
from calibrant.training.losses.margins import ACLS as ACLS
from calibrant.training.losses.margins import CPC as CPC
from calibrant.training.losses.margins import MbLS as MbLS
from calibrant.training.losses.penalised import MDCA as MDCA
from calibrant.training.losses.penalised import MMCE as MMCE
from calibrant.training.losses.penalised import SoftAvUC as SoftAvUC
from calibrant.training.losses.penalised import SoftECE as SoftECE
from calibrant.training.losses.ranking import CRL as CRL
from calibrant.training.losses.ranking import RankMixup as RankMixup
from calibrant.training.losses.registry import LOSSES as LOSSES
from calibrant.training.losses.registry import make_loss as make_loss
