"""Second stages: heads retrained on the features of a network that stays as it is."""

from calibrant.training.heads.balcal import BalancedHead, BalCAL, simplex_frame
from calibrant.training.heads.inference_masking import MaskedInference, mask_at_inference
from calibrant.training.heads.kappa import KAPPAS, KappaPoint
from calibrant.training.heads.maccal import ABLATION, MaCCal
from calibrant.training.heads.progressive_freezing import (
    PAPER_CUTS,
    ProgressiveFreezing,
    ProgressiveLayerPeeling,
    parameter_cuts,
)
from calibrant.training.heads.registry import HEADS, make_head
from calibrant.training.heads.retraining import HeadRetraining
from calibrant.training.heads.seeds import SeededShuffle
from calibrant.training.heads.sources import (
    FeatureRows,
    NetworkFeatures,
    find_head,
    frozen,
    replace_head,
)
from calibrant.training.heads.stage import EpochRecord, SecondStage
from calibrant.training.heads.storage import load_head, save_head
from calibrant.training.heads.two_stage import (
    TwoStageTraining,
    VariationalHead,
    VariationalTwoStageTraining,
)

__all__ = [
    "ABLATION",
    "HEADS",
    "KAPPAS",
    "PAPER_CUTS",
    "BalCAL",
    "BalancedHead",
    "EpochRecord",
    "FeatureRows",
    "HeadRetraining",
    "KappaPoint",
    "MaCCal",
    "MaskedInference",
    "NetworkFeatures",
    "ProgressiveFreezing",
    "ProgressiveLayerPeeling",
    "SecondStage",
    "SeededShuffle",
    "TwoStageTraining",
    "VariationalHead",
    "VariationalTwoStageTraining",
    "find_head",
    "frozen",
    "load_head",
    "make_head",
    "mask_at_inference",
    "parameter_cuts",
    "replace_head",
    "save_head",
    "simplex_frame",
]
