"""Second stages: heads retrained on the features of a network that stays as it is.

Examples:
    >>> import calibrant as cb
    >>> from calibrant.training.heads import HeadRetraining
    >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
    >>> stage = HeadRetraining(epochs=2).fit(val.features, val.labels)
    >>> probs = stage.predict_proba(test.features)
    >>> print(f"{cb.accuracy(probs, test.labels):.1f}")
    0.8
"""

from calibrant.training.heads.balanced_head import BalancedHead, simplex_frame
from calibrant.training.heads.balcal import BalCAL
from calibrant.training.heads.inference_masking import MaskedInference, mask_at_inference
from calibrant.training.heads.kappa import KAPPAS, SHARES, Candidate, KappaPoint
from calibrant.training.heads.maccal import MaCCal
from calibrant.training.heads.one_temperature import BesideTemperature, beside_temperature
from calibrant.training.heads.outcome import HeadOutcome, retrain_head
from calibrant.training.heads.progressive_freezing import (
    PAPER_CUTS,
    ProgressiveFreezing,
    ProgressiveLayerPeeling,
    parameter_cuts,
)
from calibrant.training.heads.published import ABLATION, PAPER
from calibrant.training.heads.records import EpochRecord
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
from calibrant.training.heads.stage import SecondStage
from calibrant.training.heads.storage import load_head, save_head
from calibrant.training.heads.two_stage import TwoStageTraining, VariationalTwoStageTraining
from calibrant.training.heads.variational_head import VariationalHead

__all__ = [
    "ABLATION",
    "HEADS",
    "KAPPAS",
    "PAPER",
    "PAPER_CUTS",
    "SHARES",
    "BalCAL",
    "BalancedHead",
    "BesideTemperature",
    "Candidate",
    "EpochRecord",
    "FeatureRows",
    "HeadOutcome",
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
    "beside_temperature",
    "find_head",
    "frozen",
    "load_head",
    "make_head",
    "mask_at_inference",
    "parameter_cuts",
    "replace_head",
    "retrain_head",
    "save_head",
    "simplex_frame",
]
