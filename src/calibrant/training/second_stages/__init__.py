"""Second stages: heads retrained on the features of a network that stays as it is.

Examples:
    >>> import calibrant as cb
    >>> from calibrant.training.second_stages import HeadRetraining
    >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
    >>> stage = HeadRetraining(epochs=2).fit(val.features, val.labels)
    >>> probs = stage.predict_proba(test.features)
    >>> print(f"{cb.metrics.accuracy(probs, test.labels):.1f}")
    0.8
"""

from calibrant.training.features import frozen as frozen
from calibrant.training.second_stages.balcal import BalCAL as BalCAL
from calibrant.training.second_stages.heads import BalancedHead as BalancedHead
from calibrant.training.second_stages.heads import VariationalHead as VariationalHead
from calibrant.training.second_stages.heads import load_head as load_head
from calibrant.training.second_stages.heads import simplex_frame as simplex_frame
from calibrant.training.second_stages.maccal import ABLATION as ABLATION
from calibrant.training.second_stages.maccal import KAPPAS as KAPPAS
from calibrant.training.second_stages.maccal import PAPER as PAPER
from calibrant.training.second_stages.maccal import SHARES as SHARES
from calibrant.training.second_stages.maccal import Candidate as Candidate
from calibrant.training.second_stages.maccal import KappaPoint as KappaPoint
from calibrant.training.second_stages.maccal import MaCCal as MaCCal
from calibrant.training.second_stages.masked import HeadRetraining as HeadRetraining
from calibrant.training.second_stages.masked import MaskedInference as MaskedInference
from calibrant.training.second_stages.masked import mask_at_inference as mask_at_inference
from calibrant.training.second_stages.measured import BesideTemperature as BesideTemperature
from calibrant.training.second_stages.measured import EpochRecord as EpochRecord
from calibrant.training.second_stages.measured import beside_temperature as beside_temperature
from calibrant.training.second_stages.outcome import SecondStageOutcome as SecondStageOutcome
from calibrant.training.second_stages.outcome import run_second_stage as run_second_stage
from calibrant.training.second_stages.progressive_freezing import PAPER_CUTS as PAPER_CUTS
from calibrant.training.second_stages.progressive_freezing import (
    ProgressiveFreezing as ProgressiveFreezing,
)
from calibrant.training.second_stages.progressive_freezing import (
    ProgressiveLayerPeeling as ProgressiveLayerPeeling,
)
from calibrant.training.second_stages.progressive_freezing import parameter_cuts as parameter_cuts
from calibrant.training.second_stages.registry import SECOND_STAGES as SECOND_STAGES
from calibrant.training.second_stages.registry import make_second_stage as make_second_stage
from calibrant.training.second_stages.sources import FeatureRows as FeatureRows
from calibrant.training.second_stages.sources import NetworkFeatures as NetworkFeatures
from calibrant.training.second_stages.sources import SeededShuffle as SeededShuffle
from calibrant.training.second_stages.sources import find_head as find_head
from calibrant.training.second_stages.sources import replace_head as replace_head
from calibrant.training.second_stages.stage import SecondStage as SecondStage
from calibrant.training.second_stages.two_stage import TwoStageTraining as TwoStageTraining
from calibrant.training.second_stages.two_stage import (
    VariationalTwoStageTraining as VariationalTwoStageTraining,
)
