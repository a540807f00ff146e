"""Second stages: heads retrained on the features of a network that stays as it is.

Examples:
    >>> import calibrant as cb
    >>> from calibrant.training.second_stages import HeadRetraining
    >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
    >>> stage = HeadRetraining(epochs=2).fit(val.features, val.labels)
    >>> probs = stage.predict_proba(test.features)
    >>> print(f"{cb.accuracy(probs, test.labels):.1f}")
    0.8
"""

from calibrant.training.features import frozen
from calibrant.training.second_stages.balcal import BalCAL
from calibrant.training.second_stages.heads import (
    BalancedHead,
    VariationalHead,
    load_head,
    simplex_frame,
)
from calibrant.training.second_stages.maccal import (
    ABLATION,
    KAPPAS,
    PAPER,
    SHARES,
    Candidate,
    KappaPoint,
    MaCCal,
)
from calibrant.training.second_stages.masked import (
    HeadRetraining,
    MaskedInference,
    mask_at_inference,
)
from calibrant.training.second_stages.measured import (
    BesideTemperature,
    EpochRecord,
    beside_temperature,
)
from calibrant.training.second_stages.outcome import SecondStageOutcome, run_second_stage
from calibrant.training.second_stages.progressive_freezing import (
    PAPER_CUTS,
    ProgressiveFreezing,
    ProgressiveLayerPeeling,
    parameter_cuts,
)
from calibrant.training.second_stages.registry import SECOND_STAGES, make_second_stage
from calibrant.training.second_stages.sources import (
    FeatureRows,
    NetworkFeatures,
    SeededShuffle,
    find_head,
    replace_head,
)
from calibrant.training.second_stages.stage import SecondStage
from calibrant.training.second_stages.two_stage import TwoStageTraining, VariationalTwoStageTraining

__all__ = [
    "ABLATION",
    "KAPPAS",
    "PAPER",
    "PAPER_CUTS",
    "SECOND_STAGES",
    "SHARES",
    "BalCAL",
    "BalancedHead",
    "BesideTemperature",
    "Candidate",
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
    "SecondStageOutcome",
    "SeededShuffle",
    "TwoStageTraining",
    "VariationalHead",
    "VariationalTwoStageTraining",
    "beside_temperature",
    "find_head",
    "frozen",
    "load_head",
    "make_second_stage",
    "mask_at_inference",
    "parameter_cuts",
    "replace_head",
    "run_second_stage",
    "simplex_frame",
]
