"""The public names of `calibrant.metrics` and where they live; `__init__.py` reads this list."""

from calibrant.evaluation.multicalibration import multicalibration as multicalibration
from calibrant.metrics.binned import adaptive_calibration_error as adaptive_calibration_error
from calibrant.metrics.binned import expected_calibration_error as expected_calibration_error
from calibrant.metrics.canonical import canonical_calibration_error as canonical_calibration_error
from calibrant.metrics.canonical import skce as skce
from calibrant.metrics.classwise import (
    classwise_adaptive_calibration_error as classwise_adaptive_calibration_error,
)
from calibrant.metrics.classwise import (
    classwise_expected_calibration_error as classwise_expected_calibration_error,
)
from calibrant.metrics.cox import calibration_in_the_large as calibration_in_the_large
from calibrant.metrics.cox import calibration_slope_intercept as calibration_slope_intercept
from calibrant.metrics.debiased import (
    debiased_expected_calibration_error as debiased_expected_calibration_error,
)
from calibrant.metrics.debiased import (
    debiased_rms_calibration_error as debiased_rms_calibration_error,
)
from calibrant.metrics.debiased import ece_sweep as ece_sweep
from calibrant.metrics.decomposition import ScoreDecomposition as ScoreDecomposition
from calibrant.metrics.decomposition import corp_decomposition as corp_decomposition
from calibrant.metrics.decomposition import murphy_decomposition as murphy_decomposition
from calibrant.metrics.detection import aupr as aupr
from calibrant.metrics.detection import auroc as auroc
from calibrant.metrics.detection import fpr_at_tpr as fpr_at_tpr
from calibrant.metrics.detection import ood_scores as ood_scores
from calibrant.metrics.gaps import average_calibration_error as average_calibration_error
from calibrant.metrics.gaps import ks_error as ks_error
from calibrant.metrics.gaps import maximum_calibration_error as maximum_calibration_error
from calibrant.metrics.gaps import overconfidence_error as overconfidence_error
from calibrant.metrics.gaps import rms_calibration_error as rms_calibration_error
from calibrant.metrics.gaps import underconfidence_error as underconfidence_error
from calibrant.metrics.proper import accuracy as accuracy
from calibrant.metrics.proper import brier_score as brier_score
from calibrant.metrics.proper import negative_log_likelihood as negative_log_likelihood
from calibrant.metrics.proper import top_label_nll as top_label_nll
from calibrant.metrics.refit import RefinementSplit as RefinementSplit
from calibrant.metrics.refit import refinement_split as refinement_split
from calibrant.metrics.registry import CORE_METRICS as CORE_METRICS
from calibrant.metrics.registry import METRICS as METRICS
from calibrant.metrics.selective import RiskCoverage as RiskCoverage
from calibrant.metrics.selective import aurc as aurc
from calibrant.metrics.selective import coverage_at_risk as coverage_at_risk
from calibrant.metrics.selective import eaurc as eaurc
from calibrant.metrics.selective import risk_at_coverage as risk_at_coverage
from calibrant.metrics.selective import risk_coverage as risk_coverage
from calibrant.metrics.smooth import kde_ece as kde_ece
from calibrant.metrics.smooth import mmce as mmce
from calibrant.metrics.smooth import smooth_calibration_error as smooth_calibration_error
from calibrant.metrics.smooth import smooth_ece as smooth_ece
